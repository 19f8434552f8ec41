"""Use your own searcher and objective without a change to raysearch: pass objects instead of names.

    python examples/own_searcher_and_objective.py

Both are dataclasses: their fields are their options, which are recorded. The methods of a recorded search, such as
`resume`, find the classes if their module is imported. To use them on the command line, name the module in an entry
point of your package, and write a file for `--config-dir` (docs/searchers.md).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

import raysearch
from raysearch import Mask, Measure, Problem, Round, Searcher
from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, sum_by_sample, token_log_probs


@dataclass(frozen=True)
class Annealing(Searcher):
    """Simulated annealing: exchange a random layer, keep a better mask always and a worse mask sometimes.

    Args:
        steps: The number of exchanges.
        temperature: The loss difference at which a worse mask is kept with probability 1/e. It falls to 0 at the end.
    """

    steps: int = 30
    temperature: float = 0.1

    stochastic: ClassVar[bool] = True

    def search(self, problem: Problem, rng: np.random.Generator) -> Generator[Round, Any, Mask]:
        """Yield one mask a round, and return the best."""
        mask = problem.completed(Mask(), rng.permutation(problem.free).tolist())
        scores = yield Round([mask])
        for step in range(self.steps):
            removed_layer = rng.choice(mask.layers)
            rest = mask - {removed_layer}
            others = [layer for layer in problem.allowed_with(rest) if layer != removed_layer]
            candidate = rest | {rng.choice(others)} if others else mask
            scores |= yield Round([candidate])
            # A failed mask has no loss.
            increase = scores.losses.get(candidate, math.inf) - scores.losses.get(mask, math.inf)
            if increase <= 0 or rng.random() < math.exp(-increase / (self.temperature * (1 - step / self.steps))):
                mask = candidate
        return scores.best(1)[0]


@dataclass(frozen=True)
class Bits(StateObjective):
    """The loss of the next token, in bits."""

    form: ClassVar[Form] = Form.TEXT
    measure: ClassVar[Measure] = Measure("bits per token", "token")

    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """Return the summed bits of each sample."""
        return sum_by_sample(batch, -token_log_probs(states, batch, head)) / math.log(2)


if __name__ == "__main__":
    result = raysearch.search(searcher=Annealing(steps=20), objective=Bits(), remove=3, data={"samples": 8}).result
    print(f"{result.removed}: {result.loss:.4f} bits per token, {result.dense_loss:.4f} without a cut")
    study = raysearch.study(
        study={"name": "annealing", "grid": {"searcher": {"annealing": Annealing(), "greedy": "searcher=greedy"}}},
        remove=3,
        objective=Bits(),
        data={"samples": 8},
        assess="none",
    )
    for cell in study.result.cells:
        if cell.outcome is not None:
            print(f"{cell.searcher}: {cell.outcome.removed}, {cell.outcome.loss:.4f}")
