"""How masks are evaluated: plain, validated values, built from the configuration by `raysearch.configuration.build`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.calibration.data import Data
from raysearch.calibration.objectives.base import Objective, StateObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.measure import Measure
from raysearch.errors import UserError
from raysearch.evaluation.pool import PoolFactory
from raysearch.evaluation.screening import Screening
from raysearch.models.spec import ModelSpec


@dataclass(frozen=True)
class CalibrationSpec:
    """An objective and its data."""

    name: str  #: for people: ``perplexity on c4``; of an assessment, its key
    objective: Objective
    data: Data


@dataclass(frozen=True)
class EvaluationSpec:
    """How masks are evaluated: on what model and calibrations, by what replicas, and in what ledger.

    Raises:
        UserError: Losses that are not shares of wrong answers would be scaled by an accuracy, or by a dense model's
            loss that is 0.
    """

    model: ModelSpec
    calibrations: Sequence[CalibrationSpec]  #: one, or several that are weighed or laid side by side
    cluster: PoolFactory  #: opens the pool of replicas
    ledger: Path  #: the SQLite file that keeps every evaluation
    weighting: WeightedObjective | None = None  #: how several calibrations give one loss; None for that of the first
    screening: Screening | None = None  #: how the evaluation of masks is stopped early; None to evaluate all in full

    def __post_init__(self) -> None:
        normalise = None if self.weighting is None else self.weighting.normalise
        for one in self.calibrations:
            if normalise == "accuracy" and one.objective.measure.readout != "accuracy":
                raise UserError(
                    f"objective.normalise=accuracy scales accuracies, but the loss of {one.name} is in "
                    f"{one.objective.measure.unit}; use objective.normalise=spread or dense"
                )
            if normalise == "dense" and isinstance(one.objective, StateObjective) and one.objective.compares:
                raise UserError(
                    f"objective.normalise=dense scales by the dense model's losses, but that of {one.name} is 0, "
                    "as it compares with the dense model; use objective.normalise=spread or none"
                )

    def check_data(self) -> None:
        """Refuse data that are missing or do not fit their objective; at most the first row of each is read."""
        for one in self.calibrations:
            one.data.check_form(one.objective.form)
            one.data.check()

    @property
    def measure(self) -> Measure:
        """The unit of a mask's loss."""
        return self.calibrations[0].objective.measure if self.weighting is None else self.weighting.measure

    @property
    def objectives(self) -> list[Objective]:
        """The objective of each calibration."""
        return [calibration.objective for calibration in self.calibrations]


def identity_of(part: Any) -> dict[str, Any]:
    """Return a configured part (searcher, objective) as plain values: its class and its options."""
    kind = type(part)
    foreign = "" if kind.__module__.startswith("raysearch.") else f"{kind.__module__}."
    return {"type": f"{foreign}{kind.__qualname__}", **dataclasses.asdict(part)}
