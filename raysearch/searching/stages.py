"""A search that removes layers and recovers the model in turns, for ``schedule=[3,3,3] heal=recover``.

The search of a later stage has masks of a smaller model. `Mask.then` gives them in the numbering of the original model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.searchers.base import Round, Searcher, SearchGenerator
from raysearch.searching.work import SearchWork


@dataclass(frozen=True)
class Stage:
    """A stage: a search on the model of the stage before, and the recovery of the model without the layers it found.

    Args:
        mask: The layers removed by this stage and by those before it, in the numbering of the original model.
        removed: The layers removed by this stage, in the same numbering.
        searched_mask: The layers removed by this stage, in the numbering of the model that its search evaluated.
        loss: The loss without these layers, before the recovery, on the calibration of the search.
        recovered_loss: The loss after the recovery, on the same calibration.
        steps: The steps of the training.
        tokens: The number of tokens that the model was trained on.
        seconds: The time of the recovery, in the process that did it.
        work: The work of the stage's search; computed by this process, or found in the ledger.
    """

    mask: Mask
    removed: Mask
    searched_mask: Mask
    loss: float
    recovered_loss: float
    steps: int
    tokens: int
    seconds: float
    work: SearchWork


@dataclass(frozen=True)
class StagedResult:
    """The stages of a search that removes layers and recovers the model in turns.

    Args:
        recovery_id: The id of the recovery as a whole; its files are next to the ledger, in ``recoveries/``.
        stages: The stages, in order.
        rows: The number of rows for training and for held-out losses, the same in all stages; none is in the
            calibration.
        left_out: The number of rows that were left out, by reason.
    """

    recovery_id: str
    stages: tuple[Stage, ...]
    rows: int
    left_out: Mapping[str, int]

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The removed layers after each stage, in the numbering of the original model."""
        return tuple(stage.mask for stage in self.stages)

    @property
    def recovered_loss(self) -> float:
        """The loss after the last recovery, on the calibration of the search."""
        return self.stages[-1].recovered_loss


@dataclass(frozen=True)
class FixedMasks(Searcher):
    """Evaluates masks that are given, and ends with the last one.

    Args:
        masks: The masks; the last one removes all layers.
    """

    masks: tuple[Mask, ...]

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        scores = yield Round(self.masks)
        scores[self.masks[-1]]  # raises if it could not be evaluated
        return self.masks[-1]


def protected_after(protected: Collection[int], removed: Mask) -> list[int]:
    """Return the numbers that protected layers have in a model without the removed layers.

    Args:
        protected: The layers, in the numbering of the model; none of them is removed.
        removed: The removed layers.

    Returns:
        The numbers, ascending.
    """
    return sorted(layer - sum(earlier < layer for earlier in removed) for layer in protected)


def stage_problems(problem: Problem, schedule: Sequence[int]) -> list[Problem]:
    """Return problems of the sizes that the stages will have; which layers are gone is not known before the searches.

    Args:
        problem: The problem of the whole search.
        schedule: The number of layers that each stage removes.

    Returns:
        The problem of each stage, as if the last layers were always removed.
    """
    problems = []
    removed = Mask()
    for size in schedule:
        kept = [problem.sites[layer] for layer in problem.sites.kept_layers(removed)]
        sites = Sites.of_layers([layer.parameters for layer in kept], [layer.kind for layer in kept])
        stage_problem = Problem(sites, size, frozenset(protected_after(problem.protected, removed)))
        problems.append(stage_problem)
        removed = removed.then(Mask(stage_problem.free[-size:]))
    return problems
