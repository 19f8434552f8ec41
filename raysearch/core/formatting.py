"""Formats counts, numbers and times for people, and values as users type them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def count(number: int, what: str, many: str | None = None) -> str:
    """Format a count: ``1 mask``, ``1,024 masks``.

    Args:
        number: The count.
        what: The noun in the singular.
        many: The plural, if it is not formed by an s.
    """
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {many or f'{what}s'}"


def listed(items: Sequence[str], most: int = 6) -> str:
    """Return texts as an enumeration: ``a, b and c``.

    Args:
        items: The texts.
        most: The most items to show; the others are counted: ``a, b and 3 more``.
    """
    if len(items) > most:
        return ", ".join(items[: most - 1]) + f" and {len(items) - most + 1} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def figure(value: float | None) -> str:
    """Format a number of any size: about four significant digits, and no decimals from 10,000 on."""
    if value is None:
        return "not finite"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if float(value).is_integer() or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(n_bytes: float) -> str:
    """Format a size in bytes: ``512 B``, ``1.5 MB``, ``2.3 GB``."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 999.5:  # a larger number would be shown as 1000
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} GB"


def added(value: float, error: float | None) -> str:
    """Format a difference with its sign.

    Args:
        value: The difference.
        error: Its standard error; None if unknown.
    """
    return f"{value:+.4f}" + ("" if error is None else f" ± {error:.4f}")


def duration(seconds: float | None) -> str:
    """Format a time in seconds, minutes or hours; a question mark if it is unknown."""
    if seconds is None:
        return "?"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def remaining(passed_s: float, done: float, whole: float) -> str:
    """Format the estimated time until all work is done; a question mark if no work is done yet.

    Args:
        passed_s: The time since the start, in seconds.
        done: The work that is done.
        whole: All work, in the same unit.
    """
    return duration(passed_s / done * (whole - done) if done else None)


def short_duration(seconds: float) -> str:
    """Format a time that may be below a second."""
    if seconds < 0.9995:  # a larger number would be shown as 1000 ms
        return f"{seconds * 1000:{'.0f' if seconds >= 0.01 else '.2g'}} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def written(tokens_per_s: float | None) -> str:
    """Format the speed of generation as the end of a text: ``, 12 tokens/s``; empty for None."""
    return "" if tokens_per_s is None else f", {tokens_per_s:,.{0 if tokens_per_s >= 10 else 1}f} tokens/s"


def as_typed(value: Any) -> str:
    """Return a value as the user writes it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
