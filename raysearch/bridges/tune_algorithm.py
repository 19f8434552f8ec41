"""Any search algorithm of Ray Tune as a searcher: Optuna's, HyperOpt's, random points.

`raysearch.bridges.ray_tune` is the reverse: searchers for a `ray.tune.Tuner`.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.tune
from pydantic import PositiveInt
from ray.tune.search import SEARCH_ALG_IMPORT, BasicVariantGenerator
from typing_extensions import override

from raysearch.bridges.ray_tune import Outcomes, scores_of
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError, did_you_mean, first_line
from raysearch.searchers.base import Round, Searcher, SearchGenerator
from raysearch.searchers.toolbox.subsets import cheapest_mask

_REPEATS = 100  # points in a row with known masks, after which an algorithm has converged
_SEEDS = {"seed", "random_state", "random_state_seed"}  # the names of the seed in Tune's algorithms

#: Algorithms of Tune that cannot be used here, and why.
_UNFIT = {
    "bohb": "it learns from HyperBandForBOHB's budgets alone; use searcher.algorithm=optuna",
    "nevergrad": "it is given an optimizer; use searcher=nevergrad",
}


@dataclass(frozen=True)
class TuneAlgorithmSearcher(Searcher):
    """Evaluates the masks that a search algorithm of Ray Tune asks for: `trials`, or fewer if it repeats itself.

    Its search space is a number from 0 to 1 for each removable layer, ``layer_0`` and so on; the M layers with the
    largest numbers are removed. A repeated mask is answered with its known loss and is not a trial. An algorithm that
    only repeats masks has converged and is started again; the search ends early if that gives no new mask either. A
    failed mask is a trial, and a failure for the algorithm.

    Args:
        algorithm: Its name in `ray.tune.search`, as in "variant_generator" (random points), "optuna", "hyperopt".
        trials: Distinct masks to score, at least 1.
        batch: Points per round, at least 1.
        options: Further arguments of the algorithm's constructor. Without a seed, one is drawn; an algorithm that takes
            none (ax, zoopt) asks for other masks each time, so the ledger cannot replay it.
    """

    solves_additive = False
    stochastic = True

    algorithm: str = "variant_generator"
    trials: PositiveInt = 100
    batch: PositiveInt = 1
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm in _UNFIT:
            raise UserError(f"searcher.algorithm={self.algorithm} cannot be used: {_UNFIT[self.algorithm]}")
        known = SEARCH_ALG_IMPORT.keys() - _UNFIT
        if self.algorithm not in known:
            raise UserError(f"searcher.algorithm={self.algorithm} is unknown; {did_you_mean(self.algorithm, known)}")
        self._open(seed=0)  # fails before a model is loaded

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        outcomes: Outcomes = {}
        known = -1
        while known < len(outcomes) < min(self.trials, problem.n_solutions):
            known = len(outcomes)
            algorithm = self._open(int(rng.integers(2**31)))
            with self._explained():
                found = yield from search_with(algorithm, problem, self.trials, self.batch, outcomes)
        return found

    def _open(self, seed: int) -> ray.tune.search.Searcher:
        kind = SEARCH_ALG_IMPORT[self.algorithm]()
        if kind is BasicVariantGenerator:  # it works only in a Tuner
            kind = _RandomPoints
        known = set(inspect.signature(kind).parameters)
        options = {**dict.fromkeys(_SEEDS & known, seed), **(self.options or {})}
        for name in options:
            if name not in known:
                raise UserError(
                    f"searcher.options.{name} is not an option of searcher.algorithm={self.algorithm}; "
                    f"{did_you_mean(name, known)}"
                )
        with self._explained():
            return kind(**options)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain what the algorithm raises: at an option that it does not understand, or without its package."""
        try:
            yield
        except (EvaluationError, UserError):
            raise
        except Exception as error:
            raise UserError(f"searcher.algorithm={self.algorithm} cannot be used: {first_line(error)}") from error


def search_with(
    algorithm: ray.tune.search.Searcher, problem: Problem, trials: int, batch: int, outcomes: Outcomes
) -> SearchGenerator:
    """Search with a new instance of an algorithm; known outcomes count as trials, and new ones are added to them.

    Raises:
        UserError: The algorithm has a search space of its own.
    """
    space = {f"layer_{layer}": ray.tune.uniform(0.0, 1.0) for layer in problem.free}
    log = logging.getLogger("optuna")
    level = log.level
    log.setLevel(logging.WARNING)  # it logs the study's name
    try:
        if not algorithm.set_search_properties("loss", "min", space):
            raise UserError(f"{type(algorithm).__name__} has a search space of its own; make it without one")
    finally:
        log.setLevel(level)

    names = map(str, itertools.count())
    repeats = 0
    asked: dict[str, Mask] = {}
    while True:
        for trial, mask in asked.items():
            _tell(algorithm, trial, outcomes[mask])
        asked = {}
        wanted = min(batch, min(trials, problem.n_solutions) - len(outcomes))
        while len(asked) < wanted and repeats < _REPEATS:
            trial, repeats = next(names), repeats + 1
            point: Any = algorithm.suggest(trial)
            if point == algorithm.FINISHED or (point is None and asked):
                break
            if point is None:
                continue
            mask = cheapest_mask(problem, -np.array([point[name] for name in space]))
            if mask in outcomes:
                _tell(algorithm, trial, outcomes[mask])
            else:
                asked[trial], repeats = mask, 0
        if not asked:
            return scores_of(outcomes).best(1)[0]
        scores = yield Round([*asked.values()])
        outcomes |= {**scores.losses, **scores.failed}


def _tell(algorithm: ray.tune.search.Searcher, trial: str, outcome: float | str) -> None:
    failed = isinstance(outcome, str)
    algorithm.on_trial_complete(trial, None if failed else {"loss": outcome}, error=failed)


class _RandomPoints(ray.tune.search.Searcher):
    """Draws points like Tune's `BasicVariantGenerator`."""

    def __init__(self, seed: int) -> None:
        super().__init__(metric="loss", mode="min")
        self._rng = np.random.default_rng(seed)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self._space = config
        return True

    def suggest(self, trial_id: str) -> dict[str, float]:
        return {name: domain.sample(random_state=self._rng) for name, domain in self._space.items()}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        pass
