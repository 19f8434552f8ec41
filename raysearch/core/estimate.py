"""A measured number with its standard error, the metric it belongs to, and how alike two rows of numbers rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from raysearch.core.formatting import figure
from raysearch.core.json import Number

Group = Literal["perplexity", "accuracy", "generation", "degeneration", "failures", "probe", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, if known, in the same unit."""

    value: Number
    error: float | None = None


def shown(one: Estimate | None) -> str:
    """Format a number and its standard error, if known, both to the error's second digit; empty for None."""
    if one is None:
        return ""
    if not one.error or not math.isfinite(one.error):
        return f"{figure(one.value)} {plus_minus(one.error)}".rstrip()
    decimals = max(0, 1 - math.floor(math.log10(one.error)))
    return f"{one.value:,.{decimals}f} ± {one.error:,.{decimals}f}"


def plus_minus(error: float | None) -> str:
    """Format a standard error in two digits, large ones in full: ``± 0.012``, ``± 1,234``; empty if it is not known."""
    if error is None:
        return ""
    return f"± {error:,.0f}" if error >= 99.5 else f"± {error:#.2g}".rstrip(".")


@dataclass(frozen=True)
class Metric:
    """A metric of an assessment."""

    name: str  #: its key: ``hellaswag``
    title: str  #: for people: ``HellaSwag``
    group: Group  #: perplexities, accuracies and generation are averaged by group
    unit: str  #: ``perplexity``, ``%``, ``nats``, ``tokens/s``, ``bytes``, ``× dense`` …
    higher_is_better: bool


def error_of_median(repeats: Sequence[float]) -> float | None:
    """Return the standard error of the median of repeats, as if they were normal; None with one."""
    return math.sqrt(math.pi / 2) * stdev(repeats) / math.sqrt(len(repeats)) if len(repeats) > 1 else None


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs, and where all of one side are the same."""
    if len(one) < 3 or 1 in (len({*one}), len({*other})):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)
