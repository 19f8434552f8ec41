"""Numbers as a report prints them: as many digits as mean something, and the same in every table and sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from raysearch.core import formatting
from raysearch.reporting.stats.frame import Quantity

UNKNOWN = "–"


def _if_known(write: Callable[..., str]) -> Callable[..., str]:
    """Let a function write `UNKNOWN` for a number that is None or not finite."""

    @wraps(write)
    def written(number: float | None, *more: Any, **options: Any) -> str:
        return UNKNOWN if number is None or not math.isfinite(number) else write(number, *more, **options)

    return written


@_if_known
def loss(value: float, sign: str = "") -> str:
    """A loss on a calibration."""
    return f"{value:{sign}z.4f}" if abs(value) < 1000 else f"{value:{sign},.1f}"


#: A difference of losses: ``+0.1234``.
change = partial(loss, sign="+")


#: A number of any size: a perplexity, a mean of ranks, or one in a sentence.
figure = _if_known(formatting.figure)

#: A Jaccard similarity: ``0.64``.
similarity = _if_known("{:.2f}".format)

#: A time of any length, in seconds.
time = _if_known(formatting.short_duration)


@_if_known
def value(number: float, quantity: Quantity) -> str:
    """An assessed number, as papers print it."""
    if quantity.group in ("accuracy", "generation", "probe") or (quantity.group == "perplexity" and abs(number) < 1000):
        return f"{number:.2f}"
    if quantity.group in ("degeneration", "failures"):
        return f"{number:.1f}"
    if quantity.unit == "bytes":
        return f"{number / 1e6:,.1f}"
    return figure(number) if quantity.group != "perplexity" else f"{number:,.{1 if number < 10_000 else 0}f}"


def unit(quantity: Quantity) -> str:
    """The unit of `value`."""
    return "MB" if quantity.unit == "bytes" else quantity.unit


def difference(number: float, quantity: Quantity) -> str:
    """A difference, or a ratio, of an assessed number in a sentence: ``2.1 points``, ``1.4 times``."""
    if quantity.ratio:
        return f"{ratio_text(number)} times"
    return f"{number:.2f} points" if quantity.unit == "%" else f"{figure(number)} {quantity.unit}".strip()


@_if_known
def ratio_text(ratio: float) -> str:
    """A ratio in two or three digits: ``1.42``, ``12.3``, ``1,200``."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{float(f'{ratio:.3g}'):,.0f}"


@_if_known
def rho(number: float) -> str:
    """A correlation: ``+0.55``."""
    return f"{number + 0.0:+.2f}"


@_if_known
def percent(share: float) -> str:
    """A share as whole percents."""
    return f"{100 * share:.0f} %"


@_if_known
def probability(p: float) -> str:
    """The p of a test: ``p = 0.03``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


@_if_known
def amount(number: float) -> str:
    """A count that may be large, in three or four digits: ``5,712``, ``1.23 million``."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if abs(number) >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}" if abs(number) >= 100 else figure(number)


def capital(text: str) -> str:
    """A text that begins with a capital letter, the others as they are."""
    return text[:1].upper() + text[1:]
