"""A measured number with its uncertainty, and what it is a measure of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["perplexity", "accuracy", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number, and its standard error where one is known, in the same unit."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Metric:
    """Something that a checkpoint was assessed by.

    Args:
        name: Its key: ``hellaswag``.
        title: For people: ``HellaSwag``.
        group: What it belongs to; a group of perplexities, and one of accuracies, is averaged.
        unit: ``perplexity``, ``%``, ``tokens/s``, ``bytes``, ``× dense`` …
        higher_is_better: Whether more is better.
    """

    name: str
    title: str
    group: Group
    unit: str
    higher_is_better: bool


def finite(value: Any) -> Any:
    """A value as JSON can say it: numbers in it that are infinite, or none at all, are null."""
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
