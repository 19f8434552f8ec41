"""Numbers as a report prints them: as many digits as mean something, and the same in every table and sentence."""

from __future__ import annotations

import math

from raysearch.core.formatting import figure, short_duration
from raysearch.reporting.stats.frame import Quantity

UNKNOWN = "–"


def loss(value: float | None) -> str:
    """A loss on a calibration."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def change(value: float | None) -> str:
    """A difference of losses."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:+.4f}" if abs(value) < 1000 else f"{value:+,.1f}"


def value(number: float | None, quantity: Quantity) -> str:
    """An assessed number, as papers print it."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    if quantity.group == "accuracy" or (quantity.group == "perplexity" and abs(number) < 1000):
        return f"{number:.2f}"
    if quantity.unit == "bytes":
        return f"{number / 1e6:,.1f}"
    return figure(number) if quantity.group != "perplexity" else f"{number:,.{1 if number < 10_000 else 0}f}"


def unit(quantity: Quantity) -> str:
    """The unit of `value`."""
    return "MB" if quantity.unit == "bytes" else quantity.unit


def with_unit(number: float, quantity: Quantity) -> str:
    """An assessed number in a sentence: ``58.20 %``, or ``24.51``."""
    return value(number, quantity) + (" %" if quantity.unit == "%" else "")


def difference(number: float, quantity: Quantity) -> str:
    """A difference, or a ratio, of an assessed number in a sentence: ``2.1 points``, ``1.4 times``."""
    if quantity.ratio:
        return times(number)
    return f"{number:.2f} points" if quantity.unit == "%" else f"{figure(number)} {quantity.unit}".strip()


def times(ratio: float) -> str:
    """A ratio: ``1.4 times``, ``320 times``."""
    return f"{ratio_text(ratio)} times"


def ratio_text(ratio: float) -> str:
    """A ratio in two or three digits: ``1.42``, ``12.3``, ``1,200``."""
    if not math.isfinite(ratio):
        return UNKNOWN
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{float(f'{ratio:.3g}'):,.0f}"


def rho(number: float | None) -> str:
    """A correlation: ``+0.55``."""
    return UNKNOWN if number is None else f"{number + 0.0:+.2f}"


def similarity(number: float | None) -> str:
    """A Jaccard similarity: ``0.636``."""
    return UNKNOWN if number is None else f"{number:.3f}"


def time(seconds: float) -> str:
    """A time of any length."""
    return short_duration(seconds) if math.isfinite(seconds) else UNKNOWN


def percent(share: float | None) -> str:
    """A share as whole percents."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def probability(p: float | None) -> str:
    """The p of a test."""
    if p is None:
        return UNKNOWN
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def amount(number: float | None) -> str:
    """A count that may be large, in three or four digits: ``5,712``, ``1.23 million``."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if abs(number) >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}" if abs(number) >= 100 else figure(number)


def capital(text: str) -> str:
    """A text that begins with a capital letter, the others as they are."""
    return text[:1].upper() + text[1:]


def listed(items: list[str], most: int = 6) -> str:
    """Words in a row: ``a, b and c``; of many only the first."""
    if len(items) > most:
        return ", ".join(items[: most - 1]) + f" and {len(items) - most + 1} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def join_layers(layers: tuple[int, ...]) -> str:
    """Layers, runs of them joined: ``3, 21–24, 26``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
