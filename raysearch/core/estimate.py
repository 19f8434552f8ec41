"""A measured number with its standard error, and its metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysearch.core.json import Number
from raysearch.text.numbers import with_error

Group = Literal["perplexity", "accuracy", "generation", "degeneration", "failures", "probe", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, if known, in the same unit."""

    value: Number
    error: float | None = None


def estimate_text(estimate: Estimate | None) -> str:
    """Format a number and its standard error, if known, both to the error's second digit; empty for None."""
    return "" if estimate is None else with_error(estimate.value, estimate.error)


@dataclass(frozen=True)
class Metric:
    """A metric of an assessment."""

    name: str  #: the key: ``hellaswag``
    title: str  #: the name in tables: ``HellaSwag``
    group: Group  #: perplexities, accuracies and generation are averaged by group
    unit: str  #: ``perplexity``, ``%``, ``nats``, ``tokens/s``, ``bytes``, ``× dense`` …
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """The title, the unit, and which direction is better: ``HellaSwag (%, higher is better)``."""
        direction = "higher" if self.higher_is_better else "lower"
        return f"{self.title} ({self.unit}, {direction} is better)"
