"""Compares the mask of a search with the other masks that it evaluated, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.trial import Trial
from raysearch.evaluation.screening import shard_order
from raysearch.ledger.ledger import Ledger
from raysearch.searching.separation import CONFIDENCE, Separation
from raysearch.stats.ratio import standard_error

_AT_ONCE = 1000  # how many masks have their samples in memory


@dataclass(frozen=True)
class _LossGap:
    """The loss of a mask minus that of another mask, with its standard error."""

    mean: float
    error: float
    n_samples: int

    def is_above_zero(self, probability_of_error: float) -> bool:
        """Return whether the difference is significantly above zero, by Student's t."""
        from scipy.special import stdtrit

        return self.mean > stdtrit(self.n_samples - 1, 1 - probability_of_error) * self.error


def separation_of(
    mask: Mask, trials: Sequence[Trial], calibration: Calibration, ledger: Ledger, problem: Problem
) -> Separation | None:
    """Compare the mask of a search with the other masks of its size.

    Args:
        mask: The mask; it is among the trials.
        trials: The trials of the search.
        calibration: The calibration of the search.
        ledger: Contains the losses of samples.
        problem: The problem of the search.

    Returns:
        The comparison; None if no other mask was evaluated, or if there is no standard error, since the loss is a sum,
        or there is one sample.
    """
    if calibration.measure.per == "set" or calibration.n_samples < 2:
        return None
    shards_seen = _shards_seen(trials, calibration.n_shards)
    reference, rivals = _rivals(mask, {trial.mask: trial for trial in trials if trial.mask in shards_seen}, problem)
    if not rivals:
        return None
    differences = [*_differences(reference, {rival: shards_seen[rival] for rival in rivals}, calibration, ledger)]
    (over_dense,) = _differences(Mask(), {mask: calibration.n_shards}, calibration, ledger)
    share = (1 - CONFIDENCE) / (len(differences) + 1)
    not_worse = [difference for difference in differences if not difference.is_above_zero(share)]
    below_dense: Literal["within noise", "beyond noise"] | None = None
    if over_dense.mean < 0:
        gain = _LossGap(-over_dense.mean, over_dense.error, over_dense.n_samples)
        below_dense = "beyond noise" if gain.is_above_zero(share) else "within noise"
    return Separation(
        reference=reference,
        by_layer=reference != mask,
        n_others=len(rivals),
        n_not_worse=len(not_worse),
        n_samples=calibration.n_samples,
        samples_needed=_samples_needed(not_worse, share),
        below_dense=below_dense,
        space=problem.space,
    )


def _shards_seen(trials: Sequence[Trial], n_shards: int) -> dict[Mask, int]:
    """Return the number of shards on which each mask was evaluated; failed masks are left out."""
    seen: dict[Mask, int] = {}
    for trial in trials:
        if trial.loss is not None:
            seen[trial.mask] = n_shards
        elif trial.screened is not None:
            seen.setdefault(trial.mask, round(trial.screened.share * n_shards))
    return seen


def _rivals(mask: Mask, trials: Mapping[Mask, Trial], problem: Problem) -> tuple[Mask, list[Mask]]:
    """Return the reference of the comparison, and the masks that are compared with it."""
    same_size = [rival for rival in trials if problem.size_of(rival) == problem.size_of(mask) and rival != mask]
    indices = problem.sites.indices_of(mask)
    assert indices is not None, f"{mask} has no sites of {problem.sites}"
    if same_size or len(indices) < 2:
        return mask, same_size
    singles = [problem.sites.mask_of(Mask.of(index)) for index in indices]
    losses = {single: trial.loss for single in singles if (trial := trials.get(single)) and trial.loss is not None}
    if len(losses) < len(singles):
        return mask, []
    worst = max(losses, key=lambda single: (losses[single], single))
    others = {problem.sites.mask_of(Mask.of(index)) for index in problem.allowed_with(indices)}
    return worst, [rival for rival in trials if rival in others]


def _differences(
    reference: Mask, shards_seen: Mapping[Mask, int], calibration: Calibration, ledger: Ledger
) -> Iterator[_LossGap]:
    """Yield the difference of each mask from the reference, on the shards on which the mask was evaluated."""
    order = shard_order(calibration)
    reference_losses = ledger.evaluations(calibration.fingerprint, [reference])[reference]
    all_masks = [*shards_seen]
    for start in range(0, len(all_masks), _AT_ONCE):
        masks = all_masks[start : start + _AT_ONCE]
        losses = ledger.evaluations(calibration.fingerprint, masks)
        for mask in masks:
            shards = order[: shards_seen[mask]]
            samples = np.concatenate([losses[mask][shard] - reference_losses[shard] for shard in shards])
            weights = np.concatenate([calibration.weights(shard) for shard in shards])
            mean = float(samples.sum() / weights.sum())
            yield _LossGap(mean, standard_error(samples, weights), len(samples))


def _samples_needed(not_worse: Sequence[_LossGap], probability_of_error: float) -> int | None:
    """Return about how many samples would separate the next best mask, rounded up to two digits; None if none would."""
    from scipy.special import ndtri

    closest = min(not_worse, key=lambda difference: difference.mean, default=None)
    if closest is None or closest.mean <= 0:
        return None
    needed = closest.n_samples * (ndtri(1 - probability_of_error) * closest.error / closest.mean) ** 2
    if not math.isfinite(needed):
        return None
    needed = max(needed, closest.n_samples + 1)
    unit: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / unit) * unit
