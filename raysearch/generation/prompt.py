"""A prompt, the options of its continuation, and the continuation: plain values, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decoding:
    """The options by which tokens are chosen."""

    temperature: float = 0.0  #: 0 for the likeliest token; else logits are divided by it, and the token is drawn
    top_k: int = 0  #: the number of likeliest tokens to draw from; 0 for all
    top_p: float = 1.0  #: the probability of the likeliest tokens to draw from, after `top_k`; 1 for all
    seed: int = 0  #: the seed of the draws; the random numbers of a prompt depend on the seed and its tokens


@dataclass(frozen=True)
class Prompt:
    """The tokens of a text to continue, and the limits of the continuation."""

    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()  #: texts at which the continuation ends


@dataclass(frozen=True)
class Written:
    """The continuation of a prompt."""

    text: str  #: the text before the end token or the stop text
    n_tokens: int  #: the number of generated tokens, an end token included
    cut_off: bool  #: whether it ended because of the limit of tokens


def end_of_answer(text: str, stops: Sequence[str]) -> int | None:
    """Return where an answer ends: at the first of the texts that stop it; None if it has none of them.

    Args:
        text: The generated text.
        stops: The texts that stop it.

    Returns:
        The index of the first character after the answer.
    """
    ends = [text.find(stop) for stop in stops if stop in text]
    return min(ends, default=None)
