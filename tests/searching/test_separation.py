"""How many masks are not significantly worse than the best, and how many samples would separate them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import ttest_rel

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.screened import Screened
from raysearch.core.trial import Trial
from raysearch.evaluation.screening import shard_order
from raysearch.ledger.ledger import Ledger
from raysearch.searching.separate import separation_of
from raysearch.searching.separation import Separation

DENSE = Mask()
BEST = Mask.of(0, 1)
OTHERS = [Mask.of(0, layer) for layer in range(2, 12)]
Losses = Mapping[Mask, npt.NDArray[np.float64]]


def calibration_of(n_samples: int, name: object = "") -> Calibration:
    """Samples of two scored tokens each, four to a shard."""
    ids = np.ones((n_samples, 3), np.int64)
    scored = np.broadcast_to([False, True, True], ids.shape).copy()
    return Calibration.create(PerplexityObjective(), Batch(ids, scored), 4, {"name": str(name)}, {})


def separate(
    ledger: Ledger, losses: Losses, best: Mask = BEST, screened: Mapping[Mask, Screened] | None = None
) -> Separation | None:
    """Write the losses of samples to the ledger, as a search does, and compare them."""
    calibration = calibration_of(len(losses[best]), len(list(ledger.read("SELECT 1 FROM evaluations"))))
    order = shard_order(calibration)
    screened = screened or {}
    for mask, samples in losses.items():
        share = screened[mask].share if mask in screened else 1.0
        for shard in order[: round(share * len(order))]:
            ledger.record(calibration.fingerprint, shard, {mask: samples[4 * shard : 4 * shard + 4]})
    trials = [
        Trial(index, 1, mask, None, None, None, False, screened=screened[mask])
        if mask in screened
        else Trial(index, 1, mask, float(samples.sum()) / calibration.divisor, None, None, False)
        for index, (mask, samples) in enumerate(losses.items())
    ]
    return separation_of(best, trials, calibration, ledger, Problem.create(12, remove=2))


def draw_losses(rng: np.random.Generator, n_samples: int, effects: Mapping[Mask, float], noise: float = 1.0) -> Losses:
    """Draw the losses of samples: a level that all masks share, the effect of a mask, and independent noise."""
    level = rng.normal(6, 3, n_samples)
    return {mask: level + effect + noise * rng.normal(size=n_samples) for mask, effect in effects.items()}


def test_masks_are_counted_by_paired_tests(ledger: Ledger) -> None:
    effects = {DENSE: -2.0, BEST: 0.0, **{mask: 0.15 * number for number, mask in enumerate(OTHERS, start=1)}}
    for seed in range(20):
        losses = draw_losses(np.random.default_rng(seed), 64, effects)
        best = min([BEST, *OTHERS], key=lambda mask: losses[mask].sum())
        rivals = [mask for mask in (BEST, *OTHERS) if mask != best]
        separation = separate(ledger, losses, best)
        probabilities = [ttest_rel(losses[mask], losses[best], alternative="greater").pvalue for mask in rivals]
        assert separation is not None
        assert separation.n_others == len(rivals) == 10
        assert separation.n_not_worse == sum(probability >= 0.05 / 11 for probability in probabilities)
        assert (separation.reference, separation.by_layer, separation.below_dense) == (best, False, None)


def test_about_samples_needed_separate_the_best_from_the_next(ledger: Ledger) -> None:
    effects = {DENSE: -2.0, BEST: 0.0, OTHERS[0]: 0.25, OTHERS[1]: 3.0}
    needed = []
    for seed in range(40):
        separation = separate(ledger, draw_losses(np.random.default_rng(seed), 64, effects))
        assert separation is not None
        assert 64 not in (separation.samples_needed, separation.n_samples + 1)
        if separation.n_not_worse and separation.samples_needed:
            needed.append(separation.samples_needed)
    middle = 4 * round(float(np.median(needed)) / 4)
    larger = [separate(ledger, draw_losses(np.random.default_rng(100 + seed), middle, effects)) for seed in range(40)]
    separated = sum(separation is not None and separation.n_not_worse == 0 for separation in larger)
    assert 10 <= separated <= 38, "about half of the time, since the estimate is from few samples"


def test_screened_masks_are_compared_on_their_evaluated_samples(ledger: Ledger) -> None:
    losses = dict(draw_losses(np.random.default_rng(0), 64, {DENSE: -2.0, BEST: 0.0, OTHERS[0]: 2.0, OTHERS[1]: 2.0}))
    screened = {OTHERS[0]: Screened(3.0, 2.5, 3.5, share=0.25)}
    later = [4 * shard + place for shard in shard_order(calibration_of(64, 0))[4:] for place in range(4)]
    losses[OTHERS[0]][later] = 0.0  # the search has not evaluated these
    separation = separate(ledger, losses, screened=screened)
    assert separation is not None
    assert (separation.n_others, separation.n_not_worse) == (2, 0)
    assert separation.samples_needed is None
    assert str(separation) == (
        "Not significantly worse than this mask on these 64 samples (95% confidence): none of the 2 other masks of 2 "
        "layers"
    )


def test_without_another_mask_of_its_size_layers_are_compared(ledger: Ledger) -> None:
    effects = {DENSE: -2.0, **{Mask.of(layer): 0.01 * layer + (layer > 6) for layer in range(12)}, BEST: 1.0}
    separation = separate(ledger, draw_losses(np.random.default_rng(0), 64, effects, noise=0.5))
    assert separation is not None
    assert separation.by_layer
    assert len(separation.reference) == 1
    assert separation.n_others == 10
    assert separation.n_not_worse == 5
    worst = separation.reference.layers[0]
    assert str(separation).startswith(
        f"Each alone, not significantly costlier than layer {worst}, the costliest of those removed, on these 64 "
        "samples (95% confidence): 5 of the 10 layers that stay"
    )
    assert separate(ledger, draw_losses(np.random.default_rng(0), 64, {DENSE: 0.0, BEST: 1.0})) is None


@pytest.mark.parametrize(("gain", "below_dense"), [(-1.0, "beyond noise"), (-0.05, "within noise"), (1.0, None)])
def test_a_loss_below_the_dense_models_is_compared_with_noise(
    ledger: Ledger, gain: float, below_dense: str | None
) -> None:
    losses = dict(draw_losses(np.random.default_rng(0), 64, {DENSE: 0.0, BEST: 0.0, OTHERS[0]: 3.0}))
    losses[BEST] += gain - (losses[BEST] - losses[DENSE]).mean()
    separation = separate(ledger, losses)
    assert separation is not None
    assert separation.below_dense == below_dense
