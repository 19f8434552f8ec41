"""The specification of a search: plain, validated values, built from the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raysearch.calibration.objectives.base import StateObjective
from raysearch.core.digest import digest
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.evaluation.spec import EvaluationSpec, identity_of
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Searcher
from raysearch.searching.observer import Observer
from raysearch.searching.recommendation import Budget
from raysearch.searching.record import SearchRecord
from raysearch.searching.result import Refinement


class Refiner(Protocol):
    """Trains the best masks of a search a little, and tells what they lose then."""

    @property
    def masks(self) -> int:
        """The number of masks."""

    @property
    def steps(self) -> int:
        """Steps of each training."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that the losses after it depend on besides the masks, JSON values."""

    def check(self, info: ModelInfo) -> None:
        """Refuse before anything is computed what is not there, or does not fit the model; by `UserError`."""

    def refine(
        self, found: Sequence[SearchRecord], search: SearchSpec, session: EvaluationSession, observer: Observer
    ) -> Refinement:
        """Recover each mask in the same way, and evaluate it as the search does; what was done before is kept.

        `found` has for each mask the search on record, as if it had found that one.

        Raises:
            UserError: Something the user named is not there, or does not fit together.
            EvaluationError: Something failed for good.
        """

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Tell an observer of the trainings of a refined search that is on record."""


@dataclass(frozen=True)
class SearchSpec:
    """One search.

    Args:
        searcher_name: The searcher's name in ``conf/searcher/``, for people.
        remove: M, how many layers go; or a range, ``"1..9"``, of which each number is searched; or ``"auto"``, as many
            as the budget allows.
        protect: Layers that stay; negative indices count from the end.
        config: The resolved configuration, plain values without secrets, for the record and for ``raysearch resume``.
        budget: Of ``remove="auto"``; else None.
        refiner: Recovers the best masks a little before one is chosen; None to choose by their losses alone.

    Raises:
        UserError: Its parts contradict each other.
    """

    evaluation: EvaluationSpec
    searcher: Searcher
    searcher_name: str
    remove: int | str
    protect: Sequence[int]
    seed: int
    config: Mapping[str, Any]
    budget: Budget | None = None
    refiner: Refiner | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.remove != AUTO:
            raise UserError(f"{self.budget} belongs to remove=auto, not to remove={self.remove}; leave one of them out")
        if (self.budget is not None or len(self.sizes) > 1) and not self.searcher.nested:
            raise UserError(
                f"remove={self.remove} needs a searcher that finds the best mask of every size on its way, and "
                f"searcher={self.searcher_name} does not; use greedy or beam, or a study with study.grid.remove=[1,2,3]"
            )
        if self.refiner is None:
            return
        if self.remove == AUTO:
            raise UserError(
                f"refine.masks={self.refiner.masks} compares masks of one size, and remove=auto is yet to find which; "
                "give remove a number, or use refine=none"
            )
        if any(isinstance(one, StateObjective) and one.compares for one in self.evaluation.objectives):
            raise UserError(
                f"objective={self.config['choices']['objective']} compares with the dense model's own states, which a "
                "recovered model does not have; use an objective such as perplexity, or refine=none"
            )

    @property
    def sizes(self) -> range:
        """The numbers of layers that are asked for."""
        return sizes_of(self.remove)

    def problem(self, info: ModelInfo) -> Problem:
        """Return the space of legal masks, or refuse numbers that do not fit the model."""
        return Problem.create(info.n_layers, self.remove, self.protect, self.evaluation.model.name)

    def elsewhere(self) -> SearchSpec:
        """Return the same search, for a process in any folder."""
        return replace(self, evaluation=replace(self.evaluation, ledger=self.evaluation.ledger.resolve()))

    def search_id(self, calibration_fingerprint: str) -> str:
        """Return the search's name: the same for the same command on the same text and model, so that it can go on."""
        identity: dict[str, Any] = {
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
        if self.refiner is not None:
            identity["refine"] = self.refiner.identity
        size = self.remove if self.remove == AUTO else f"m{str(self.remove).replace('..', '-')}"
        name = re.sub(r"^-|[^\w-]", "_", self.searcher_name)  # ids are typed into shells, and name folders
        return f"{name}-{size}-{digest(identity, 8)}"
