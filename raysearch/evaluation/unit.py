"""The unit of work: some masks on one shard, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from raysearch.mask import Mask


@dataclass(frozen=True)
class Unit:
    """Masks to evaluate on a shard: what a replica is asked, what is retried, what the ledger writes at once."""

    shard: int
    masks: tuple[Mask, ...]


@dataclass(frozen=True)
class UnitResult:
    """A replica's answer.

    Args:
        losses: Summed loss of each sample of the shard, nats, float64 [B], by mask.
        layer_forwards: Layers run on the shard.
        head_forwards: Times the final norm and head ran on it.
        seconds: Spent computing.
    """

    losses: Mapping[Mask, npt.NDArray[np.float64]]
    layer_forwards: int
    head_forwards: int
    seconds: float


class Pool(Protocol):
    """Replicas that answer units. Which replica answers which unit never changes a number."""

    n_replicas: int

    def run(self, units: Sequence[Unit]) -> Iterator[tuple[Unit, UnitResult]]:
        """Answers every unit once, in whatever order they get done.

        Raises:
            EvaluationError: A unit failed `MAX_ATTEMPTS` times.
        """
        ...

    def close(self) -> None:
        """Frees the replicas. Closing twice is harmless."""
        ...


#: How often a unit is tried before its failure ends the search.
MAX_ATTEMPTS = 3


def unit_failure(unit: Unit, error: BaseException) -> str:
    """One sentence on a unit that failed for good."""
    return (
        f"{len(unit.masks)} mask(s) on shard {unit.shard} failed {MAX_ATTEMPTS} times; "
        f"the last cause: {type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else 'no message'}"
    )
