"""The specification of a search: plain, validated values, built from the configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.errors import UserError
from raysearch.evaluation.spec import EvaluationSpec, identity_of
from raysearch.models.spec import ModelInfo
from raysearch.search.recommendation import Budget
from raysearch.search.sizes import for_sizes
from raysearch.searchers.base import Searcher


@dataclass(frozen=True)
class ScoreSpec:
    """Masks that the user already has, and how to evaluate them."""

    evaluation: EvaluationSpec
    masks: Sequence[Mask]


@dataclass(frozen=True)
class SearchSpec:
    """One search.

    Args:
        evaluation: The model, the calibrations, and where evaluations are computed and kept.
        searcher: The algorithm.
        searcher_name: Its name in ``conf/searcher/``, for people.
        remove: M, how many layers go; or a range, ``"1..9"``, of which each number is searched; or ``"auto"``, as many
            as the budget allows.
        protect: Layers that stay; negative indices count from the end.
        seed: Of the searcher's random numbers.
        config: The resolved configuration, plain values without secrets, for the record and for ``raysearch resume``.
        budget: Of ``remove="auto"``; else None.

    Raises:
        UserError: There is a budget without ``remove="auto"``, or the searcher has no masks of fewer layers on its way.
    """

    evaluation: EvaluationSpec
    searcher: Searcher
    searcher_name: str
    remove: int | str
    protect: Sequence[int]
    seed: int
    config: Mapping[str, Any]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.remove != AUTO:
            raise UserError(f"{self.budget} is of remove=auto, not of remove={self.remove}; leave one of them out")
        if self.budget is not None and not self.searcher.nested:
            raise UserError(
                f"remove=auto needs a searcher that finds the best mask of every size on its way, and "
                f"searcher={self.searcher_name} does not; use greedy or beam"
            )

    @property
    def sizes(self) -> range:
        """The numbers of layers that are asked for."""
        return sizes_of(self.remove)

    @property
    def sized_searcher(self) -> Searcher:
        """The algorithm, for all numbers of layers that are asked for."""
        return self.searcher if self.budget is not None else for_sizes(self.searcher, self.sizes)

    def problem(self, info: ModelInfo) -> Problem:
        """Return the space of legal masks.

        Raises:
            UserError: The search's numbers do not fit the model.
        """
        return Problem.create(info.n_layers, self.remove, self.protect, self.evaluation.model.name)

    def elsewhere(self) -> SearchSpec:
        """Return the same search, for a process in any folder."""
        cache = self.evaluation.model.cache
        model = dataclasses.replace(self.evaluation.model, cache=cache and cache.resolve())
        evaluation = dataclasses.replace(self.evaluation, model=model, ledger=self.evaluation.ledger.resolve())
        return dataclasses.replace(self, evaluation=evaluation)

    def search_id(self, calibration_fingerprint: str) -> str:
        """Return the search's name: the same for the same command on the same text and model, so that it can go on."""
        identity = {
            "calibration": calibration_fingerprint,
            "searcher": identity_of(self.searcher),
            "remove": self.remove,
            "protect": sorted(self.protect),
            "seed": self.seed,
        }
        if self.evaluation.screening is not None:
            identity["screening"] = identity_of(self.evaluation.screening)
        if self.budget is not None:
            identity["budget"] = vars(self.budget)
            if self.budget.gains:  # then speeds decide
                identity["speed"] = self.config["speed"]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        size = self.remove if self.remove == AUTO else f"m{str(self.remove).replace('..', '-')}"
        name = re.sub(r"^-|[^\w-]", "_", self.searcher_name)  # ids are typed into shells, and name folders
        return f"{name}-{size}-{digest[:8]}"
