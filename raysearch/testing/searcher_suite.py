"""The conformance suite of the searcher contract (`raysearch.searchers.base`).

A new searcher is tested by one YAML file in ``conf/searcher/``: raysearch's own tests run this suite over all of them.
For a searcher kept elsewhere, subclass the suite in a test file:

    class TestMySearcher(SearcherSuite):
        def make_searcher(self):
            return MySearcher(width=3)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Remark, Round, Scores, Searcher
from raysearch.searching.driver import Oracle, run_searcher

Loss = Callable[[Mask], float]

_MOST_ROUNDS = 10_000  # of a search of toy losses; one that goes on may never end


class SearcherSuite:
    """Tests that every searcher must pass, on toy losses whose optimum is known. Override `make_searcher`."""

    problem = Problem.create(n_layers=12, remove=4, protect=[0, -1])

    def make_searcher(self) -> Searcher:
        """Return a fresh searcher."""
        raise NotImplementedError

    def drive(self, loss: Loss, seed: int = 0, problem: Problem | None = None) -> tuple[Mask, list[Round]]:
        """Run the searcher to its end on a toy loss; `run_searcher` checks legality and the final mask."""
        return drive(self.make_searcher(), problem or self.problem, loss, seed)

    def test_keeps_the_contract(self) -> None:
        """Every mask is legal, the found one removes M layers and has a score: `run_searcher` raises otherwise."""
        found, rounds = self.drive(additive_loss(self.problem, seed=1))
        assert self.problem.is_solution(found)
        assert all(proposed.masks for proposed in rounds), "a round has no mask"

    def test_same_seed_same_rounds(self) -> None:
        """Rounds depend on the problem, the scores and the seed alone."""
        loss = rugged_loss(self.problem, seed=2)
        first = self.drive(loss, seed=7)
        random.seed(123)
        np.random.seed(123)  # noqa: NPY002 - a searcher that reads the global generator is what this test is for
        assert self.drive(loss, seed=7) == first, "other rounds for the same seed; draw from `rng` alone"

    def test_replays_from_any_point(self) -> None:
        """Killed at some evaluation and run again, a search asks for the same masks and finds the same one."""
        loss = rugged_loss(self.problem, seed=8)
        searcher = self.make_searcher()  # one object for all of them: nothing of a killed search may stay in it
        whole = drive(searcher, self.problem, loss, seed=9)
        evaluations = sum(len(proposed.masks) for proposed in whole[1])
        for survived in sorted({0, evaluations // 3, evaluations - 1}):
            with suppress(KeyboardInterrupt):
                drive(searcher, self.problem, killed_after(survived, loss), seed=9)
            assert drive(searcher, self.problem, loss, seed=9) == whole

    def test_needs_no_more_than_it_says(self) -> None:
        """With all masks screened whose losses its rounds do not need, it finds the same mask."""
        for loss in (additive_loss(self.problem, seed=10), rugged_loss(self.problem, seed=11)):
            unscreened, rounds = self.drive(loss)
            if all(proposed.keep is None and proposed.beat is None for proposed in rounds):
                continue  # nothing would be screened
            screened = run_searcher(self.make_searcher(), self.problem, 0, ToyOracle(self.problem, loss, screens=True))
            assert screened == unscreened

    def test_leaves_global_random_numbers_alone(self) -> None:
        """Random numbers come from the generator handed over."""
        before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        self.drive(rugged_loss(self.problem, seed=3))
        same = before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
        assert same, "it draws from the global generators; draw from `rng`"

    def test_uses_what_it_says(self) -> None:
        """Without `uses_objective` every loss gives one mask, without `stochastic` every seed does."""
        searcher = self.make_searcher()
        if not searcher.uses_objective:
            found = {self._by_the_same_statistics(additive_loss(self.problem, seed)) for seed in (12, 13)}
            assert len(found) == 1, "uses_objective is False, but two losses give two masks"
        if not searcher.stochastic:
            found = {self.drive(rugged_loss(self.problem, seed=14), seed)[0] for seed in range(4)}
            assert len(found) == 1, "stochastic is False, but seeds give other masks"

    def _by_the_same_statistics(self, loss: Loss) -> Mask:
        """Return what is found where losses are other ones, and statistics are the same."""
        oracle = ToyOracle(self.problem, loss)
        oracle.measure = ToyOracle(self.problem, additive_loss(self.problem, seed=15)).measure  # type: ignore[method-assign]
        return run_searcher(self.make_searcher(), self.problem, 0, oracle)

    def test_lower_is_better(self) -> None:
        """On an additive loss the optimum, the M cheapest layers, is found, if the searcher `solves_additive`."""
        loss = additive_loss(self.problem, seed=4)
        found, _ = self.drive(loss)
        optimum = Mask.of(*sorted(self.problem.free, key=lambda layer: loss(Mask.of(layer)))[: self.problem.n_remove])
        if self.make_searcher().solves_additive:
            assert found == optimum, (
                "not the optimum of an additive loss; if it need not be, say solves_additive = False"
            )

    def test_failures_are_not_losses(self) -> None:
        """Masks that fail are never returned, and never stop a search that can go on."""
        loss = additive_loss(self.problem, seed=5)
        broken = self.problem.free[3]
        found, _ = self.drive(lambda mask: float("nan") if broken in mask else loss(mask))
        assert broken not in found

    def test_smallest_and_largest_problems(self) -> None:
        """One layer to remove, and every free layer to remove."""
        for remove in (1, len(self.problem.free)):
            problem = Problem.create(self.problem.n_layers, remove, sorted(self.problem.protected))
            found, _ = self.drive(additive_loss(problem, seed=6), problem=problem)
            assert problem.is_solution(found)


class ToyOracle(Oracle):
    """Answers a searcher from a toy loss, where a NaN is a failed evaluation, and keeps its rounds and remarks.

    Its statistics are the losses of single layers. If it `screens`, the only losses are those that a round needs.
    """

    def __init__(self, problem: Problem, loss: Loss, screens: bool = False) -> None:
        self.rounds: list[Round] = []
        self.remarks: list[Remark] = []
        self._problem, self._loss, self._screens = problem, loss, screens

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self.rounds.append(proposed)
        assert len(self.rounds) <= _MOST_ROUNDS, f"it has not ended after {_MOST_ROUNDS:,} rounds"
        scores = toy_scores(proposed, self._loss)
        return screened_scores(proposed, scores, self._loss) if self._screens else scores

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        layers = range(self._problem.n_layers)
        costs = np.array([self._loss(Mask.of(layer)) for layer in layers]) - self._loss(Mask())
        costs = np.where(np.isnan(costs), 1e3, costs)
        if statistic is Statistic.GATE_GRADIENTS:
            return -costs[None]
        if statistic.shape(len(layers)) == (len(layers),):
            return costs[None]
        depth = np.concatenate([[0.0], np.cumsum(costs)])
        return np.abs(depth[:, None] - depth)[None]

    @override
    def note(self, remark: Remark) -> None:
        self.remarks.append(remark)


def drive(searcher: Searcher, problem: Problem, loss: Loss, seed: int = 0) -> tuple[Mask, list[Round]]:
    """Run a searcher to its end on a toy loss; return the mask it found and the rounds it proposed."""
    oracle = ToyOracle(problem, loss)
    return run_searcher(searcher, problem, seed, oracle), oracle.rounds


def toy_scores(proposed: Round, loss: Loss) -> Scores:
    """Answer a round from a toy loss; a NaN is a failed evaluation."""
    losses = {mask: loss(mask) for mask in proposed.masks}
    return Scores(
        {mask: value for mask, value in losses.items() if not np.isnan(value)},
        {mask: "the loss is nan" for mask, value in losses.items() if np.isnan(value)},
        ties=proposed.ties,
    )


def screened_scores(proposed: Round, scores: Scores, loss: Loss) -> Scores:
    """Screen all masks that a round does not need exactly: all but the best, where it needs no other losses."""
    if proposed.keep is None and proposed.beat is None:
        return scores
    best = scores.best(proposed.keep or len(scores.losses)) if scores.losses else []
    needed = {*best, Mask()}
    if proposed.beat is not None:
        needed = {mask for mask in needed if loss(mask) < loss(proposed.beat)}
    accepted = frozenset() if proposed.exact else frozenset(best[1:])
    known = {mask: value for mask, value in scores.losses.items() if mask in needed - accepted}
    others = {mask: value for mask, value in scores.losses.items() if mask not in needed}
    return Scores(known, scores.failed, others, proposed.keep, proposed.ties, accepted)


def killed_after(evaluations: int, loss: Loss) -> Loss:
    """Return the loss for that many evaluations; the next one kills the search."""
    left = iter(range(evaluations))

    def lethal(mask: Mask) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return loss(mask)

    return lethal


def additive_loss(problem: Problem, seed: int) -> Loss:
    """Return a loss in which each layer has a cost of its own, and a mask costs their sum."""
    costs = np.random.default_rng(seed).random(problem.n_layers)
    return lambda mask: float(costs[list(mask)].sum())


def rugged_loss(problem: Problem, seed: int) -> Loss:
    """Return a loss in which pairs of layers interact as strongly as single layers cost."""
    rng = np.random.default_rng(seed)
    costs, pairs = rng.random(problem.n_layers), rng.normal(size=(problem.n_layers, problem.n_layers))

    def loss(mask: Mask) -> float:
        layers = np.array(mask.layers, dtype=np.intp)
        return float(costs[layers].sum() + pairs[layers[:, None], layers].sum())

    return loss
