"""Any optimizer of Nevergrad as a searcher.

Source: Bennet et al. 2021, "Nevergrad: black-box optimization platform", SIGEVOlution 14(1). Its optimizers move points
of R^F. Here a point is a cost for each of the F removable layers, and stands for the mask of the M cheapest layers
("random keys", Bean 1994), so every point is legal. With Nevergrad's choice parameters its optimizers are hardly better
than random masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.searchers.base import Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.priors import Prior, layer_costs
from raysearch.searchers.toolbox.subsets import cheapest_mask, logits_of
from raysearch.text.sentences import did_you_mean, first_line

_POINTS_PER_TRIAL = 20  # the maximum, on average
_USUAL = "CMA, DE, DiscreteOnePlusOne, NGOpt or PSO"  # of more than 500 names
_WORST = 1e9  # the loss of a failure while no loss is known; infinity would be clipped with a warning


@dataclass(frozen=True)
class NevergradSearcher(Searcher):
    """Evaluates the masks that an optimizer of Nevergrad proposes.

    It costs `trials` evaluations. The ablation prior costs F more for F removable layers. A repeated mask is answered
    with its known loss and is not a trial. A search ends early when every mask has been scored, or after 20 points per
    trial, since some optimizers find no more new masks. A failed mask is a trial with the worst loss so far.

    A few optimizers (CmaFmin2, MultiDS, Carola8 …) run in a thread and cannot be seeded. They propose different masks
    each time, so the ledger cannot replay them.

    Args:
        optimizer: The optimizer's name in Nevergrad's registry, such as "DiscreteOnePlusOne", "NGOpt", "CMA" or "DE".
        trials: Distinct masks to score, at least 1.
        batch: Points per round, at least 1. Some optimizers, such as "Cobyla", allow only 1.
        prior: The costs of the layers at the initial point: "ablation" (single-layer losses), "influence" (Block
            Influence, from one dense pass) or "none" (equal costs).
    """

    stochastic = True
    open_ended = True

    optimizer: str = "DiscreteOnePlusOne"
    trials: PositiveInt = 200
    batch: PositiveInt = 8
    prior: Prior = "ablation"

    def __post_init__(self) -> None:
        super().__post_init__()
        import nevergrad as ng  # takes two seconds

        registry = ng.optimizers.registry
        if self.optimizer not in registry:
            near = did_you_mean(self.optimizer, registry)
            remedy = near if near.startswith("did") else f"use a name of Nevergrad's registry, such as {_USUAL}"
            raise UserError(f"searcher.optimizer={self.optimizer} is unknown; {remedy}")
        if self.batch > 1 and registry[self.optimizer].no_parallelization:
            raise UserError(
                f"searcher.batch={self.batch} is too many for searcher.optimizer={self.optimizer}, which proposes one "
                "mask at a time; use searcher.batch=1"
            )

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        import nevergrad as ng

        costs = yield from layer_costs(problem, self.prior)
        space = ng.p.Array(init=-logits_of(costs, temperature=2.0).clip(-2, 2))  # any mask must stay reachable
        space.random_state = np.random.RandomState(int(rng.integers(2**32)))
        budget = _POINTS_PER_TRIAL * self.trials
        with self._calls(rng):  # without budget and num_workers, NGOpt may choose an optimizer that waits for ever
            optimizer = ng.optimizers.registry[self.optimizer](space, budget=budget, num_workers=self.batch)
        scores = Scores(Round([]), {})
        pending: list[tuple[Any, Mask]] = []
        n_points = 0
        while True:
            n_new = min(self.batch, min(self.trials, problem.n_solutions) - len(scores.outcomes))
            worst = max(scores.losses.values(), default=_WORST)
            with self._calls(rng):
                for point, mask in pending:
                    optimizer.tell(point, scores.losses.get(mask, worst))
                pending = []
                while len(pending) < n_new and n_points < budget:
                    point = optimizer.ask()
                    n_points += 1
                    mask = cheapest_mask(problem, point.value)
                    if mask in scores.outcomes:
                        optimizer.tell(point, scores.losses.get(mask, worst))
                    else:
                        pending.append((point, mask))
            if not pending:
                return scores.best(1)[0]
            scores |= yield Round([mask for _, mask in pending])

    @contextmanager
    def _calls(self, rng: np.random.Generator) -> Iterator[None]:
        """Seed numpy's global generator during calls of the optimizer, and turn its errors into a UserError."""
        before = np.random.get_state()  # noqa: NPY002
        np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
        try:
            yield
        except Exception as error:
            raise UserError(
                f"searcher.optimizer={self.optimizer} failed: {first_line(error)}; use another one"
            ) from error
        finally:
            np.random.set_state(before)  # noqa: NPY002
