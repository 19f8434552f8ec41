"""The conformance suite of the searcher contract (`raysearch.searchers.base`).

A new searcher needs only one YAML file in ``conf/searcher/``: raysearch's tests run this suite for each of these files.
For a searcher outside raysearch, subclass the suite in a test file:

    class TestMySearcher(SearcherSuite):
        def make_searcher(self):
            return MySearcher(width=3)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.core.space import SPACES
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Outcome, Remark, Round, Scores, Searcher
from raysearch.searching.driver import Oracle, run_searcher

ToyLoss = Callable[[Mask], float]

_MOST_ROUNDS = 10_000  # of a search on toy losses; a longer search may never end


class SearcherSuite:
    """Tests that every searcher must pass, on toy losses whose optimum is known. Override `make_searcher`."""

    problem = Problem.create(n_layers=12, remove=4, protect=[0, -1])
    #: Groups of two layers, of which the first stays, and a layer after the last group.
    grouped_problem = Problem.of_model(Sites.of_equal_layers(21), remove=8, protect=[1], limits=PlaceLimits(group=2))

    def make_searcher(self) -> Searcher:
        """Return a fresh searcher."""
        raise NotImplementedError

    def drive(self, loss: ToyLoss, seed: int = 0, problem: Problem | None = None) -> tuple[Mask, list[Round]]:
        """Run the searcher to its end on a toy loss; `run_searcher` checks that all masks are legal.

        Args:
            loss: The toy loss.
            seed: The seed of the search.
            problem: The problem; None for that of the suite.

        Returns:
            The final mask, and the proposed rounds.
        """
        return drive(self.make_searcher(), problem or self.problem, loss, seed)

    def test_keeps_the_contract(self) -> None:
        """Every mask is legal, and the final mask removes M layers and has a score; else `run_searcher` raises."""
        best, rounds = self.drive(additive_loss(self.problem, seed=1))
        assert self.problem.is_solved_by(best)
        assert all(proposed.masks for proposed in rounds), "a round has no mask"

    def test_same_seed_same_rounds(self) -> None:
        """Rounds depend on the problem, the scores and the seed alone."""
        loss = rugged_loss(self.problem, seed=2)
        first = self.drive(loss, seed=7)
        random.seed(123)
        np.random.seed(123)  # noqa: NPY002 - this test is for searchers that read the global generator
        assert self.drive(loss, seed=7) == first, "other rounds for the same seed; draw from `rng` alone"

    def test_replays_from_any_point(self) -> None:
        """A search that was killed and is run again proposes the same rounds and finds the same mask."""
        loss = rugged_loss(self.problem, seed=8)
        searcher = self.make_searcher()  # the same object for all searches: a killed search must leave no state in it
        uninterrupted = drive(searcher, self.problem, loss, seed=9)
        n_evaluations = sum(len(proposed.masks) for proposed in uninterrupted[1])
        for n_before_kill in sorted({0, n_evaluations // 3, n_evaluations - 1}):
            with suppress(KeyboardInterrupt):
                drive(searcher, self.problem, killed_after(n_before_kill, loss), seed=9)
            assert drive(searcher, self.problem, loss, seed=9) == uninterrupted

    def test_needs_no_more_than_it_says(self) -> None:
        """The searcher finds the same mask if all masks are screened whose losses its rounds do not need."""
        for loss in (additive_loss(self.problem, seed=10), rugged_loss(self.problem, seed=11)):
            unscreened, rounds = self.drive(loss)
            if all(proposed.keep is None and proposed.beat is None for proposed in rounds):
                continue  # no mask would be screened
            screened = run_searcher(self.make_searcher(), self.problem, 0, ToyOracle(self.problem, loss, screens=True))
            assert screened == unscreened

    def test_leaves_global_random_numbers_alone(self) -> None:
        """Random numbers come from the argument `rng` alone."""
        before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        self.drive(rugged_loss(self.problem, seed=3))
        same = before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
        assert same, "it draws from the global generators; draw from `rng`"

    def test_uses_what_it_says(self) -> None:
        """The mask does not depend on losses if `uses_objective` is False, nor on seeds if `stochastic` is False."""
        searcher = self.make_searcher()
        if not searcher.uses_objective:
            masks = {self._by_the_same_statistics(additive_loss(self.problem, seed)) for seed in (12, 13)}
            assert len(masks) == 1, "uses_objective is False, but two losses give two masks"
        if not searcher.stochastic:
            masks = {self.drive(rugged_loss(self.problem, seed=14), seed)[0] for seed in range(4)}
            assert len(masks) == 1, "stochastic is False, but seeds give other masks"

    def _by_the_same_statistics(self, loss: ToyLoss) -> Mask:
        """Return the final mask for a loss, with statistics that do not depend on the loss."""
        oracle = ToyOracle(self.problem, loss)
        oracle.measure = ToyOracle(self.problem, additive_loss(self.problem, seed=15)).measure  # type: ignore[method-assign]
        return run_searcher(self.make_searcher(), self.problem, 0, oracle)

    def test_lower_is_better(self) -> None:
        """A searcher that `solves_additive` finds the optimum of an additive loss: the M cheapest layers."""
        loss = additive_loss(self.problem, seed=4)
        best, _ = self.drive(loss)
        mask_of = self.problem.sites.mask_of
        cheapest_first = sorted(self.problem.free, key=lambda site: loss(mask_of(Mask.of(site))))
        optimum = mask_of(Mask.of(*cheapest_first[: self.problem.n_remove]))
        if self.make_searcher().solves_additive:
            assert best == optimum, (
                "not the optimum of an additive loss; if it need not be, say solves_additive = False"
            )

    def test_failures_are_not_losses(self) -> None:
        """A mask that fails is never returned, and does not stop a search that can continue."""
        loss = additive_loss(self.problem, seed=5)
        broken_layer, *_ = self.problem.sites.mask_of(Mask.of(self.problem.free[3]))
        best, _ = self.drive(lambda mask: float("nan") if broken_layer in mask else loss(mask))
        assert broken_layer not in best

    def test_smallest_and_largest_problems(self) -> None:
        """The searcher can remove one layer, and all layers that are not protected."""
        for remove in (1, len(self.problem.free)):
            problem = replace(self.problem, n_remove=remove)
            best, _ = self.drive(additive_loss(problem, seed=6), problem=problem)
            assert problem.is_solved_by(best)

    def test_removes_whole_groups(self) -> None:
        """If layers can only be removed in groups, the search is that of a model whose layers are the groups."""
        loss = additive_loss(self.grouped_problem, seed=16)  # of which the statistics add up, too
        best, rounds = self.drive(loss, problem=self.grouped_problem)
        assert self.grouped_problem.is_solved_by(best)
        mask_of = self.grouped_problem.sites.mask_of
        layers = replace(self.grouped_problem, sites=Sites.of_equal_layers(len(self.grouped_problem.sites)))
        best_groups, rounds_of_groups = self.drive(lambda mask: loss(mask_of(mask)), problem=layers)
        assert best == mask_of(best_groups)
        masks = [[*map(mask_of, proposed.masks)] for proposed in rounds_of_groups]
        assert masks == [[*proposed.masks] for proposed in rounds]

    def test_searches_every_space(self) -> None:
        """The search ends with a legal mask in every space; or it needs distances, which single halves do not have."""
        for space in SPACES.values():
            problem = Problem.create(8, 3, protect=[0, "4m"], space=space)
            loss = additive_loss(problem, seed=17)
            try:
                best, _ = self.drive(loss, problem=problem)
            except UserError as error:
                assert "compares the hidden states before and after neighbouring sites" in str(error)
                continue
            assert problem.is_solved_by(best)
            if not problem.has_overlaps and self.make_searcher().solves_additive:
                assert loss(best) == min(loss(problem.sites.mask_of(mask)) for mask in problem.solutions())

    def test_fills_a_space_of_pairs(self) -> None:
        """The searcher can remove as many pairs as there are without a common half."""
        problem = Problem.create(6, "auto", protect=[2], space=SPACES["pairs"])
        with suppress(UserError):  # no run of pairs is so long
            best, _ = self.drive(additive_loss(problem, seed=18), problem=problem)
            assert best == Mask.of(0, 1, 3, 4, 5)


class ToyOracle(Oracle):
    """Answers a searcher from a toy loss, and records its rounds and remarks.

    A NaN is a failed evaluation. The statistics are computed from the losses of single layers.

    Args:
        problem: The problem of the search.
        loss: The toy loss.
        screens: Whether to screen all masks whose exact losses a round does not need.
    """

    def __init__(self, problem: Problem, loss: ToyLoss, screens: bool = False) -> None:
        self.rounds: list[Round] = []
        self.remarks: list[Remark] = []
        self._problem = problem
        self._loss = loss
        self._screens = screens

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self.rounds.append(proposed)
        assert len(self.rounds) <= _MOST_ROUNDS, f"the search has not ended after {_MOST_ROUNDS:,} rounds"
        scores = toy_scores(proposed, self._loss)
        return screened_scores(scores, self._loss) if self._screens else scores

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        sites = self._problem.sites.layers
        parts = sites.parts if statistic.is_of_halves else sites.sites
        costs = np.array([self._loss(Mask.of_halves(part.halves)) for part in parts]) - self._loss(Mask())
        costs = np.where(np.isnan(costs), 1e3, costs)
        if statistic.of_layers is Statistic.GATE_GRADIENTS:
            return -costs[None]
        if not statistic.is_of_depths:
            return costs[None]
        depth = np.concatenate([[0.0], np.cumsum(costs)])
        return np.abs(depth[:, None] - depth)[None]

    @override
    def note(self, remark: Remark) -> None:
        self.remarks.append(remark)


def drive(searcher: Searcher, problem: Problem, loss: ToyLoss, seed: int = 0) -> tuple[Mask, list[Round]]:
    """Run a searcher to its end on a toy loss.

    Args:
        searcher: The searcher.
        problem: The problem.
        loss: The toy loss.
        seed: The seed of the search.

    Returns:
        The final mask, and the proposed rounds.
    """
    oracle = ToyOracle(problem, loss)
    return run_searcher(searcher, problem, seed, oracle), oracle.rounds


def toy_scores(proposed: Round, loss: ToyLoss) -> Scores:
    """Return the scores of a round.

    Args:
        proposed: The round.
        loss: The toy loss; a NaN is a failed evaluation.

    Returns:
        The scores. A NaN is a failure.
    """
    outcomes: dict[Mask, Outcome] = {}
    for mask in proposed.masks:
        value = loss(mask)
        outcomes[mask] = Failed("the loss is nan") if np.isnan(value) else Loss(value)
    return Scores(proposed, outcomes)


def screened_scores(scores: Scores, loss: ToyLoss) -> Scores:
    """Return scores with all masks dropped or accepted whose exact losses the round does not need.

    Args:
        scores: The scores of all masks of the round.
        loss: The toy loss.

    Returns:
        The scores; for such a mask, its loss is its estimate.
    """
    proposed = scores.round
    if proposed.keep is None and proposed.beat is None:
        return scores
    best = scores.best(proposed.keep or len(scores.losses)) if scores.losses else []
    needed = {*best, Mask()}
    if proposed.beat is not None:
        needed = {mask for mask in needed if loss(mask) < loss(proposed.beat)}
    accepted = set() if proposed.exact else set(best[1:])

    def screened(mask: Mask, outcome: Outcome) -> Outcome:
        match outcome:
            case Loss(value) if mask in accepted:
                return Accepted(value)
            case Loss(value) if mask not in needed:
                return Dropped(value)
        return outcome

    return Scores(proposed, {mask: screened(mask, outcome) for mask, outcome in scores.outcomes.items()})


def killed_after(evaluations: int, loss: ToyLoss) -> ToyLoss:
    """Return a loss that kills the search after a number of evaluations.

    Args:
        evaluations: The number of evaluations that succeed.
        loss: The loss of these evaluations.

    Returns:
        The loss. The call after the last one raises `KeyboardInterrupt`.
    """
    remaining = iter(range(evaluations))

    def lethal(mask: Mask) -> float:
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        return loss(mask)

    return lethal


def additive_loss(problem: Problem, seed: int) -> ToyLoss:
    """Return a loss that is the sum of random costs of the removed layers.

    Args:
        problem: The problem, which has the number of layers.
        seed: The seed of the costs.

    Returns:
        A function of a mask.
    """
    costs, shares = np.random.default_rng(seed).random((2, problem.sites.n_layers))

    def loss(mask: Mask) -> float:
        attentions = [half.layer for half in mask.halves if half.part == "attention"]
        mlps = [half.layer for half in mask.halves if half.part == "mlp"]
        # An attention has a share of its layer's cost, the MLP has the rest.
        of_halves = (costs * shares)[attentions].sum() + (costs * (1 - shares))[mlps].sum()
        return float(costs[list(mask.layers)].sum() + of_halves)

    return loss


def rugged_loss(problem: Problem, seed: int) -> ToyLoss:
    """Return a loss in which interactions of pairs of layers are as large as the costs of single layers.

    Args:
        problem: The problem, which has the number of layers.
        seed: The seed of costs and interactions.

    Returns:
        A function of a mask.
    """
    rng = np.random.default_rng(seed)
    n_layers = problem.sites.n_layers
    costs = rng.random(n_layers)
    pairs = rng.normal(size=(n_layers, n_layers))

    def loss(mask: Mask) -> float:
        layers = np.array(mask.layers, dtype=np.intp)
        return float(costs[layers].sum() + pairs[layers[:, None], layers].sum())

    return loss
