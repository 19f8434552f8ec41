"""A measured number with its uncertainty, and what it is a measure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
