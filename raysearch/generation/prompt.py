"""A prompt, how it is continued, and what was written after it: plain values, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen."""

    temperature: float = 0.0  #: 0 for the likeliest token; else logits are divided by it, and the token is drawn
    top_k: int = 0  #: the number of likeliest tokens to draw from; 0 for all
    top_p: float = 1.0  #: the probability of the likeliest tokens to draw from, after `top_k`; 1 for all
    seed: int = 0  #: of the draws; each prompt has random numbers of its own, by its tokens


@dataclass(frozen=True)
class Prompt:
    """The tokens of a text to continue, until it has so many more, or comes to one of some texts."""

    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """The continuation of a prompt."""

    text: str  #: up to its end, or to a text at which it stops
    n_tokens: int  #: that were generated, an end token included
    cut_off: bool  #: whether it ends because of the limit of tokens
