"""The work of a replica: units, which are masks or a statistic on one shard, and other jobs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.scale import Scales
from raysearch.core.statistic import Statistic, Subject
from raysearch.generation.score import ScoredText

if TYPE_CHECKING:  # the process of a replica imports this module first, so it must be quick
    from raysearch.calibration.batch import Batch
    from raysearch.calibration.calibration import Calibration


class Job(Protocol):
    """A piece of work for a replica: a unit or an assessment. Jobs are hashable; jobs and results can be pickled."""

    @property
    def calibration(self) -> str | None:
        """The fingerprint of the calibration that the job needs; None if it needs none."""
        return None

    @property
    def kind(self) -> Hashable:
        """The kind of the job. The time of jobs of one kind is about proportional to their size."""
        return type(self)

    @property
    def size(self) -> int:
        """The amount of work, relative to other jobs of the kind."""
        return 1

    def run(self, replica: Any) -> Any:
        """Do the job on a `raysearch.evaluation.replica.Replica`, and return the result."""
        ...


JobT = TypeVar("JobT", bound=Job)


@dataclass(frozen=True)
class _ShardUnit:
    """A job on a shard. One replica does it; it is retried, and written to the ledger, as a whole."""

    calibration: str  #: the fingerprint of the calibration
    shard: int  #: the number of the shard; 0 for a statistic of all shards

    @property
    def kind(self) -> Hashable:
        """The kind of the unit. The time of units of one kind is about proportional to their size."""
        return self.calibration

    @property
    def size(self) -> int:
        """The amount of work, relative to other units of the kind."""
        return 1

    def batches(self, calibration: Calibration) -> Sequence[Batch]:
        """Return the batches of samples to compute on."""
        return calibration.shards[self.shard : self.shard + 1]

    def run(self, replica: Any) -> UnitResult:
        """Do the unit on a `raysearch.evaluation.replica.Replica`."""
        return replica.evaluate(self)


@dataclass(frozen=True)
class MaskUnit(_ShardUnit):
    """Masks to evaluate on a shard."""

    masks: tuple[Mask, ...]
    scales: Scales | None = None  #: the factors of their cuts; None if they are not repaired

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The masks."""
        return self.masks

    @property
    @override
    def size(self) -> int:
        return len(self.masks)

    def __str__(self) -> str:
        return f"{len(self.masks)} mask(s) on shard {self.shard}"


@dataclass(frozen=True)
class StatisticUnit(_ShardUnit):
    """A statistic of the dense model to measure on a shard, or on all shards if it is not per sample."""

    statistic: Statistic

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The statistic, as the only subject."""
        return (self.statistic,)

    @property
    @override
    def kind(self) -> Hashable:
        return self.calibration, self.statistic

    @override
    def batches(self, calibration: Calibration) -> Sequence[Batch]:
        return super().batches(calibration) if self.statistic.by_sample else calibration.shards

    def __str__(self) -> str:
        return f"{self.statistic} on " + (f"shard {self.shard}" if self.statistic.by_sample else "all shards")


Unit = MaskUnit | StatisticUnit


@dataclass(frozen=True)
class UnitResult:
    """The result of a unit.

    Args:
        values: For each mask, the summed loss of every sample of the shard, in the objective's unit, float64, [B]; for
            a statistic, the rows that `Statistic` describes, [B or 1, …].
        layer_forwards: The cost of the sites that ran on the shard; a site that ran twice counts twice.
        head_forwards: How many times the final norm and the head ran.
        layer_tokens: The tokens that layers computed, with padding, counted once for each layer.
        packed: Whether choices shared their prompt; None if there are no choices.
        seconds: The time of the computation.
        samples_at_once: The number of samples in a batch, if memory did not hold the shard; else None.
        texts: The text that was generated for each sample, by mask; empty if none was.
    """

    values: Mapping[Subject, npt.NDArray[np.float64]]
    layer_forwards: float
    head_forwards: int
    layer_tokens: int
    packed: bool | None
    seconds: float
    samples_at_once: int | None = None
    texts: Mapping[Subject, Sequence[ScoredText]] = field(default_factory=dict)
