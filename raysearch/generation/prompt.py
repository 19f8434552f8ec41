"""A prompt, how it is continued, and what was written after it: plain values, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.errors import UserError


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen.

    Args:
        temperature: 0 for the likeliest token; else logits are divided by it, and the token is drawn.
        top_k: The number of likeliest tokens to draw from; 0 for all.
        top_p: The probability of the likeliest tokens to draw from, after `top_k`; 1 for all.
        seed: Of the draws. Each prompt has random numbers of its own, by its tokens.

    Raises:
        UserError: A value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, fits, range_ in (
            ("temperature", self.temperature >= 0, "0 (no draw) or more"),
            ("top_k", self.top_k >= 0, "0 (all tokens) or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, and 1 (all tokens) at most"),
            ("seed", 0 <= self.seed < 2**32, f"0 … {2**32 - 1}"),
        ):
            if not fits:
                raise UserError(f"objective.{name}={getattr(self, name)} is out of range; use {range_}")


@dataclass(frozen=True)
class Prompt:
    """The tokens of a text to continue, until it has so many more, or comes to one of some texts."""

    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """The continuation of a prompt.

    Args:
        text: Up to the end of the text, or to a text at which it stops.
        n_tokens: Tokens that were generated, an end token included.
        cut_off: Whether it ends because of the limit of tokens.
    """

    text: str
    n_tokens: int
    cut_off: bool
