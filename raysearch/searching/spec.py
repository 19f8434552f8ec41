"""The specification of a search: plain, validated values, built from the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from raysearch.calibration.objectives.base import StateObjective
from raysearch.core.digest import digest
from raysearch.core.kv_cache import KvCache
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.core.space import LAYERS, Space
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.evaluation.spec import EvaluationSpec, identity_of
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Searcher
from raysearch.searching.observer import Observer
from raysearch.searching.recommendation import Budget
from raysearch.searching.refinement import Refinement
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.serve_options import ServeOptions
from raysearch.searching.settings import SearchSettings
from raysearch.searching.speed_options import SearchSpeedOptions
from raysearch.searching.stages import StagedResult
from raysearch.searching.target import TargetLimits, limits_of
from raysearch.text.sentences import as_typed


class Refiner(Protocol):
    """Recovers the best masks of a search by a short training, and evaluates them again."""

    @property
    def masks(self) -> int:
        """How many masks are recovered."""

    @property
    def steps(self) -> int:
        """The steps of each training."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything, besides the masks, that the losses after recovery depend on, as JSON values."""

    def check(self, info: ModelInfo) -> None:
        """Check the options and the data of the recovery, before anything is computed.

        Raises:
            UserError: Something is missing, or does not fit the model.
        """

    def refine(
        self, records: Sequence[SearchRecord], search: SearchSpec, session: EvaluationSession, observer: Observer, /
    ) -> Refinement:
        """Recover each mask by the same training, and evaluate it as the search does; earlier recoveries are reused.

        Args:
            records: For each mask the record of the search, with this mask as its result.
            search: The specification of the search.
            session: Evaluates masks.
            observer: Gets progress.

        Returns:
            The masks with their losses before and after the training.

        Raises:
            UserError: Something that the user named is missing, or does not fit together.
            EvaluationError: A training or an evaluation failed for good.
        """

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Pass the trainings of a recorded search to an observer.

        Args:
            record: The search.
            ledger: Its ledger.
            observer: Gets the losses and the numbers of each training.
        """


class Healer(Protocol):
    """Removes layers and recovers the model in turns."""

    @property
    def schedule(self) -> Sequence[int]:
        """How many layers each stage removes."""

    @property
    def steps(self) -> int | None:
        """The largest number of steps of each training; None if it is not known before the rows are read."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything, besides the search itself, that the recovered models depend on, as JSON values."""

    def check(self, info: ModelInfo) -> None:
        """Check the options and the data of the recovery, before anything is computed.

        Raises:
            UserError: Something is missing, or does not fit the model.
        """

    def heal(
        self, record: SearchRecord, search: SearchSpec, session: EvaluationSession, observer: Observer, /
    ) -> StagedResult:
        """Run the stages, and write the recovered model of the last one; finished stages are read from the ledger.

        Args:
            record: The record of the search.
            search: The specification of the search.
            session: Evaluates masks of the original model.
            observer: Gets progress.

        Returns:
            The stages, with the removed layers and the losses before and after each recovery.

        Raises:
            UserError: Something that the user named is missing, or does not fit together.
            EvaluationError: A training or an evaluation failed for good.
        """

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Pass the recoveries of a recorded search to an observer.

        Args:
            record: The search.
            ledger: Its ledger.
            observer: Gets the losses and the numbers of each recovery.
        """


@dataclass(frozen=True)
class SearchSpec:
    """The specification of one search.

    Args:
        evaluation: The model, the calibrations, the replicas and the ledger.
        searcher: The searcher.
        searcher_name: The name of its file in ``conf/searcher/``, shown to users.
        remove: M, the number of layers to remove; or a range, ``"1..9"``, to search all of its numbers; or ``"auto"``,
            as many as the budget allows.
        protect: Layers and halves that are never removed; negative layers count from the end.
        seed: The seed of the searcher's random numbers.
        config: The resolved configuration, plain values without secrets, for the record and for ``raysearch resume``.
        budget: The budget of ``remove="auto"``; else None.
        speed: How the speeds of a search by budget are measured.
        serve: How they are measured in the runtime ``speed.serve``.
        refiner: Recovers the best masks before the best one is chosen; None to choose by their losses alone.
        target: The names of the runtimes that are to run the result; empty for any. Masks that one of them would run as
            another model are not proposed.
        space: What can be removed.
        healer: Removes the layers in stages, and recovers the model after each; None to remove them at once.

    Raises:
        UserError: The parts contradict each other.
    """

    evaluation: EvaluationSpec
    searcher: Searcher
    searcher_name: str
    remove: int | str
    protect: Sequence[int | str]
    seed: int
    config: Mapping[str, Any]
    budget: Budget | None = None
    speed: SearchSpeedOptions = field(default_factory=SearchSpeedOptions)
    serve: ServeOptions = field(default_factory=ServeOptions)
    refiner: Refiner | None = None
    target: Sequence[str] = ()
    space: Space = LAYERS
    healer: Healer | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.remove != AUTO:
            raise UserError(f"{self.budget} belongs to remove=auto, not to remove={self.remove}; leave one of them out")
        if self.budget is not None and self.budget.measured_gains and not self.speed.enabled:
            gains = " ".join(self.budget.word(gain) for gain in self.budget.measured_gains)
            raise UserError(f"{gains} needs speeds, which speed.enabled=false does not measure; leave that out")
        if self.speed.serve is not None:
            self._check_serve()
        if (self.budget is not None or len(self.sizes) > 1) and not self.searcher.nested:
            raise UserError(
                f"remove={self.remove} needs a searcher that finds the best mask of every size on its way, and "
                f"searcher={self.searcher_name} does not; use greedy or beam, or a study with study.grid.remove=[1,2,3]"
            )
        if self.is_repaired:
            self._check_repair()
        if self.refiner is not None:
            if self.remove == AUTO:
                raise UserError(
                    f"refine.masks={self.refiner.masks} compares masks of one size, and remove=auto is yet to find "
                    "which; give remove a number, or use refine=none"
                )
            self._check_objectives("refine=none")
        if self.healer is not None:
            self._check_stages(self.healer.schedule)

    def _check_stages(self, schedule: Sequence[int]) -> None:
        """Refuse what is not defined for a search in stages."""
        stages = f"schedule={as_typed([*schedule])}"
        if self.remove != sum(schedule):
            raise UserError(
                f"{stages} removes {sum(schedule)} layers, and remove={self.remove} asks for another number; use "
                f"remove={sum(schedule)}, or another schedule"
            )
        if self.evaluation.weighting is not None:
            raise UserError(
                f"{stages} searches other models after the first stage, which would scale the losses of "
                "objective=weighted by other references; use one of its objectives alone"
            )
        if self.space is not LAYERS:
            raise UserError(f"{stages} removes whole layers, not space={self.space.name}; use space=layers")
        if self.target:
            raise UserError(
                f"{stages} searches each stage on another checkpoint, and target={as_typed([*self.target])} holds for "
                "one; leave target out, and read what runs the result in the lines of raysearch export"
            )
        if self.refiner is not None:
            raise UserError(
                f"{stages} recovers one mask in each stage, and refine=recover several; use refine=none, or leave "
                "schedule out"
            )
        self._check_objectives("leave heal and schedule out")

    def _check_objectives(self, without_recovery: str) -> None:
        """Refuse objectives that a recovered model does not have; the remedy turns the recovery off."""
        if any(
            isinstance(objective, StateObjective) and objective.compares for objective in self.evaluation.objectives
        ):
            raise UserError(
                f"objective={self.settings.choices['objective']} compares with the dense model's own states, which a "
                f"recovered model does not have; use an objective such as perplexity, or {without_recovery}"
            )

    def _check_repair(self) -> None:
        """Refuse what does not know masks that are repaired before they are evaluated."""
        repair = f"repair={self.evaluation.repair}"
        if self.space is not LAYERS:
            raise UserError(f"{repair} is for whole layers, not for space={self.space.name}; use space=layers")
        if self.refiner is not None:
            raise UserError(f"{repair} and refine=recover both change what stays; use one of them")
        if self.healer is not None:
            raise UserError(f"{repair} and heal=recover both change what stays; use one of them")

    def _check_serve(self) -> None:
        """Refuse options that a runtime would ignore, and servers that are up, which have one mask alone."""
        runtime = f"speed.serve={self.speed.serve}"
        if self.serve.url is not None:
            raise UserError(
                f"serve.url={self.serve.url} serves one checkpoint, and {runtime} measures several; leave it out, and "
                "raysearch starts the servers"
            )
        defaults = SearchSpeedOptions()
        for name in ("batch", "context_tokens", "new_tokens", "repeats"):
            value = getattr(self.speed, name)
            if value != getattr(defaults, name):
                raise UserError(
                    f"speed.{name}={value} is for transformers, and {runtime} is measured by the options of serve; use "
                    f"serve.{name}={value}"
                )

    def check_model(self, info: ModelInfo) -> None:
        """Refuse a model that cannot be recovered or repaired as the search needs it, before anything is computed.

        Args:
            info: The model.

        Raises:
            UserError: The model cannot be trained, or its files cannot hold what a repair changes.
        """
        for recovery in (self.refiner, self.healer):
            if recovery is not None:
                recovery.check(info)
        if self.is_repaired:
            from raysearch.models.loading import load_config  # imports torch
            from raysearch.models.reading import quantisation_of

            if quantisation_of(load_config(info.model)) is not None:
                raise UserError(
                    f"repair={self.evaluation.repair} changes weights, and those of model={info.model.name} are "
                    "quantised; use the model before it was quantised, or repair=none"
                )

    def check_unrepaired(self, command: str, remedy: str) -> None:
        """Refuse a command that does not know masks that are repaired before they are evaluated.

        Args:
            command: The name of the command.
            remedy: What to do instead, as a clause.

        Raises:
            UserError: The masks of the search are repaired.
        """
        if self.is_repaired:
            raise UserError(f"{command} does not take masks of a search with repair={self.evaluation.repair}; {remedy}")

    @property
    def is_repaired(self) -> bool:
        """Whether masks are repaired before they are evaluated."""
        return self.evaluation.repair != "none"

    @property
    def settings(self) -> SearchSettings:
        """The values of `config` that are read."""
        return SearchSettings(self.config)

    @property
    def sizes(self) -> range:
        """The numbers of layers to remove."""
        return sizes_of(self.remove)

    def problem(self, info: ModelInfo) -> Problem:
        """Return the space of legal masks.

        Raises:
            UserError: `remove` or `protect` does not fit the model or the target, or the data have images and a mask
                may remove a layer at whose place the model adds features of images.
        """
        limits = limits_of(info, self.target, space=self.space)
        problem = Problem.of_model(
            info.sites, self.remove, self.protect, self.evaluation.model.name, limits, self.space
        )
        needed = list(info.image_layers)
        has_images = any(calibration.data.format.has_images for calibration in self.evaluation.calibrations)
        if has_images and not problem.sites.in_layers(needed) <= problem.protected:
            raise UserError(
                f"{self.evaluation.model.name} adds features of images at the places of its layers {needed}, so masks "
                f"without one of them cannot be judged on images; use protect={needed}"
            )
        return problem

    def target_limits(self, info: ModelInfo) -> TargetLimits | None:
        """Return what the target leaves of the masks; None without a target."""
        if not self.target:
            return None
        problem = self.problem(info)
        n_remove = problem.size
        n_without = Problem.of_model(info.sites, n_remove, self.protect, space=self.space).n_solutions
        return TargetLimits(
            runtimes=tuple(self.target),
            limits=limits_of(info, self.target, space=self.space),
            n_layers=info.sites.n_layers,
            n_remove=n_remove,
            n_masks=problem.n_solutions,
            n_without=n_without,
            space=self.space,
        )

    def kv_cache(self, info: ModelInfo) -> KvCache:
        """Return the KV cache of the dense model in the runtime of the speeds, for as many sequences and tokens.

        Raises:
            UnsupportedModelError: The cache of the runtime is not known.
        """
        from raysearch.models.kv_cache import kv_cache_of
        from raysearch.models.runtime_cache import block_tokens_in, kv_cache_in

        runtime = self.speed.serve
        if runtime is None:
            return kv_cache_of(info, self.speed.n_tokens, self.speed.batch)
        block_tokens = block_tokens_in(runtime, info.model.device)
        return kv_cache_in(runtime, info, self.serve.n_tokens, self.serve.batch, block_tokens)

    def with_absolute_paths(self) -> SearchSpec:
        """Return the same search with absolute paths, for a process in any folder."""
        return replace(self, evaluation=replace(self.evaluation, ledger=self.evaluation.ledger.resolve()))

    def search_id(self, calibration_fingerprint: str) -> str:
        """Return the id of the search; it is the same for the same command, text and model, which resume the search."""
        identity: dict[str, Any] = {
            "calibration": calibration_fingerprint,
            "searcher": identity_of(self.searcher),
            "remove": self.remove,
            "protect": sorted(self.protect, key=lambda part: (isinstance(part, str), part)),
            "seed": self.seed,
        }
        if self.space is not LAYERS:
            identity["space"] = self.space.name
        if self.target:
            identity["target"] = self.target
        if self.evaluation.screening is not None:
            identity["screening"] = identity_of(self.evaluation.screening)
        if self.budget is not None:
            identity["budget"] = self.budget.limits
            if self.budget.gains:  # these depend on the numbers of tokens
                identity["speed"] = self.speed.identity
                if self.speed.serve is not None:
                    identity["speed"] = {"serve": self.speed.serve, **self.serve.identity}
        if self.refiner is not None:
            identity["refine"] = self.refiner.identity
        if self.healer is not None:
            identity["heal"] = self.healer.identity
        size = self.remove if self.remove == AUTO else f"m{str(self.remove).replace('..', '-')}"
        name = re.sub(r"^-|[^\w-]", "_", self.searcher_name)  # ids are typed in shells, and are names of folders
        return f"{name}-{size}-{digest(identity, 8)}"
