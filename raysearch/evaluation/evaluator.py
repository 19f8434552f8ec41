"""From masks to losses: ask the ledger, run what it does not know on the pool, add the shards in order.

Statistics of the dense model take the same way.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.errors import EvaluationError
from raysearch.evaluation.claims import Claims
from raysearch.evaluation.ledger import Ledger, SubjectT
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import Pool, Subject, Survey, Task, Unit
from raysearch.mask import Mask
from raysearch.prefix import plan_prefixes
from raysearch.statistic import Statistic

#: Masks in one unit at most: a larger round is cut, along mask order, so that a kill loses little.
MAX_MASKS_PER_UNIT = 1024

#: How often to look whether another process has finished what it claimed.
_POLL_S = 0.2


@dataclass(frozen=True)
class Evaluation:
    """What one mask loses on the whole calibration.

    Args:
        loss: Nats per scored token; None if the evaluation failed.
        failure: The cause, if it failed.
        answered: Whether the ledger knew all of it.
    """

    loss: float | None
    failure: str | None
    answered: bool


@dataclass
class Meter:
    """What this process has computed. A forward is a pass of one layer, or of the head, over the whole calibration."""

    layer_forwards: float = 0.0
    head_forwards: float = 0.0
    computing_s: float = 0.0
    offered_s: float = 0.0

    @property
    def busy_share(self) -> float:
        """Share of the replicas' time spent computing, 0 … 1."""
        return min(1.0, self.computing_s / self.offered_s) if self.offered_s else 0.0


@dataclass(frozen=True)
class Progress:
    """How far the round in hand is, in the forwards that its plans state; or that another search computes the rest."""

    layer_forwards: float = 0.0
    layer_forwards_planned: float = 0.0
    head_forwards: float = 0.0
    head_forwards_planned: float = 0.0
    masks_done: int = 0
    masks_planned: int = 0
    n_replicas: int = 0
    masks_elsewhere: int = 0
    computing_s: float = 0.0  # of all replicas, since the search began


@dataclass
class Evaluator:
    """Answers "what do these masks lose?" with as little work as possible.

    Args:
        calibration: What masks are judged on.
        n_layers: N, the layers of the dense model.
        ledger: What is already known, and where new evaluations go first.
        make_pool: Loads the replicas; called when the ledger cannot answer for the first time.
        on_progress: Told how far a round is.
    """

    calibration: Calibration
    n_layers: int
    ledger: Ledger
    make_pool: Callable[[], Pool]
    on_progress: Callable[[Progress], None] = lambda progress: None
    meter: Meter = field(default_factory=Meter)
    _pool: Pool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.ledger)

    def evaluate(self, masks: Iterable[Mask]) -> dict[Mask, Evaluation]:
        """Evaluates masks on the whole calibration.

        Args:
            masks: Distinct masks.

        Returns:
            An evaluation for each, in the order given.

        Raises:
            EvaluationError: A unit failed for good.
        """
        wanted = tuple(masks)
        known, computed = self._complete(sorted(wanted), range(self.calibration.n_shards))
        return {mask: self._total(known[mask], mask not in computed) for mask in wanted}

    def measure(self, statistic: Statistic) -> npt.NDArray[np.float64]:
        """Measures a statistic of the dense model on the whole calibration.

        Returns:
            Its rows, float64, of the shape that `Statistic` states.

        Raises:
            EvaluationError: A shard failed for good, or the statistic is not finite.
        """
        shards = range(self.calibration.n_shards) if statistic.by_sample else range(1)
        known, _ = self._complete((statistic,), shards)
        rows = np.concatenate([known[statistic][shard] for shard in shards])
        rows = rows.reshape(-1, *statistic.shape(self.n_layers))
        if not np.isfinite(rows).all():
            raise EvaluationError(f"{statistic} is not finite; use model.dtype=bfloat16 or float32")
        return rows

    def close(self) -> None:
        """Frees the pool and what was claimed. Closing twice is harmless."""
        self._claims.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _complete(
        self, wanted: Sequence[SubjectT], shards: Sequence[int]
    ) -> tuple[Mapping[SubjectT, Mapping[int, npt.NDArray[np.float64]]], set[SubjectT]]:
        """All that is wanted on these shards, once the ledger has it, and what was computed for that.

        Masks come in mask order, so that neighbours in a large round, which is cut, share prefixes.
        """
        known = self.ledger.known(self.calibration.fingerprint, wanted)
        computed: set[SubjectT] = set()  # here, in part; what another search computes meanwhile is answered too
        while missing := _missing(wanted, shards, known):
            claimed = self._claims.take(self.calibration.fingerprint, missing)
            if claimed:
                computed.update(subject for subject, _ in claimed)
                self._run(_tasks(claimed))
                self._claims.release()
            else:
                self.on_progress(Progress(masks_elsewhere=len({subject for subject, _ in missing})))
                time.sleep(_POLL_S)
            known = self.ledger.known(self.calibration.fingerprint, wanted)
        return known, computed

    def _run(self, tasks: Sequence[Task]) -> None:
        """Computes the tasks; each is in the ledger before the next is looked at."""
        if self._pool is None:
            self._pool = self.make_pool()
        pool = self._pool
        costs = self._costs(tasks)
        layers_planned, heads_planned = self._passes(costs.values())
        shards_left = Counter(subject for task in tasks for subject in task.subjects)
        done: list[Task] = []
        before = self.meter.layer_forwards, self.meter.head_forwards

        def report() -> None:
            layers, heads = self._passes(costs[task] for task in done)
            self.meter.layer_forwards, self.meter.head_forwards = before[0] + layers, before[1] + heads
            masks_done = sum(left == 0 for left in shards_left.values())
            self.on_progress(
                Progress(
                    *(layers, layers_planned, heads, heads_planned, masks_done, len(shards_left), pool.n_replicas),
                    computing_s=self.meter.computing_s,
                )
            )

        report()
        started = time.perf_counter()
        for task, result in pool.run(tasks):
            self.ledger.record(self.calibration.fingerprint, task.shard, result.values)
            done.append(task)
            shards_left.subtract(task.subjects)
            self.meter.computing_s += result.seconds
            report()
        self.meter.offered_s += (time.perf_counter() - started) * pool.n_replicas

    def _costs(self, tasks: Iterable[Task]) -> dict[Task, tuple[int, int]]:
        """What each task runs: layer-forwards and head-forwards of single samples."""
        plan = functools.cache(lambda masks: plan_prefixes(masks, self.n_layers))  # the same masks on every shard
        costs: dict[Task, tuple[int, int]] = {}
        for task in tasks:
            samples = self.calibration.shards[task.shard].n_samples
            if isinstance(task, Unit):
                costs[task] = samples * plan(task.masks).layer_forwards, samples * len(task.masks)
            else:
                samples = samples if task.statistic.by_sample else self.calibration.n_samples
                passes = task.statistic.passes
                costs[task] = samples * passes * self.n_layers, samples * task.statistic.needs_gradients
        return costs

    def _passes(self, costs: Iterable[tuple[int, int]]) -> tuple[float, float]:
        """Layer- and head-forwards of single samples, as passes over the whole calibration (exact: one division)."""
        layers, heads = map(sum, zip(*costs, strict=True)) if (costs := list(costs)) else (0, 0)
        return layers / self.calibration.n_samples, heads / self.calibration.n_samples

    def _total(self, shards: Mapping[int, npt.NDArray[np.float64]], answered: bool) -> Evaluation:
        nats = total(shards, self.calibration.n_shards)
        if not math.isfinite(nats):
            return Evaluation(None, f"the loss is {nats}", answered)
        return Evaluation(nats / self.calibration.n_tokens, None, answered)


def _missing(
    wanted: Sequence[SubjectT], shards: Iterable[int], known: Mapping[SubjectT, Mapping[int, object]]
) -> list[tuple[SubjectT, int]]:
    """What the ledger lacks, shard by shard."""
    return [(subject, shard) for shard in shards for subject in wanted if shard not in known.get(subject, ())]


def _tasks(claimed: Iterable[tuple[Subject, int]]) -> list[Task]:
    """Claimed evaluations as tasks, shard by shard in the order given."""
    surveys: list[Task] = []
    masks_of_shard: dict[int, list[Mask]] = {}
    for subject, shard in claimed:
        if isinstance(subject, Mask):
            masks_of_shard.setdefault(shard, []).append(subject)
        else:
            surveys.append(Survey(shard, subject))
    return surveys + [
        Unit(shard, tuple(masks[start : start + MAX_MASKS_PER_UNIT]))
        for shard, masks in masks_of_shard.items()
        for start in range(0, len(masks), MAX_MASKS_PER_UNIT)
    ]
