"""A mask as one search saw it, and the best of many."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from raysearch.core.mask import Mask
from raysearch.core.screened import Screened


@dataclass(frozen=True)
class Trial:
    """A mask as one search saw it.

    Args:
        index: Its place in the order of proposal, 0-based; the dense model is trial 0, of round 0.
        round: The round that proposed it, 1-based; 0 for the dense model.
        mask: The removed layers.
        loss: In the measure's unit; None if the evaluation failed, or the mask was screened.
        delta: Loss minus the dense model's; None where there is no loss.
        failure: The cause, if it failed.
        cached: Whether the ledger knew it, so that nothing was computed for it.
        parts: The loss on each calibration by its name, where there are several; without those that failed.
        screened: An estimate of the loss, if the mask was dropped or accepted before its evaluation was complete.
    """

    index: int
    round: int
    mask: Mask
    loss: float | None
    delta: float | None
    failure: str | None
    cached: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    screened: Screened | None = None


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have a loss, lowest first; ties in mask order, as searchers break them."""
    scored = [(trial.loss, trial.mask, trial.index, trial) for trial in trials if trial.loss is not None]
    return [trial for *_, trial in sorted(scored, key=lambda item: item[:3])]


def best_by_size(trials: Iterable[Trial], at_most: int, passed: Collection[Mask] = ()) -> tuple[Trial, ...]:
    """Return the best trial of each number of layers from 1 to `at_most`, ascending; of ties, one that is in `passed`.

    Args:
        trials: The trials of a search.
        at_most: The largest number of layers.
        passed: The masks that a greedy search passed through.
    """
    best: dict[int, Trial] = {}
    for trial in ranked(trials):
        first = best.setdefault(len(trial.mask), trial)
        if trial.loss == first.loss and trial.mask in passed:
            best[len(trial.mask)] = trial
    return tuple(best[size] for size in sorted(best) if 1 <= size <= at_most)
