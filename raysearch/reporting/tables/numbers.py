"""Numbers as a report prints them: only significant digits, and the same format in every table and sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from raysearch.core import formatting
from raysearch.reporting.stats.frame import Quantity

UNKNOWN = "–"


def _if_known(write: Callable[..., str]) -> Callable[..., str]:
    """Return a function that writes `UNKNOWN` for a number that is None or not finite."""

    @wraps(write)
    def written(number: float | None, *more: Any, **options: Any) -> str:
        return UNKNOWN if number is None or not math.isfinite(number) else write(number, *more, **options)

    return written


@_if_known
def loss(value: float, sign: str = "") -> str:
    """Return the text of a loss on a calibration.

    Args:
        value: The loss.
        sign: ``+`` to write the sign of positive numbers, too.
    """
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
    """Return the text of an assessed number, as papers print it, without its unit.

    Args:
        number: The number.
        quantity: Its quantity, which determines the digits.
    """
    if quantity.group in ("accuracy", "generation", "probe") or (quantity.group == "perplexity" and abs(number) < 1000):
        return f"{number:.2f}"
    if quantity.group in ("degeneration", "failures"):
        return f"{number:.1f}"
    if quantity.unit == "bytes":
        return f"{number / 1e6:,.1f}"
    if quantity.group != "perplexity":
        return figure(number)
    return f"{number:,.1f}" if number < 10_000 else f"{number:,.0f}"


def unit(quantity: Quantity) -> str:
    """Return the unit in which `value` writes a quantity."""
    return "MB" if quantity.unit == "bytes" else quantity.unit


def difference(number: float, quantity: Quantity) -> str:
    """Return the text of a difference, or a ratio, of assessed numbers: ``2.1 points``, ``1.4 times``.

    Args:
        number: The difference; the ratio if the quantity is compared by ratios.
        quantity: The quantity.
    """
    if quantity.ratio:
        return f"{ratio_text(number)} times"
    return f"{number:.2f} points" if quantity.unit == "%" else f"{figure(number)} {quantity.unit}".strip()


@_if_known
def ratio_text(ratio: float) -> str:
    """Return the text of a ratio, in three digits: ``1.42``, ``12.3``, ``1,200``."""
    if ratio < 10:
        return f"{ratio:.2f}"
    if ratio < 100:
        return f"{ratio:.1f}"
    rounded = float(f"{ratio:.3g}")
    return f"{rounded:,.0f}"


@_if_known
def rho(number: float) -> str:
    """Return the text of a correlation: ``+0.55``."""
    return f"{number + 0.0:+.2f}"


@_if_known
def percent(share: float) -> str:
    """Return the text of a share in whole percent."""
    return f"{100 * share:.0f} %"


@_if_known
def probability(p: float) -> str:
    """Return the text of the p of a test: ``p = 0.03``."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


@_if_known
def amount(number: float) -> str:
    """Return the text of a count that may be large, in three or four digits: ``5,712``, ``1.23 million``."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if abs(number) >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}" if abs(number) >= 100 else figure(number)


def capital(text: str) -> str:
    """Return a text with its first letter as a capital; the other letters do not change."""
    return text[:1].upper() + text[1:]
