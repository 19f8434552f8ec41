"""Specifications of evaluation: plain, validated values, which `raysearch.configuration.build` builds."""

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
from raysearch.core.scale import Repair
from raysearch.errors import UserError
from raysearch.evaluation.pool import PoolFactory
from raysearch.evaluation.screening import Screening
from raysearch.models.spec import ModelSpec


@dataclass(frozen=True)
class CalibrationSpec:
    """The specification of a calibration.

    Args:
        name: The name shown to users, ``perplexity on c4``; for an assessment, its key.
        objective: The objective.
        data: The data.
        repair: How masks are repaired before they are evaluated.
    """

    name: str
    objective: Objective
    data: Data
    repair: Repair = "none"


@dataclass(frozen=True)
class EvaluationSpec:
    """The specification of how masks are evaluated.

    Args:
        model: The model.
        calibrations: One calibration, or several, whose losses are combined by weights or shown next to each other.
        cluster: Opens the pool of replicas.
        ledger: The SQLite file that stores every evaluation.
        weighting: Combines the losses on several calibrations into one; None to use the loss on the first.
        screening: When the evaluation of a mask stops early; None to evaluate all masks in full.

    Raises:
        UserError: `weighting` scales losses by accuracies, and a loss is not a share of wrong answers; or it scales by
            the dense model's loss, and that is 0. Masks are repaired, and there is a weighting, or an adapter.
    """

    model: ModelSpec
    calibrations: Sequence[CalibrationSpec]
    cluster: PoolFactory
    ledger: Path
    weighting: WeightedObjective | None = None
    screening: Screening | None = None

    def __post_init__(self) -> None:
        normalise = None if self.weighting is None else self.weighting.normalise
        for calibration in self.calibrations:
            objective = calibration.objective
            if normalise == "accuracy" and objective.measure.readout != "accuracy":
                raise UserError(
                    f"objective.normalise=accuracy scales accuracies, but the loss of {calibration.name} is in "
                    f"{objective.measure.unit}; use objective.normalise=spread or dense"
                )
            if normalise == "dense" and isinstance(objective, StateObjective) and objective.compares:
                raise UserError(
                    "objective.normalise=dense scales by the dense model's losses, but that of "
                    f"{calibration.name} is 0, as it compares with the dense model; use objective.normalise=spread "
                    "or none"
                )

        if self.repair != "none":
            self._check_repair()

    def _check_repair(self) -> None:
        """Refuse a repair whose factors would not be those of the exported checkpoint."""
        if self.weighting is not None:
            raise UserError(
                f"repair={self.repair} takes its factors from one calibration, and objective=weighted has "
                f"{len(self.calibrations)}; use one of them alone, or repair=none"
            )
        if self.model.adapter is not None:
            raise UserError(
                f"repair={self.repair} changes weights that model.adapter={self.model.adapter} changes, too; merge the "
                "adapter into the model first, or use repair=none"
            )

    @property
    def repair(self) -> Repair:
        """How masks are repaired before they are evaluated, by the first calibration."""
        return self.calibrations[0].repair if self.calibrations else "none"

    def repaired(self, repair: Repair) -> EvaluationSpec:
        """Return the same evaluation of masks that are repaired before they are evaluated."""
        return dataclasses.replace(
            self, calibrations=[dataclasses.replace(calibration, repair=repair) for calibration in self.calibrations]
        )

    def check_data(self) -> None:
        """Check the data of each calibration; this reads at most the first row.

        Raises:
            UserError: Data are missing, or do not fit their objective.
        """
        for calibration in self.calibrations:
            calibration.data.check_form(calibration.objective.form)
            calibration.data.check()

    @property
    def measure(self) -> Measure:
        """The unit of a mask's loss."""
        return self.calibrations[0].objective.measure if self.weighting is None else self.weighting.measure

    @property
    def objectives(self) -> list[Objective]:
        """The objective of each calibration."""
        return [calibration.objective for calibration in self.calibrations]


def identity_of(part: Any) -> dict[str, Any]:
    """Return a configured part (searcher, objective) as plain values, for ids: its class and its options."""
    part_class = type(part)
    name = part_class.__qualname__
    if not part_class.__module__.startswith("raysearch."):
        name = f"{part_class.__module__}.{name}"
    return {"type": name, **dataclasses.asdict(part)}
