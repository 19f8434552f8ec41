"""Bayesian optimisation over masks of M layers.

Source: the prior-guided BO of Kim et al. 2026 (arXiv 2604.24938), section 4.2: 200 trials, 10 of them random; the
single-layer ablation losses s_i initialise the surrogate. The paper names no surrogate. Here it is a Gaussian process
on Hamming distance around a trend in the sum of s_i (`hamming_gp`). The acquisition function is log expected
improvement (Jones et al. 1998); it is maximised by swapping layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.searchers.base import Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.hamming_gp import Hyperparameters, Posterior, fit, log_expected_improvement
from raysearch.searchers.toolbox.priors import Prior, layer_costs
from raysearch.searchers.toolbox.subsets import all_masks, cheapest_mask, draw_mask, draw_masks, overlaps, swaps

Array = NDArray[np.float64]

_REFIT = 5  # masks between two fits of the hyperparameters
_STARTS = 3  # local searches from the best known masks; the same number start from random masks
_SMALL = 4096  # in spaces up to this size (or twice the trials), every mask is scored by the surrogate


@dataclass(frozen=True)
class BayesianSearcher(Searcher):
    """Proposes the masks of highest expected improvement under a Gaussian process.

    It costs `trials` evaluations. The ablation prior costs F more for F removable layers. The search ends early when
    every mask has been proposed. A failed mask counts as a trial with the worst loss.

    Args:
        trials: Masks of M layers to score, including the initial ones, at least 1.
        initial: How many of them are drawn at random before the surrogate is used, at least 1.
        batch: Masks per round, at least 1. Each mask of a round is chosen as if the masks chosen before it had the loss
            that the surrogate predicts (the "kriging believer", Ginsbourger et al. 2010).
        prior: The mean of the surrogate. It follows the sum of the costs of the single layers: "ablation" (single-layer
            losses) or "influence" (Block Influence, from one dense pass). With "none" it is constant.
        cheapest: Whether the mask of the M cheapest layers is added to the first masks. It needs a prior. With the
            ablation prior it is the one-shot mask, so the search never ends with a worse mask.
    """

    stochastic = True

    trials: PositiveInt = 200
    initial: int = 10
    batch: PositiveInt = 1
    prior: Prior = "ablation"
    cheapest: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.initial <= self.trials:
            raise UserError(
                f"searcher.initial={self.initial} is not a part of searcher.trials={self.trials}; use 1..{self.trials}"
            )

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        costs = yield from layer_costs(problem, self.prior)
        initial = [cheapest_mask(problem, costs)] if self.cheapest and self.prior != "none" else []
        initial += draw_masks(problem, rng, min(self.initial, self.trials - len(initial)), initial)

        scores = Scores(Round([]), {})
        surrogate = Surrogate(problem, compress(costs), scan=problem.n_solutions <= max(_SMALL, 2 * self.trials))
        proposed = initial
        while proposed:
            scores |= yield Round(proposed)
            surrogate.learn({**scores.losses, **dict.fromkeys(scores.failed, np.nan)})
            n_known = len(scores.outcomes)
            n_new = min(self.batch, self.trials - n_known, problem.n_solutions - n_known)
            proposed = surrogate.propose(n_new, rng)
        return scores.best(1)[0]


def compress(losses: Array) -> Array:
    """Return log(1 + (L - min L) / (median L - min L)), which is linear near the best loss and logarithmic far from it.

    The order of the losses stays the same. Losses of masks have heavy tails (one wrong layer costs more than all the
    other layers together) and may be negative (margins), and only their lower end matters. A failed evaluation (NaN)
    becomes the worst loss.
    """
    if np.isnan(losses).all():
        return np.zeros_like(losses)
    excess = np.where(np.isnan(losses), np.nanmax(losses), losses) - np.nanmin(losses)
    return np.log1p(excess / (np.median(excess) or excess.max() or 1.0))


class Surrogate:
    """A Gaussian process that proposes the masks of highest expected improvement.

    Masks are rows of bits over the removable layers.

    Args:
        problem: The space of legal masks.
        costs: The compressed cost of each removable layer, for the trend [F]; zeros for a constant trend.
        scan: Whether all masks are compared, instead of only those that swaps reach.
    """

    def __init__(self, problem: Problem, costs: Array, scan: bool) -> None:
        self._problem = problem
        self._costs = costs
        self._hyper = Hyperparameters(length=float(problem.n_remove))
        self._fitted_at = 0  # the number of losses at the last fit of the hyperparameters
        self._all_rows = self._bits(all_masks(problem)) if scan else None
        self._overlaps = overlaps(problem)

    def learn(self, losses: dict[Mask, float]) -> None:
        """Update with the losses of all masks proposed so far; a NaN is a failure."""
        self._seen = self._bits(list(losses))
        targets = compress(np.array(list(losses.values())))
        self._targets = (targets - targets.mean()) / (targets.std() or 1.0)
        self._fit_trend()
        if len(losses) >= self._fitted_at + _REFIT:
            self._hyper = fit(self._distances(self._seen), self._residuals(), self._hyper)
            self._fitted_at = len(losses)

    def propose(self, count: int, rng: np.random.Generator) -> list[Mask]:
        """Return the new masks of highest expected improvement.

        Args:
            count: How many masks to return. Each is chosen as if the masks before it had their predicted losses.
            rng: It draws the random masks from which local searches start.

        Returns:
            The masks, best first.
        """
        masks = []
        for _ in range(count):
            self._posterior = Posterior.of(self._hyper, self._distances(self._seen), self._residuals())
            if self._all_rows is None:
                row = self._climb(rng)
            else:
                row = self._all_rows[np.argmax(self._improvement(self._all_rows))]
            predicted, _ = self._posterior.predict(self._distances(row[None]))
            self._targets = np.append(self._targets, predicted + self._trend(row[None]))
            self._seen = np.vstack([self._seen, row])
            masks.append(Mask.of(*np.array(self._problem.free)[row > 0].tolist()))
        return masks

    def _climb(self, rng: np.random.Generator) -> Array:
        """Return the best new mask that steepest ascent by swaps reaches from the best known masks and random ones."""
        lowest = self._seen[np.argsort(self._targets, kind="stable")[:_STARTS]]
        while True:
            random_masks = [draw_mask(self._problem, rng) for _ in range(_STARTS)]
            rows = np.vstack([lowest, self._bits(random_masks)])
            improvement = self._ascend(rows)
            best = int(improvement.argmax())
            if improvement[best] > -np.inf:
                return rows[best]
            # All masks on the way were known. There are new masks, and other random masks lead to them.

    def _ascend(self, rows: Array) -> Array:
        """Move each row by the best swap while that is an improvement; return the improvement of each row."""
        improvement = self._improvement(rows)  # -inf for known masks, so that any new mask is an improvement
        climbing = np.arange(len(rows))
        while len(climbing):
            swapped = swaps(rows[climbing])
            swapped_improvement = self._improvement(swapped.reshape(-1, swapped.shape[-1])).reshape(swapped.shape[:2])
            best = swapped_improvement.argmax(axis=1)
            best_improvement = swapped_improvement[np.arange(len(climbing)), best]
            up = best_improvement > improvement[climbing]
            rows[climbing[up]] = swapped[up, best[up]]
            improvement[climbing[up]] = best_improvement[up]
            climbing = climbing[up]
        return improvement

    def _improvement(self, rows: Array) -> Array:
        """Return the log expected improvement of each row, -inf for known masks and for those with overlapping sites.

        The values are rounded, so that rounding errors decide no tie.
        """
        distances = self._distances(rows)
        mean, deviation = self._posterior.predict(distances)
        value = log_expected_improvement(mean + self._trend(rows), deviation, float(self._targets.min()))
        excluded = distances.min(axis=1) == 0
        if self._problem.has_overlaps:
            excluded |= np.einsum("mn,mn->m", rows @ self._overlaps, rows) > 0
        return np.where(excluded, -np.inf, np.round(value, 9))

    def _fit_trend(self) -> None:
        """Fit a ridge regression of the targets (mean 0) on the summed costs, with a penalty of one observation."""
        sums = self._seen @ self._costs
        centred = sums - sums.mean()
        spread = float(centred @ centred)
        self._slope = 0.0 if spread < 1e-12 else float(centred @ self._targets) / (spread * (1 + 1 / len(sums)))
        self._intercept = -self._slope * float(sums.mean())

    def _trend(self, rows: Array) -> Array:
        return self._intercept + self._slope * (rows @ self._costs)

    def _residuals(self) -> Array:
        return self._targets - self._trend(self._seen)

    def _distances(self, rows: Array) -> Array:
        """Return Hamming distances to the known masks. Masks have M layers, so each layer not shared counts twice."""
        return 2 * (self._problem.n_remove - rows @ self._seen.T)

    def _bits(self, masks: list[Mask]) -> Array:
        columns = {layer: column for column, layer in enumerate(self._problem.free)}
        bits = np.zeros((len(masks), len(columns)))
        for row, mask in zip(bits, masks, strict=True):
            row[[columns[layer] for layer in mask]] = 1
        return bits
