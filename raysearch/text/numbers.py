"""Numbers, counts, sizes and times as people read them: in terminals, sentences, reports, figures and notebooks.

Each function is one way of showing a number. Those of the second half are for reports, which show a dash for a number
that is not known or not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

UNKNOWN = "–"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a count: ``1 mask``, ``1,024 masks``.

    Args:
        number: The count.
        noun: The noun in the singular.
        plural: The plural, if it is not formed by an s.

    Returns:
        The text, with commas between thousands.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or f'{noun}s'}"


def rounded(value: float | None) -> str:
    """Format a number of any size: about four significant digits, and no decimals from 10,000 on."""
    if value is None:
        return "not finite"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if float(value).is_integer() or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def plus_minus(error: float | None) -> str:
    """Format a standard error: two digits, or all digits before the point: ``± 0.012``, ``± 1,234``; empty for None."""
    if error is None:
        return ""
    return f"± {error:,.0f}" if error >= 99.5 else f"± {error:#.2g}".rstrip(".")


def with_error(value: float, error: float | None) -> str:
    """Format a number and its standard error, both to the error's second digit: ``0.500 ± 0.012``.

    Args:
        value: The number.
        error: Its standard error; None if unknown.

    Returns:
        The text, without unit.
    """
    if not error or not math.isfinite(error):
        return f"{rounded(value)} {plus_minus(error)}".rstrip()
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}"


def added(value: float, error: float | None) -> str:
    """Format a difference of losses with its sign, in four decimals: ``+0.1234 ± 0.0123``.

    Args:
        value: The difference.
        error: Its standard error; None if unknown.

    Returns:
        The text, without unit.
    """
    return f"{value:+.4f}" + ("" if error is None else f" ± {error:.4f}")


def size(n_bytes: float) -> str:
    """Format a size in bytes: ``512 B``, ``1.5 MB``, ``2.3 GB``."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 999.5:  # a larger number would be shown as 1000
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} GB"


def duration(seconds: float | None) -> str:
    """Format a time in seconds, minutes or hours; a question mark if it is unknown."""
    if seconds is None:
        return "?"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {seconds_left:02d} s"


def short_duration(seconds: float) -> str:
    """Format a time that may be below a second."""
    if seconds < 0.9995:  # a larger number would be shown as 1000 ms
        return f"{seconds * 1000:{'.0f' if seconds >= 0.01 else '.2g'}} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def remaining(passed_s: float, done: float, whole: float) -> str:
    """Format the estimated time until all work is done; a question mark if no work is done yet.

    Args:
        passed_s: The time since the start, in seconds.
        done: The work that is done.
        whole: All work, in the same unit.

    Returns:
        The text of a duration.
    """
    return duration(passed_s / done * (whole - done) if done else None)


def written(tokens_per_s: float | None) -> str:
    """Format the speed of generation as the end of a text: ``, 12 tokens/s``; empty for None."""
    if tokens_per_s is None:
        return ""
    return f", {tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 10 else f", {tokens_per_s:,.1f} tokens/s"


def three_digits(number: float) -> str:
    """Format a number of an axis in three significant digits: ``24.5``, ``22,000``."""
    number = round(number, 9) + 0.0  # removes -0 and rounding errors
    return f"{float(f'{number:.3g}'):,.0f}" if 100 <= number < 1e7 else f"{number:.3g}"


def _if_known(write: Callable[..., str]) -> Callable[..., str]:
    """Return a function that returns `UNKNOWN` for a number that is None or not finite."""

    @wraps(write)
    def text(number: float | None, *more: Any, **options: Any) -> str:
        return UNKNOWN if number is None or not math.isfinite(number) else write(number, *more, **options)

    return text


@_if_known
def loss(value: float) -> str:
    """Format a loss on a calibration in four decimals; in one from 1,000 on."""
    return f"{value:z.4f}" if abs(value) < 1000 else f"{value:,.1f}"


@_if_known
def change(value: float) -> str:
    """Format a difference of losses as `loss`, with its sign: ``+0.1234``."""
    return f"{value:+z.4f}" if abs(value) < 1000 else f"{value:+,.1f}"


#: A number of any size: a perplexity, a mean of ranks, or one in a sentence.
rounded_if_known = _if_known(rounded)

#: A time of any length, in seconds.
time = _if_known(short_duration)


@_if_known
def similarity(jaccard: float) -> str:
    """Format a Jaccard similarity: ``0.64``."""
    return f"{jaccard:.2f}"


@_if_known
def rho(correlation: float) -> str:
    """Format a correlation: ``+0.55``."""
    return f"{correlation + 0.0:+.2f}"


@_if_known
def percent(share: float) -> str:
    """Format a share in whole percent."""
    return f"{100 * share:.0f} %"


@_if_known
def probability(p: float) -> str:
    """Format the p of a test: ``p = 0.03``."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


@_if_known
def amount(number: float) -> str:
    """Format a count that may be large, in three or four digits: ``5,712``, ``1.23 million``."""
    for scale, name in ((1e9, "billion"), (1e6, "million")):
        if abs(number) >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number:,.0f}" if abs(number) >= 100 else rounded(number)


@_if_known
def ratio_text(ratio: float) -> str:
    """Format a ratio in three digits: ``1.42``, ``12.3``, ``1,200``."""
    if ratio < 10:
        return f"{ratio:.2f}"
    if ratio < 100:
        return f"{ratio:.1f}"
    three_significant = float(f"{ratio:.3g}")
    return f"{three_significant:,.0f}"


@_if_known
def assessed(number: float, group: str | None, unit: str) -> str:
    """Format an assessed number as papers print it, without its unit.

    Args:
        number: The number.
        group: The group of its metric, such as ``accuracy``.
        unit: Its unit; bytes are shown in the unit of `assessed_unit`.

    Returns:
        The text.
    """
    if group in ("accuracy", "generation", "probe") or (group == "perplexity" and abs(number) < 1000):
        return f"{number:.2f}"
    if group in ("degeneration", "failures"):
        return f"{number:.1f}"
    if unit == "bytes":
        return f"{number / 1e6:,.1f}"
    if group != "perplexity":
        return rounded(number)
    return f"{number:,.1f}" if number < 10_000 else f"{number:,.0f}"


def assessed_unit(unit: str) -> str:
    """Return the unit in which `assessed` shows a number of a unit."""
    return "MB" if unit == "bytes" else unit


def difference(number: float, unit: str) -> str:
    """Format a difference of assessed numbers with its unit: ``2.10 points``.

    Args:
        number: The difference.
        unit: The unit of the numbers; of percentages the difference is in points.

    Returns:
        The text, with its unit.
    """
    return f"{number:.2f} points" if unit == "%" else f"{rounded_if_known(number)} {unit}".strip()
