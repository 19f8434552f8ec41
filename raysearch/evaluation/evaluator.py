"""From masks to losses: ask the ledger, run what it does not know on the pool, add the shards in order."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.evaluation.claims import Claims
from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.unit import Pool, Unit
from raysearch.mask import Mask
from raysearch.prefix import plan_prefixes

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
        known = self.ledger.known(self.calibration.fingerprint, wanted)
        computed: set[Mask] = set()  # here, at least in part; what another search computes meanwhile is answered too
        while missing := self._missing(wanted, known):
            claimed = self._claims.take(self.calibration.fingerprint, missing)
            if claimed:
                computed.update(mask for mask, _ in claimed)
                self._run(_units(claimed))
                self._claims.release()
            else:
                self.on_progress(Progress(masks_elsewhere=len({mask for mask, _ in missing})))
                time.sleep(_POLL_S)
            known = self.ledger.known(self.calibration.fingerprint, wanted)
        return {mask: self._total(known[mask], mask not in computed) for mask in wanted}

    def close(self) -> None:
        """Frees the pool and what was claimed. Closing twice is harmless."""
        self._claims.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _missing(self, wanted: Sequence[Mask], known: Mapping[Mask, Mapping[int, object]]) -> list[tuple[Mask, int]]:
        """What the ledger lacks, shard by shard, in mask order so that neighbours share prefixes."""
        return [
            (mask, shard)
            for shard in range(self.calibration.n_shards)
            for mask in sorted(wanted)
            if shard not in known.get(mask, ())
        ]

    def _run(self, units: Sequence[Unit]) -> None:
        """Computes the units; each is in the ledger before the next is looked at."""
        if self._pool is None:
            self._pool = self.make_pool()
        pool = self._pool
        plans = {masks: plan_prefixes(masks, self.n_layers) for masks in {unit.masks for unit in units}}
        layers_planned = self._passes(units, lambda unit: plans[unit.masks].layer_forwards)
        heads_planned = self._passes(units, lambda unit: plans[unit.masks].head_forwards)
        shards_left = Counter(mask for unit in units for mask in unit.masks)
        done: list[Unit] = []
        before = self.meter.layer_forwards, self.meter.head_forwards

        def report() -> None:
            layers = self._passes(done, lambda unit: plans[unit.masks].layer_forwards)
            heads = self._passes(done, lambda unit: plans[unit.masks].head_forwards)
            self.meter.layer_forwards, self.meter.head_forwards = before[0] + layers, before[1] + heads
            masks_done = sum(left == 0 for left in shards_left.values())
            self.on_progress(
                Progress(layers, layers_planned, heads, heads_planned, masks_done, len(shards_left), pool.n_replicas)
            )

        report()
        started, computing = time.perf_counter(), 0.0
        for unit, result in pool.run(units):
            self.ledger.record(self.calibration.fingerprint, unit.shard, result.losses)
            done.append(unit)
            shards_left.subtract(unit.masks)
            computing += result.seconds
            report()
        self.meter.computing_s += computing
        self.meter.offered_s += (time.perf_counter() - started) * pool.n_replicas

    def _passes(self, units: Iterable[Unit], forwards: Callable[[Unit], int]) -> float:
        """Forwards over single shards, as passes over the whole calibration (exact: one division)."""
        shards = self.calibration.shards
        return sum(shards[unit.shard].n_samples * forwards(unit) for unit in units) / self.calibration.n_samples

    def _total(self, shards: Mapping[int, npt.NDArray[np.float64]], answered: bool) -> Evaluation:
        """Adds samples and shards in their fixed order, so that the sum never depends on who computed what when."""
        total = 0.0
        for shard in range(self.calibration.n_shards):
            for loss in shards[shard].tolist():
                total += loss
        if not math.isfinite(total):
            return Evaluation(None, f"the loss is {total}", answered)
        return Evaluation(total / self.calibration.n_tokens, None, answered)


def _units(claimed: Iterable[tuple[Mask, int]]) -> list[Unit]:
    """Claimed evaluations as units, shard by shard in the order given."""
    masks_of_shard: dict[int, list[Mask]] = {}
    for mask, shard in claimed:
        masks_of_shard.setdefault(shard, []).append(mask)
    return [
        Unit(shard, tuple(masks[start : start + MAX_MASKS_PER_UNIT]))
        for shard, masks in masks_of_shard.items()
        for start in range(0, len(masks), MAX_MASKS_PER_UNIT)
    ]
