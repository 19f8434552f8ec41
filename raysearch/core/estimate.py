"""A measured number with its standard error, and the metric it belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["perplexity", "accuracy", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, if known, in the same unit."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of an assessment.

    Args:
        name: Its key: ``hellaswag``.
        title: For people: ``HellaSwag``.
        group: Its group; perplexities and accuracies are averaged by group.
        unit: ``perplexity``, ``%``, ``tokens/s``, ``bytes``, ``× dense`` …
        higher_is_better: Whether more is better.
    """

    name: str
    title: str
    group: Group
    unit: str
    higher_is_better: bool


def finite(value: Any) -> Any:
    """Return a value for JSON: infinite numbers and NaNs in it become null."""
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
