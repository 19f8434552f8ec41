"""Any optimizer of Nevergrad as a searcher.

Source: Bennet et al. 2021, "Nevergrad: black-box optimization platform", SIGEVOlution 14(1). Its optimizers move points
of R^F. Here a point gives each of the F removable layers a cost, and means the mask of the M cheapest ("random keys",
Bean 1994), so every point is legal. With Nevergrad's own choice parameters they hardly beat random masks.
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
from raysearch.errors import UserError, did_you_mean, first_line
from raysearch.searchers.base import Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.priors import Prior, layer_costs
from raysearch.searchers.toolbox.subsets import cheapest_mask, logits_of

_ASKS = 20  # the most points per mask to score
_USUAL = "CMA, DE, DiscreteOnePlusOne, NGOpt or PSO"  # of more than 500
_WORST = 1e9  # the loss of a failure while no loss is known; infinity would be clipped with a warning


@dataclass(frozen=True)
class NevergradSearcher(Searcher):
    """Evaluates the masks that an optimizer of Nevergrad asks for: `trials`, and with the ablation prior F more.

    A repeated mask is answered with its known loss and is not a trial. A search ends when every mask has been scored,
    or after 20 points per trial, since some optimizers run out of new masks. A failed mask is a trial with the worst
    loss so far.

    A few optimizers (CmaFmin2, MultiDS, Carola8 …) run in a thread and cannot be seeded. They ask for other masks each
    time, so the ledger cannot replay them.

    Args:
        optimizer: Its name in Nevergrad's registry, as in "DiscreteOnePlusOne", "NGOpt", "CMA", "DE".
        trials: Distinct masks to score, at least 1.
        batch: Points per round, at least 1. Some optimizers, such as "Cobyla", take only 1.
        prior: The costs of layers at which the points begin: "ablation" (single-layer losses), "influence" (Block
            Influence, from one dense pass) or "none" (all alike).
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

        known = ng.optimizers.registry
        if self.optimizer not in known:
            near = did_you_mean(self.optimizer, known)
            remedy = near if near.startswith("did") else f"use a name of Nevergrad's registry, such as {_USUAL}"
            raise UserError(f"searcher.optimizer={self.optimizer} is unknown; {remedy}")
        if self.batch > 1 and known[self.optimizer].no_parallelization:
            raise UserError(
                f"searcher.batch={self.batch} is too many for searcher.optimizer={self.optimizer}, which asks for one "
                "mask at a time; use searcher.batch=1"
            )

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        import nevergrad as ng

        costs = yield from layer_costs(problem, self.prior)
        space = ng.p.Array(init=-logits_of(costs, temperature=2.0).clip(-2, 2))  # any mask must stay reachable
        space.random_state = np.random.RandomState(int(rng.integers(2**32)))
        budget = _ASKS * self.trials
        with self._calls(rng):  # without its budget and workers, NGOpt may choose one that waits for ever
            optimizer = ng.optimizers.registry[self.optimizer](space, budget=budget, num_workers=self.batch)
        known = Scores({})
        asked: list[tuple[Any, Mask]] = []
        n_points = 0
        while True:
            wanted = min(self.batch, min(self.trials, problem.n_solutions) - len(known.losses) - len(known.failed))
            worst = max(known.losses.values(), default=_WORST)
            with self._calls(rng):
                for point, mask in asked:
                    optimizer.tell(point, known.losses.get(mask, worst))
                asked = []
                while len(asked) < wanted and n_points < budget:
                    point, n_points = optimizer.ask(), n_points + 1
                    mask = cheapest_mask(problem, point.value)
                    if mask in known.losses or mask in known.failed:
                        optimizer.tell(point, known.losses.get(mask, worst))
                    else:
                        asked.append((point, mask))
            if not asked:
                return known.best(1)[0]
            known |= yield Round([mask for _, mask in asked])

    @contextmanager
    def _calls(self, rng: np.random.Generator) -> Iterator[None]:
        """Seed numpy's global generator around calls of an optimizer, and explain its errors."""
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
