"""What a replica does: units of work, which are some masks or a statistic on one shard, and other jobs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.generation.score import ScoredText

if TYPE_CHECKING:  # light, since a replica's process reads it first
    from raysearch.calibration.batch import Batch
    from raysearch.calibration.calibration import Calibration


class Job(Protocol):
    """Something for a replica to do: a unit or an assessment. Hashable; it and its result may be pickled."""

    @property
    def calibration(self) -> str | None:
        """The fingerprint of the calibration it needs; None if it needs none."""
        return None

    @property
    def kind(self) -> Hashable:
        """Jobs of the same kind take about the same time for their size."""
        return type(self)

    @property
    def size(self) -> int:
        """How much there is to do, in comparison with other jobs of the kind."""
        return 1

    def run(self, replica: Any) -> Any:
        """Do it on a `raysearch.evaluation.replica.Replica`, and return the result."""
        ...


JobT = TypeVar("JobT", bound=Job)


@dataclass(frozen=True)
class _ShardUnit:
    """A job on a shard: handed to one replica, retried as a whole, and written to the ledger at once."""

    calibration: str  #: its fingerprint
    shard: int  #: its number; 0 for a statistic of all shards

    @property
    def kind(self) -> Hashable:
        """Units of the same kind take about the same time for their size."""
        return self.calibration

    @property
    def size(self) -> int:
        """How much there is to do, in comparison with other units of the kind."""
        return 1

    def batches(self, calibration: Calibration) -> Sequence[Batch]:
        """Return the samples to compute on."""
        return calibration.shards[self.shard : self.shard + 1]

    def run(self, replica: Any) -> UnitResult:
        """Do it on a replica."""
        return replica.evaluate(self)


@dataclass(frozen=True)
class MaskUnit(_ShardUnit):
    """Masks to evaluate on a shard."""

    masks: tuple[Mask, ...]

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
        """The statistic alone."""
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
    """A replica's answer to a unit."""

    #: Of each mask the summed loss of every sample of the shard, in the objective's unit, float64, [B]; of a statistic
    #: the rows that `Statistic` describes, [B or 1, …].
    values: Mapping[Subject, npt.NDArray[np.float64]]
    layer_forwards: int  #: how many times a layer ran on the shard
    head_forwards: int  #: and the final norm and head
    layer_tokens: int  #: tokens that went through layers, padding included, counted once for each layer
    packed: bool | None  #: whether choices shared their prompt; None if there are no choices
    seconds: float  #: time spent computing
    #: How many samples went through the model together, if memory did not hold the shard; else None.
    samples_at_once: int | None = None
    #: What was generated for each sample, by mask; empty if nothing was.
    texts: Mapping[Subject, Sequence[ScoredText]] = field(default_factory=dict)
