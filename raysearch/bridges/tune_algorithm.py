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

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Loss, Outcome, Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.subsets import cheapest_mask
from raysearch.text.sentences import did_you_mean, first_line

_MAX_ATTEMPTS = 100  # after so many consecutive requests without a new mask, an algorithm has converged
_SEEDS = {"seed", "random_state", "random_state_seed"}  # the names of the seed in Tune's algorithms

#: Algorithms of Tune that cannot be used here, and why.
_UNFIT = {
    "bohb": "it learns only from the budgets of HyperBandForBOHB; use searcher.algorithm=optuna",
    "nevergrad": "it needs an optimizer object; use searcher=nevergrad",
}


@dataclass(frozen=True)
class TuneAlgorithmSearcher(Searcher):
    """Evaluates the masks that a search algorithm of Ray Tune proposes: `trials`, or fewer if it repeats masks.

    The algorithm's search space is a number from 0 to 1 for each removable layer, ``layer_0`` and so on; the M layers
    with the largest numbers are removed. A repeated mask is answered with its known loss and is not a trial. An
    algorithm that only repeats masks has converged and is started again. The search ends early if that gives no new
    mask either. A failed mask is a trial, and a failure for the algorithm.

    Args:
        algorithm: The algorithm's name in `ray.tune.search`, such as "variant_generator" (random points), "optuna" or
            "hyperopt".
        trials: Distinct masks to score, at least 1.
        batch: Points per round, at least 1.
        options: Further arguments of the algorithm's constructor. If they contain no seed, one is drawn. Some
            algorithms (ax, zoopt) have no seed; they propose different masks each time, so the ledger cannot replay
            them.
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
        names = SEARCH_ALG_IMPORT.keys() - _UNFIT
        if self.algorithm not in names:
            raise UserError(f"searcher.algorithm={self.algorithm} is unknown; {did_you_mean(self.algorithm, names)}")
        self._open(seed=0)  # fails before a model is loaded

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        outcomes: dict[Mask, Outcome] = {}
        n_outcomes = -1
        while n_outcomes < len(outcomes) < min(self.trials, problem.n_solutions):
            n_outcomes = len(outcomes)
            algorithm = self._open(int(rng.integers(2**31)))
            with self._explained():
                mask = yield from search_with(algorithm, problem, self.trials, self.batch, outcomes)
        return mask

    def _open(self, seed: int) -> ray.tune.search.Searcher:
        kind = SEARCH_ALG_IMPORT[self.algorithm]()
        if kind is BasicVariantGenerator:  # it works only in a Tuner
            kind = _RandomPoints
        parameters = set(inspect.signature(kind).parameters)
        options = {**dict.fromkeys(_SEEDS & parameters, seed), **(self.options or {})}
        for name in options:
            if name not in parameters:
                raise UserError(
                    f"searcher.options.{name} is not an option of searcher.algorithm={self.algorithm}; "
                    f"{did_you_mean(name, parameters)}"
                )
        with self._explained():
            return kind(**options)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of the algorithm, such as a wrong option or a missing package, into a UserError."""
        try:
            yield
        except (EvaluationError, UserError):
            raise
        except Exception as error:
            raise UserError(f"searcher.algorithm={self.algorithm} cannot be used: {first_line(error)}") from error


def search_with(
    algorithm: ray.tune.search.Searcher, problem: Problem, trials: int, batch: int, outcomes: dict[Mask, Outcome]
) -> SearchGenerator:
    """Search with an algorithm of Ray Tune.

    Args:
        algorithm: A new instance of the algorithm.
        problem: The space of legal masks.
        trials: Distinct masks to score, including those of `outcomes`.
        batch: Points per round.
        outcomes: The outcomes that are known before the search; it adds the new ones.

    Returns:
        A generator of rounds that is sent their scores and returns the best mask.

    Raises:
        UserError: The algorithm already has a search space.
    """
    space = {f"layer_{layer}": ray.tune.uniform(0.0, 1.0) for layer in problem.free}
    log = logging.getLogger("optuna")
    level = log.level
    log.setLevel(logging.WARNING)  # it logs the study's name
    try:
        if not algorithm.set_search_properties("loss", "min", space):
            raise UserError(f"{type(algorithm).__name__} already has a search space; make it without one")
    finally:
        log.setLevel(level)

    names = map(str, itertools.count())
    attempts = 0  # requests since the last new mask
    pending: dict[str, Mask] = {}
    while True:
        for trial, mask in pending.items():
            _report(algorithm, trial, outcomes[mask])
        pending = {}
        n_new = min(batch, min(trials, problem.n_solutions) - len(outcomes))
        while len(pending) < n_new and attempts < _MAX_ATTEMPTS:
            trial = next(names)
            attempts += 1
            point: Any = algorithm.suggest(trial)
            if point == algorithm.FINISHED:
                break
            if point is None:  # the algorithm waits for reports
                if pending:
                    break
                continue
            mask = cheapest_mask(problem, -np.array([point[name] for name in space]))
            if mask in outcomes:
                _report(algorithm, trial, outcomes[mask])
            else:
                pending[trial] = mask
                attempts = 0
        if not pending:
            return Scores(Round([*outcomes]), outcomes).best(1)[0]
        scores = yield Round([*pending.values()])
        outcomes |= scores.outcomes


def _report(algorithm: ray.tune.search.Searcher, trial: str, outcome: Outcome) -> None:
    match outcome:
        case Loss(loss):
            algorithm.on_trial_complete(trial, {"loss": loss})
        case _:
            algorithm.on_trial_complete(trial, None, error=True)


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
