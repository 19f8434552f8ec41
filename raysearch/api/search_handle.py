"""The handle of a recorded search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from raysearch.api.arguments import all_overrides, job_config, observer_or_default, repository_for_export
from raysearch.api.location import StoreLocation
from raysearch.api.run import run_tracked_search
from raysearch.api.tracked import recorded_tracking, tracked_observer, tracking_to_sync
from raysearch.core.mask import Mask
from raysearch.core.paths import PathLike, as_path
from raysearch.core.validation import checked
from raysearch.searching.observer import Observer
from raysearch.text.sentences import as_typed

if TYPE_CHECKING:
    from raysearch.assessment.results import SearchAssessment
    from raysearch.checkpoints.gguf_healing import HealedGGUF
    from raysearch.checkpoints.gguf_pruning import GGUFExport
    from raysearch.core.kv_cache import KvCache
    from raysearch.ledger.ledger import Ledger
    from raysearch.models.export import ExportResult
    from raysearch.recovery.export import RecoveredExport
    from raysearch.recovery.recovery_record import RecoveryRecord
    from raysearch.recovery.results import RecoveryCost, RecoveryResult
    from raysearch.searching.gap import Gap
    from raysearch.searching.recommendation import Recommendation
    from raysearch.searching.result import SearchResult
    from raysearch.searching.search_record import SearchRecord
    from raysearch.searching.spec import SearchSpec
    from raysearch.tracking.sync import SyncedSearch


@dataclass(frozen=True)
class Search:
    """A recorded search. `raysearch.search` and `Store.search` return it.

    A handle keeps no file open: each method opens the ledger of the store, and closes it. So a handle can be pickled,
    and several processes may have handles on one store.

    Args:
        location: The store that contains it.
        search_id: Its id.
        own_result: The result of the call that returned this handle; None if it was not run by this call.
    """

    location: StoreLocation
    search_id: str
    own_result: SearchResult | None = field(default=None, repr=False, compare=False)

    @property
    def record(self) -> SearchRecord:
        """The record of the search: its configuration, state and result. It is read from the ledger each time.

        Raises:
            UserError: The ledger does not contain the search, or cannot be read.
        """
        with self._opened() as (_, record):
            return record

    @property
    def result(self) -> SearchResult:
        """The result, with every trial: of the call that returned this handle, or else the recorded one.

        Raises:
            UserError: The search has no result yet.
        """
        return self.record.finished_result if self.own_result is None else self.own_result

    @property
    def mask(self) -> Mask:
        """The mask that was found.

        Raises:
            UserError: The search has no result yet.
        """
        return self.result.mask

    @property
    def layers(self) -> tuple[int | str, ...]:
        """The removed layers, 0-based, ascending, and the removed halves of others, such as ``17a``.

        Raises:
            UserError: The search has no result yet.
        """
        return self.result.removed

    @property
    def is_staged(self) -> bool:
        """Whether layers were removed and the model was recovered in turns; `export_recovered` then exports the model.

        False if the search has no result yet.
        """
        result = self._result_or_none()
        return result is not None and result.staged is not None

    def __str__(self) -> str:
        """Return the result in a few lines, or the state of a search without a result."""
        result = self._result_or_none()
        return f"{self.search_id}: {self.record.state}" if result is None else str(result)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the result, or the state of a search without a result."""
        result = self._result_or_none()
        return f"<p>{escape(str(self))}</p>" if result is None else result._repr_html_()

    def evaluated(self) -> int:
        """Return the number of masks evaluated on the search's samples so far: the progress of an unfinished search."""
        from raysearch.searching.search_record import count_evaluated

        with self._opened() as (ledger, record):
            return count_evaluated(ledger, record)

    def assessed(self) -> dict[str, float]:
        """Return all assessed numbers of the search's mask, by the names that MLflow shows.

        The dictionary is empty if the mask was not assessed, or if there is no result yet.
        """
        from raysearch.assessment.tracked_assessments import recorded_assessments

        with self._opened() as (ledger, record):
            return {} if record.result is None else recorded_assessments(ledger, record)

    def recoveries(self) -> list[RecoveryRecord]:
        """Return the recoveries of the search's masks, the one that was run last at the end; empty if there are none.

        They include recoveries for other searches that found the same masks of the model; see
        `RecoveryRecord.search_id`.
        """
        from raysearch.recovery.recovery_record import recoveries_of_search

        with self._opened() as (ledger, record):
            return recoveries_of_search(ledger, record)

    def gap(self) -> Gap:
        """Rank the search's mask among all masks of as many layers.

        Raises:
            UserError: The search has no result yet, its losses are weighted, or the ledger does not contain all masks.
        """
        from raysearch.searching.gap import gap_of

        with self._opened() as (ledger, record):
            return gap_of(record, ledger)

    def command(self) -> str:
        """Return the command that repeats the search."""
        from raysearch.configuration.repeat import command_of

        record = self.record
        ledger_option = record.settings.places.ledger_option
        return command_of(record.config) or f"raysearch resume {self.search_id}{ledger_option}"

    def recommend(self, *overrides: str, budget: Mapping[str, float | str] | None = None) -> Recommendation:
        """Return how many layers can be removed within a budget. No model runs: losses and speeds are in the ledger.

            search.recommend("budget.loss=0.1")
            search.recommend(budget={"readout": "10%", "speedup": 1.2})

        Preferably, the search has a range of sizes: ``remove=1..9``.

        Args:
            *overrides: ``budget.loss``, ``budget.readout``, ``budget.speedup``, ``budget.memory``,
                ``budget.kv_memory`` and ``budget.latency_ms``, each with its value. Without any, the budget of the
                search itself (``remove=auto``).
            budget: The same as a mapping.

        Returns:
            The recommended number of layers, and the facts of every compared number.

        Raises:
            UserError: The budget is not understood, no number of layers meets it, there is no result yet, or the budget
                limits the KV cache and the model's files are not there or have changed.
        """
        from raysearch.searching.recommend import recommend
        from raysearch.searching.recommendation import Budget

        limits = [
            *map(str, all_overrides(overrides, {})),
            *(f"budget.{limit}={as_typed(value)}" for limit, value in (budget or {}).items()),
        ]
        new_budget = Budget.parse(limits) if limits else None
        with self._opened() as (ledger, record):
            result = record.finished_result
            search_budget = None if result.recommendation is None else result.recommendation.budget
            chosen_budget = new_budget or search_budget or Budget()
            kv_cache = None if chosen_budget.kv_memory is None else self._kv_cache(record, ledger)
            return recommend(result, chosen_budget, ledger, kv_cache=kv_cache)

    def export(
        self,
        out: PathLike,
        *,
        remove: int | None = None,
        overwrite: bool = False,
        prompt: str | None = None,
        without_adapter: bool = False,
        push: str | None = None,
        public: bool = False,
    ) -> ExportResult:
        """Write the pruned model as a checkpoint that plain transformers, vLLM and llama.cpp load.

        The model of a search in stages is recovered, so `export_recovered` exports it; this writes the original model
        without the layers of all stages.

            search.export("pruned")

        Args:
            out: The folder to write.
            remove: Export the best mask of so many layers; None for the search's result.
            overwrite: Replace an existing export.
            prompt: A text for both models to continue, as a spot check.
            without_adapter: Write the model without the adapter that was merged for the search (``model.adapter``).
            push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the export to.
            public: Make the repository public; new repositories are private by default.

        Returns:
            The files and the checks of the export.

        Raises:
            UserError: There is no result or no such mask, the model has changed since, the folder or the model cannot
                be used, or the hub refuses the upload.
        """
        from raysearch.assessment.serving.results import runs_of
        from raysearch.configuration import build
        from raysearch.searching.export import export_search

        repository = repository_for_export(push, public, overwrite)
        with self._opened() as (ledger, record):
            mask = record.best_of_size(remove).mask
            result = record.finished_result
            # runtimes have run the mask without its repair
            ran = {} if result.settings.is_repaired else runs_of(ledger, result.fingerprints["model"], mask)
        spec = build.recorded_search(record.config)
        folder = as_path("--out", out)
        return export_search(
            record,
            spec,
            folder,
            remove=remove,
            overwrite=overwrite,
            prompt=prompt,
            without_adapter=checked(bool, "--without-adapter", without_adapter),
            push=repository,
            ran=ran,
        )

    def export_gguf(
        self,
        out: PathLike,
        *,
        source: PathLike | None = None,
        remove: int | None = None,
        overwrite: bool = False,
        without_adapter: bool = False,
        push: str | None = None,
        public: bool = False,
    ) -> GGUFExport:
        """Write the pruned model as a GGUF file. The tensors that remain are copied byte for byte.

            search.export_gguf("pruned-Q4_K_M.gguf", source="model-Q4_K_M.gguf")

        Args:
            out: The file to write.
            source: A GGUF file of the same model, in any quantisation; None for the file that was searched.
            remove: Export the best mask of so many layers; None for the search's result.
            overwrite: Replace an existing file.
            without_adapter: Write the model without the adapter that was merged for the search (``model.adapter``).
            push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the file to.
            public: Make the repository public; new repositories are private by default.

        Returns:
            The file and its sizes.

        Raises:
            UserError: There is no result or no such mask, the source is missing, of another model or cannot be pruned,
                the file cannot be written, or the hub refuses the upload.
        """
        from raysearch.configuration import build
        from raysearch.searching.export import export_search_as_gguf

        repository = repository_for_export(push, public, overwrite)
        record = self.record
        spec = build.recorded_search(record.config)
        file = as_path("--gguf", out)
        source_file = None if source is None else as_path("--from", source)
        return export_search_as_gguf(
            record,
            spec,
            file,
            source=source_file,
            remove=remove,
            overwrite=overwrite,
            without_adapter=checked(bool, "--without-adapter", without_adapter),
            push=repository,
        )

    def export_recovered(
        self,
        out: PathLike,
        *,
        remove: int | None = None,
        overwrite: bool = False,
        push: str | None = None,
        public: bool = False,
    ) -> RecoveredExport:
        """Copy the checkpoint that `recover` wrote last to another folder.

        Args:
            out: The folder to write.
            remove: Export the recovery of the best mask of so many layers; None for the search's result.
            overwrite: Replace an existing export.
            push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the export to.
            public: Make the repository public; new repositories are private by default.

        Returns:
            The folder, and the recovery that it is of.

        Raises:
            UserError: The mask was not recovered, its checkpoint no longer exists, the folder cannot be used, or the
                hub refuses the upload.
        """
        from raysearch.configuration import build
        from raysearch.recovery.export import export_recovered

        repository = repository_for_export(push, public, overwrite)
        with self._opened() as (ledger, record):
            spec = build.recorded_search(record.config)
            folder = as_path("--out", out)
            return export_recovered(record, ledger, spec, folder, remove=remove, overwrite=overwrite, push=repository)

    def export_recovered_gguf(
        self,
        out: PathLike,
        *,
        source: PathLike | None = None,
        remove: int | None = None,
        overwrite: bool = False,
    ) -> HealedGGUF:
        """Write the model that `recover` wrote last as a GGUF file.

        Tensors that the training has not changed keep their bytes; the others have eight bits or more per weight.

        Args:
            out: The file to write.
            source: A GGUF file of the dense model; None for the file that was searched.
            remove: Export the recovery of the best mask of so many layers; None for the search's result.
            overwrite: Replace an existing file.

        Returns:
            The file, and the number of changed tensors.

        Raises:
            UserError: The mask was not recovered, its checkpoint no longer exists, or the source is missing, of another
                model or cannot be pruned.
        """
        from raysearch.configuration import build
        from raysearch.recovery.export import export_recovered_as_gguf

        checked(bool, "--overwrite", overwrite)
        with self._opened() as (ledger, record):
            spec = build.recorded_search(record.config)
            file = as_path("--gguf", out)
            source_file = None if source is None else as_path("--from", source)
            return export_recovered_as_gguf(
                record, ledger, spec, file, source=source_file, remove=remove, overwrite=overwrite
            )

    def resume(self, *overrides: str, observer: Observer | None = None, **values: Any) -> Search:
        """Resume the search if it was stopped. Its earlier evaluations are read from the ledger.

        Args:
            *overrides: ``tracking.key=value`` texts, to record the search in another place.
            observer: Receives the progress.
            **values: The same keys as keyword arguments.

        Returns:
            A handle with the result of this call.

        Raises:
            UserError: The model, the data or the machine have changed.
            EvaluationError: An evaluation failed.
        """
        from raysearch.configuration import build
        from raysearch.configuration.compose import with_tracking

        observer = observer_or_default(observer)
        with self._opened() as (ledger, record):
            config = with_tracking(record.config, all_overrides(overrides, values))
            config |= self.location.current_paths(record.config, ledger)
        spec = build.recorded_search(config, goes_on=True)
        tracking = build.tracking_options(config)
        return replace(self, own_result=run_tracked_search(spec, tracking, observer, self.search_id))

    def assess(
        self,
        *overrides: str,
        remove: int | None = None,
        config_dir: PathLike | None = None,
        observer: Observer | None = None,
        **values: Any,
    ) -> SearchAssessment:
        """Measure the pruned and the dense model. Numbers that the ledger contains are not computed again.

            search.assess(assess="paper")
            search.assess("assess=none", assess={"tasks": ["piqa"], "limit": 100})

        Args:
            *overrides: ``key=value`` texts.
            remove: Assess the best mask of so many layers; None for the search's result.
            config_dir: A folder of your own YAML files, laid out like ``conf/``.
            observer: Receives the progress.
            **values: The same keys as keyword arguments.

        Returns:
            The numbers of both models.

        Raises:
            UserError: There is no result or no such mask, the model has changed since, or a task or its data is missing
                or does not fit the model.
            EvaluationError: An evaluation failed.
        """
        from raysearch.assessment.assess import assess_search
        from raysearch.configuration import build

        observer = observer_or_default(observer)
        new_overrides = all_overrides(overrides, values)
        with self._opened() as (ledger, record):
            config = job_config("assess", new_overrides, record.config, config_dir)
            assess = build.assess_config(config)
            tracking = recorded_tracking(record.config, self.location, ledger)
            search = self._spec_on_cluster(record, ledger, config["cluster"])
            tracked = tracked_observer(tracking, observer)
            return assess_search(record, ledger, search, assess.assess, assess.serve, remove, tracked)

    def recover(
        self,
        out: PathLike,
        *overrides: str,
        remove: int | None = None,
        minutes: float | None = None,
        overwrite: bool = False,
        config_dir: PathLike | None = None,
        observer: Observer | None = None,
        **values: Any,
    ) -> RecoveryResult:
        """Train the pruned model to regain the lost quality, write it as a checkpoint, and assess it.

        The same call again resumes a recovery that was stopped.

            search.recover("healed")
            search.recover("healed", "data.path=alpaca.jsonl", recovery="paper", data="alpaca")
            search.recover("healed", minutes=10)

        Args:
            out: The folder of the recovered checkpoint.
            *overrides: ``key=value`` texts.
            remove: Recover the best mask of so many layers; None for the search's result.
            minutes: The time that the recovery may take without the assessment: as many steps are trained as fit. None
                for all steps.
            overwrite: Replace an existing checkpoint.
            config_dir: A folder of your own YAML files, laid out like ``conf/``.
            observer: Receives the progress.
            **values: The same keys as keyword arguments.

        Returns:
            The recovered model, with the numbers of the dense, the pruned and the recovered model.

        Raises:
            UserError: There is no result or no such mask, the model has changed since, the data do not fit, or a
                library for training is not installed.
            EvaluationError: An evaluation failed.
        """
        from raysearch.configuration import build

        observer = observer_or_default(observer)
        checked(bool, "--overwrite", overwrite)
        checked(float | None, "--minutes", minutes)
        new_overrides = all_overrides(overrides, values)
        with self._opened() as (ledger, record):
            config = job_config("recover", new_overrides, record.config, config_dir)
            search = self._spec_on_cluster(record, ledger, config["cluster"])
            recovery = build.recover_spec(config)
            from raysearch.recovery.budget import TimeLimit  # it imports the libraries for training
            from raysearch.recovery.recover import recover_search

            tracking = recorded_tracking(record.config, self.location, ledger)
            return recover_search(
                record,
                ledger,
                search,
                recovery,
                as_path("--out", out),
                remove=remove,
                overwrite=overwrite,
                observer=tracked_observer(tracking, observer),
                limit=None if minutes is None else TimeLimit(minutes),
            )

    def recovery_cost(
        self,
        *overrides: str,
        remove: int | None = None,
        minutes: float | None = None,
        config_dir: PathLike | None = None,
        observer: Observer | None = None,
        **values: Any,
    ) -> RecoveryCost:
        """Return the expected cost of a recovery. One training step is timed, and nothing is written.

        Args:
            *overrides: As for `recover`.
            remove: Recover the best mask of so many layers; None for the search's result.
            minutes: As for `recover`: the cost is that of the steps that fit.
            config_dir: A folder of your own YAML files, laid out like ``conf/``.
            observer: Receives the progress.
            **values: The same keys as keyword arguments.

        Returns:
            The rows, the tokens, the steps, and the expected seconds and bytes of the training.

        Raises:
            UserError: See `recover`.
        """
        from raysearch.configuration import build

        observer = observer_or_default(observer)
        new_overrides = all_overrides(overrides, values)
        with self._opened() as (ledger, record):
            config = job_config("recover", new_overrides, record.config, config_dir)
            search = self._spec_on_cluster(record, ledger, config["cluster"])
            recovery = build.recover_spec(config)
            from raysearch.recovery.budget import TimeLimit  # it imports the libraries for training
            from raysearch.recovery.recover import recovery_cost

            limit = None if minutes is None else TimeLimit(minutes)
            return recovery_cost(record, ledger, search, recovery, remove, observer, limit)

    def sync(self, *overrides: str, **values: Any) -> SyncedSearch:
        """Upload the search's missing runs and metrics from the ledger to MLflow. Nothing is written twice.

            search.sync("tracking.uri=http://127.0.0.1:5000")

        Args:
            *overrides: ``tracking.key=value`` texts, for another place than the recorded one.
            **values: The same keys as keyword arguments.

        Returns:
            The run, and how many trials were missing.

        Raises:
            UserError: The search has not ended, another process runs it, or MLflow cannot be written to.
        """
        from raysearch.tracking.sync import sync_search

        with self._opened() as (ledger, record):
            new_overrides = all_overrides(overrides, values)
            name = f"SEARCH={self.search_id}"
            tracking = tracking_to_sync(name, record.config, new_overrides, self.location, ledger)
            return sync_search(record, ledger, tracking)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Ledger, SearchRecord]]:
        """Open the ledger, and read the record of the search."""
        from raysearch.searching.search_record import find_search

        with self.location.opened_ledger() as ledger:
            yield ledger, find_search(ledger, self.search_id)

    def _result_or_none(self) -> SearchResult | None:
        return self.own_result or self.record.result

    def _kv_cache(self, record: SearchRecord, ledger: Ledger) -> KvCache:
        """Return the KV cache of the dense model, for as many tokens as the search's speeds."""
        from raysearch.models.description import describe
        from raysearch.models.loading import fingerprint

        spec = self._spec_on_cluster(record, ledger, record.config["cluster"])
        info = describe(spec.evaluation.model)
        record.check_weights(fingerprint(info.model))
        return spec.kv_cache(info)

    def _spec_on_cluster(self, record: SearchRecord, ledger: Ledger, cluster: Mapping[str, Any]) -> SearchSpec:
        """Return the specification of the search, in its present store and on another cluster."""
        from raysearch.configuration import build

        changes = {**self.location.current_paths(record.config, ledger), "cluster": cluster}
        return build.recorded_search({**record.config, **changes})
