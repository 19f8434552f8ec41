"""The unit of work: some masks, or a statistic, on one shard, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import last_line
from raysearch.evaluation.pool_report import PoolReport

if TYPE_CHECKING:  # light, since it is what a replica's process reads first
    from raysearch.calibration.batch import Batch
    from raysearch.calibration.calibration import Calibration
    from raysearch.evaluation.replica import Replica


@dataclass(frozen=True)
class Unit:
    """Masks to evaluate on a shard: what a replica is asked, what is retried, what the ledger writes at once.

    Args:
        calibration: The fingerprint of the one that the shard is of.
        shard: Its number.
        masks: What to evaluate.
    """

    calibration: str
    shard: int
    masks: tuple[Mask, ...]

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What it answers."""
        return self.masks

    def batches(self, calibration: Calibration) -> Sequence[Batch]:
        """The samples it is on."""
        return calibration.shards[self.shard : self.shard + 1]

    @property
    def kind(self) -> Hashable:
        """What takes about as long, by size."""
        return self.calibration

    @property
    def size(self) -> int:
        """How much of its kind it is."""
        return len(self.masks)

    def __str__(self) -> str:
        return f"{len(self.masks)} mask(s) on shard {self.shard}"


@dataclass(frozen=True)
class Survey:
    """A statistic to measure of the dense model, on a shard; on all of them if samples cannot be told apart."""

    calibration: str
    shard: int
    statistic: Statistic

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What it answers."""
        return (self.statistic,)

    def batches(self, calibration: Calibration) -> Sequence[Batch]:
        """The samples it is on."""
        shards = calibration.shards
        return shards[self.shard : self.shard + 1] if self.statistic.by_sample else shards

    @property
    def kind(self) -> Hashable:
        """See `Unit`."""
        return self.calibration, self.statistic

    @property
    def size(self) -> int:
        """See `Unit`."""
        return 1

    def __str__(self) -> str:
        return f"{self.statistic} on " + (f"shard {self.shard}" if self.statistic.by_sample else "all shards")


Task = Unit | Survey


@dataclass(frozen=True)
class UnitResult:
    """A replica's answer.

    Args:
        values: Float64. By mask: the summed loss of each sample of the shard, nats, [B]. By statistic: as `Statistic`
            states, [B or 1, …].
        layer_forwards: Layers run on the shard.
        head_forwards: Times the final norm and head ran on it.
        layer_tokens: Tokens that went through layers, padding included, each once a layer.
        packed: Whether choices shared their prompt; None where there are none.
        seconds: Spent computing.
        samples_at_once: How many went through the model together, where memory did not hold the shard; None where it
            did.
    """

    values: Mapping[Subject, npt.NDArray[np.float64]]
    layer_forwards: int
    head_forwards: int
    layer_tokens: int
    packed: bool | None
    seconds: float
    samples_at_once: int | None = None


class Job(Protocol):
    """Whatever else a resident model is good for, such as an assessment: hashable, and pickled on its way."""

    @property
    def kind(self) -> Hashable:
        """See `Unit`."""
        return type(self)

    @property
    def size(self) -> int:
        """See `Unit`."""
        return 1

    @property
    def is_unit(self) -> bool:
        """Whether it is one in another guise, and so takes no longer than units do."""
        return False

    def run(self, replica: Replica) -> Any:
        """What comes of it, pickled on its way back."""
        ...


#: Cuts a unit for so many replicas: parts, and small ends for the end of a round; see `raysearch.evaluation.cutting`.
Cutter = Callable[[Unit, float], tuple[Sequence[Unit], Sequence[Unit]]]


class Pool(Protocol):
    """Replicas that answer units. Which replica answers which unit never changes a number."""

    @property
    def n_replicas(self) -> int:
        """How many are ready to be asked."""
        ...

    @property
    def report(self) -> PoolReport:
        """How the replicas have fared so far."""
        ...

    def run(self, units: Sequence[Task], cutter: Cutter | None = None) -> Iterator[tuple[Task, UnitResult] | None]:
        """Answers every unit once, in whatever order they get done; None now and then while none gets done.

        Args:
            units: What is asked.
            cutter: Cuts a unit in pieces, which are then answered in its place, where that uses more replicas.

        Raises:
            EvaluationError: A unit failed `MAX_ATTEMPTS` times.
        """
        ...

    def perform(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Does every job once, in whatever order they get done.

        Raises:
            EvaluationError: A job failed `MAX_ATTEMPTS` times.
        """
        ...

    def close(self) -> None:
        """Frees the replicas. Closing twice is harmless."""
        ...


#: How often a unit is tried before its failure ends the search.
MAX_ATTEMPTS = 3


def unit_failure(unit: Task | Job, error: BaseException) -> str:
    """One sentence on a unit or a job that failed for good."""
    return f"{unit} failed {MAX_ATTEMPTS} times; the last cause: {type(error).__name__}: {last_line(error)}"
