"""The Python API: one function for each command, which returns objects.

These arguments have the same meaning in all functions:

    *overrides    ``key=value`` texts, as on the command line
    **values      the same keys as keyword arguments; a mapping sets keys of a group: ``data={"samples": 32}``
    config_dir    a folder of your own YAML files, laid out like ``conf/``
    search        a search id, the start of one, an MLflow run id, or ``latest``
    name          the id of a search or a study, the start of one, an MLflow run id, or ``latest`` for the last search
    remove        use the best mask that the search evaluated of so many layers; None for the search's result
    overwrite     replace an existing output
    push          a repository of the Hugging Face Hub, ``OWNER/NAME``; the export is uploaded to it as well
    public        make the repository public; new repositories are private by default
    store         the folder that searches write to, or the path of a ledger's file
    observer      receives the progress. By default, a notebook shows a progress bar, and a script prints a line per
                  round on a terminal or logs it elsewhere (``logging.getLogger("raysearch")``). Warnings become Python
                  warnings.

Every function raises `UserError` if a key or a value is not understood, or does not fit the model, the data or the
machine. Functions that compute raise `EvaluationError` if an evaluation fails.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, get_args

from raysearch.core.formatting import as_typed, count
from raysearch.core.options import checked
from raysearch.core.paths import PathLike, as_folder, as_name, as_path, ledger_path, option_of
from raysearch.errors import EvaluationError, UserError
from raysearch.searching.events import StudyReported
from raysearch.searching.notebook import NotebookProgress, in_notebook
from raysearch.searching.observer import Observer, Observers, Tracker
from raysearch.searching.progress_lines import ProgressLines
from raysearch.text.redaction import hidden_keys

if TYPE_CHECKING:
    import pandas as pd

    from raysearch.assessment.results import SearchAssessment
    from raysearch.configuration.origins import Setting
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.ledger.checking import LedgerCheck
    from raysearch.ledger.ledger import Ledger
    from raysearch.ledger.merging import Merged
    from raysearch.ledger.table import Table
    from raysearch.models.export import ExportResult
    from raysearch.models.gguf_healing import HealedGGUF
    from raysearch.models.gguf_pruning import GGUFExport
    from raysearch.models.hub import HubRepository
    from raysearch.recovery.export import RecoveredExport
    from raysearch.recovery.record import RecoveryRecord
    from raysearch.recovery.results import Recovered, RecoveryCost
    from raysearch.recovery.spec import RecoverSpec
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.gap import Gap
    from raysearch.searching.inspection import Inspection
    from raysearch.searching.recommend import SpeedMeter
    from raysearch.searching.recommendation import Recommendation
    from raysearch.searching.record import Cleaned, SearchRecord
    from raysearch.searching.result import SearchResult
    from raysearch.searching.score import Score
    from raysearch.searching.spec import SearchSpec
    from raysearch.searching.sweep import Sweep
    from raysearch.studies.plan import StudyPlan
    from raysearch.studies.record import CellRecord, StudyRecord
    from raysearch.studies.result import StudyResult
    from raysearch.tracking.options import TrackingOptions
    from raysearch.tracking.sync import SyncedSearch, SyncedStudy

#: The commands that have a configuration.
Command = Literal["search", "score", "study", "assess", "recover"]


def search(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> SearchResult:
    """Find which layers to remove. The same call again resumes a search that was stopped.

        search(model="smollm2-135m", searcher="beam", remove=5, protect=[0, -1])
        search("data.path=my.txt", data="file", remove=3)
        search(remove="auto", budget={"loss": 0.1})
        search(searcher=Annealing(steps=20), remove=3)    an object of your own class, see docs/searchers.md

    Args:
        *overrides: See `raysearch.api`, as for the other arguments.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The mask that was found, with every trial.
    """
    from raysearch.configuration import build

    observer = _observer_or_default(observer)
    spec, tracking = build.tracked_search(_all_overrides(overrides, values), config_dir)
    return _run(spec, tracking, observer)


def config(*overrides: str, of: Command = "search", config_dir: PathLike | None = None, **values: Any) -> list[Setting]:
    """Return the resolved configuration of a command, each value with its origin.

        config("searcher=beam", remove=3)

    Args:
        *overrides: As for the command.
        of: The command: ``search``, ``score``, ``study``, ``assess`` or ``recover``.
        config_dir: A folder of your own YAML files.
        **values: The same keys as keyword arguments.
    """
    from raysearch.configuration.origins import settings_of

    if of not in (commands := get_args(Command)):
        raise UserError(f"of={of} has no configuration; use {', '.join(commands[:-1])} or {commands[-1]}")
    return settings_of(of, _all_overrides(overrides, values), config_dir)


def forecast(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> SearchForecast:
    """Return the expected cost of a search on an empty ledger, or refuse it as `search` would. Nothing is recorded.

    The data are read. The model's weights are not: the speed is measured on a few layers with random weights.

    Args:
        *overrides: As for `search`.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    from raysearch.configuration import build
    from raysearch.searching.run import forecast_search

    observer = _observer_or_default(observer)
    spec = build.search_spec(_all_overrides(overrides, values), config_dir)
    _speed_meter(spec, observer)  # refuses options that cannot be measured
    return forecast_search(spec, observer)


def resume(
    search: str = "latest",
    *overrides: str,
    store: PathLike = "mlruns",
    observer: Observer | None = None,
    **values: Any,
) -> SearchResult:
    """Resume a search that was stopped. Its earlier evaluations are read from the ledger.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        *overrides: ``tracking.key=value`` texts, to record the search in another place.
        store: The store, or a ledger's file.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    from raysearch.configuration import build
    from raysearch.configuration.compose import with_tracking

    observer = _observer_or_default(observer)
    with _opened_search(search, store) as (ledger, record):
        resumed_config = {
            **with_tracking(record.config, _all_overrides(overrides, values)),
            **_current_paths(record, store, ledger),
        }
    spec = build.recorded_search(resumed_config, goes_on=True)
    tracking = build.tracking_options(resumed_config)
    tracking.store.check()
    for key in hidden_keys({**spec.config, "tracking": {}}):
        raise UserError(
            f"{key} is recorded without its secret; type the whole search command again, which resumes it too"
        )
    return _run(spec, tracking, observer, record.search_id)


def score(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> list[Score]:
    """Return the exact loss of masks that you already have.

        score(masks=[[3], [3, 5], []], model="smollm2-135m")

    Args:
        *overrides: ``key=value`` texts; ``masks`` is required.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        A score for each mask, in the order of ``masks``.
    """
    from raysearch.configuration import build
    from raysearch.searching.score import score_masks

    observer = _observer_or_default(observer)
    evaluation, masks = build.score_spec(_all_overrides(overrides, values), config_dir)
    return score_masks(evaluation, masks, observer)


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    out: PathLike | None = None,
    remove: int = 5,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> Sweep:
    """Remove each single layer, and compare the losses by several calibrations.

        sweep(model="smollm2-135m", data="sotu", also=["objective=kl", "objective=hidden_cosine"])

    Args:
        *overrides: ``key=value`` texts of the first calibration, and of the model.
        also: Other calibrations: for each, the overrides that differ from the first.
        out: The folder to write a figure and tables to; None to write none.
        remove: The number of layers to mark in the figure.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    from raysearch.searching.sweep import run_sweep

    observer = _observer_or_default(observer)
    folder = None if out is None else as_folder("--out", out)  # refused now, not after hours
    result = run_sweep(_several_calibrations(overrides, values, also, config_dir), observer)
    if folder is None:
        return result
    from raysearch.reporting.figures.sweep import write_sweep

    return replace(result, files=tuple(write_sweep(result, remove, folder)))


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> list[Inspection]:
    """Show calibrations as the model sees them.

        inspect(data="commonsense170k", objective="task_margin", loss=False)

    Args:
        *overrides: ``key=value`` texts of the first calibration, and of the model.
        also: Other calibrations: for each, the overrides that differ from the first.
        samples: The number of samples to show of each calibration.
        loss: Compute the loss of the dense model.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    from raysearch.searching.inspection import inspect_data

    if samples < 0:
        raise UserError(f"--samples={samples} is negative; use 0 or more")
    observer = _observer_or_default(observer)
    return inspect_data(_several_calibrations(overrides, values, also, config_dir), samples, loss, observer)


def study(
    *overrides: str,
    config_dir: PathLike | None = None,
    out: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> tuple[StudyResult, list[Path]]:
    """Run a grid of searches and write its report. The same call again resumes a study that was stopped.

        study(study="two_calibrations", assess="offline")
        study("study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[3,5]", data={"samples": 8})

    Args:
        *overrides: ``key=value`` texts.
        config_dir: A folder of your own YAML files.
        out: The folder of the report; None for ``reports/<study>`` in the store.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The study's results, and the files of its report. The page is the first file; ``cells.csv`` is a table for
        pandas with a row per search. A search that fails does not stop the others: the results hold its cause.

    Raises:
        UserError: A step after the searches failed: held-out data, assessment or recovery. The message names the report
            of everything else.
        EvaluationError: The same, or Ray has died.
    """
    from raysearch.configuration import build
    from raysearch.studies.run import run_study
    from raysearch.tracking.mlflow.tracker import open_tracker
    from raysearch.tracking.sync import complete_killed_searches

    observer = _observer_or_default(observer)
    spec, tracking = build.tracked_study(_all_overrides(overrides, values), config_dir)
    out = None if out is None else as_folder("--out", out)
    open_search_tracker = partial(open_tracker, tracking.with_absolute_paths())
    record, failures = run_study(spec, observer, _tracker(tracking, observer), open_search_tracker)
    with _opened_ledger(spec.ledger) as ledger:
        complete_killed_searches(record, ledger, tracking, observer.warn)
        results, files = _write_report(record, ledger, spec.store, out, observer)
    if failures:
        first_failure = failures[0]
        n_more = len(failures) - 1
        more = f" (and {count(n_more, 'failure')} more)" if n_more else ""
        kind = UserError if isinstance(first_failure, UserError) else EvaluationError
        raise kind(
            f"{first_failure}{more}; all else is in {files[0]}, and the same command tries this again"
        ) from first_failure
    return results, files


def plan(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> StudyPlan:
    """Return the expected cost of a study in time and memory, or refuse it as `study` would.

    Args:
        *overrides: As for `study`.
        config_dir: A folder of your own YAML files.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    from raysearch.configuration import build
    from raysearch.studies.plan import plan_study

    observer = _observer_or_default(observer)
    return plan_study(build.study_spec(_all_overrides(overrides, values), config_dir), observer, with_time=True)


def report(
    study: str = "latest",
    *,
    store: PathLike = "mlruns",
    out: PathLike | None = None,
    mlflow_url: str | None = None,
    observer: Observer | None = None,
) -> tuple[StudyResult, list[Path]]:
    """Write the report of a study from its current results: a page, Markdown, tables and figures. Nothing is computed.

    Args:
        study: A study's id, the start of one, its MLflow run id, or ``latest``.
        store: The store, or a ledger's file.
        out: The folder to write; None for ``reports/<study>`` in the store.
        mlflow_url: MLflow's address for readers of the report: ``http://host:5000``. None for the address that the
            study recorded to, or that ``raysearch ui`` serves the store at.
        observer: Receives the progress.

    Returns:
        The study's results, and the files of the report, the page first.
    """
    from raysearch.studies.record import STUDIES

    observer = _observer_or_default(observer)
    with _opened_ledger(store) as ledger:
        return _write_report(STUDIES.find(ledger, study), ledger, store, out, observer, mlflow_url)


def assess(
    name: str = "latest",
    *overrides: str,
    remove: int | None = None,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    out: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> SearchAssessment | tuple[StudyResult, list[Path]]:
    """Measure the pruned model of a search, or of each search of a study, and the dense model.

    Numbers that the ledger contains are not computed again. The report of a study is written again.

        assess("latest", assess="paper")
        assess("greedy-m5-3fa2c1d0", "assess=none", assess={"tasks": ["piqa"], "limit": 100})

    Args:
        name: The id of a search or a study, the start of one, an MLflow run id, or ``latest``.
        *overrides: ``key=value`` texts.
        remove: Assess the best mask of so many layers; None for the search's result.
        config_dir: A folder of your own YAML files.
        store: The store, or a ledger's file.
        out: The folder of a study's report; None for ``reports/<study>`` in the store.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The assessment of a search; or the results of a study and the files of its report, the page first.
    """
    from raysearch.assessment.assess import assess_search
    from raysearch.configuration import build
    from raysearch.searching.record import SearchRecord
    from raysearch.studies.assess import assess_study
    from raysearch.studies.record import STUDIES

    observer = _observer_or_default(observer)
    out = None if out is None else as_folder("--out", out)
    all_overrides = _all_overrides(overrides, values)
    with _opened_ledger(store) as ledger:
        record = _search_or_study(ledger, name)
        if remove is not None and not isinstance(record, SearchRecord):
            raise UserError(f"--remove={remove} is of one search; leave it out for a study, or name the search")
        if out is not None and isinstance(record, SearchRecord):
            raise UserError(f"--out={out} is of a study, which has a report; leave it out for one search")
        job_config = _job_config("assess", all_overrides, record, config_dir)
        spec = build.assess_spec(job_config)
        tracked_observer = _tracked_observer(_tracking_options(record, store, ledger), observer)
        changes = {**_current_paths(record, store, ledger), "cluster": job_config["cluster"]}
        if isinstance(record, SearchRecord):
            search = build.recorded_search({**record.config, **changes})
            return assess_search(record, ledger, search, spec, remove, tracked_observer)

        def search_of(recorded_config: Mapping[str, Any]) -> SearchSpec:
            return build.recorded_search({**recorded_config, **changes})

        assess_study(record, ledger, spec, search_of, tracked_observer)
        return _write_report(STUDIES.find(ledger, record.study_id), ledger, store, out, observer)


class Shown(NamedTuple):
    """Recorded searches, the newest first. If one search was named, further facts about it.

    Args:
        records: The searches.
        gap: The rank of the search's result among all masks of as many layers, if requested.
        evaluated: The number of masks evaluated on its samples so far; None if the search has a result.
        assessed: See the function `assessed`.
        recoveries: See the function `recoveries`.
        cells: By search id: the id of the study that contains the search, and its cell there.
        command: The command that repeats the search; None if no search was named.
    """

    records: list[SearchRecord]
    gap: Gap | None = None
    evaluated: int | None = None
    assessed: Mapping[str, float] = MappingProxyType({})
    recoveries: Sequence[RecoveryRecord] = ()
    cells: Mapping[str, tuple[str, CellRecord]] = MappingProxyType({})
    command: str | None = None


def show(search: str | None = None, *, gap: bool = False, store: PathLike = "mlruns") -> Shown:
    """Return the searches of a ledger, the newest first; or one of them.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``; None for all searches.
        gap: Rank the search's result among all masks of as many layers.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.record import SEARCHES, count_evaluated, with_current_states
    from raysearch.studies.record import cells_by_search

    with _opened_ledger(store) as ledger:
        cells = cells_by_search(ledger)
        if search is None:
            if gap:
                raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
            return Shown(with_current_states(ledger, SEARCHES.all(ledger)), cells=cells)
        record = _search_named(ledger, search)
        rank = None
        if gap:
            from raysearch.searching.gap import gap_of  # imports torch

            rank = gap_of(record, ledger)
        from raysearch.configuration.repeat import command_of

        command = command_of(record.config) or f"raysearch resume {record.search_id}{option_of(record.config)}"
        shown = Shown([record], rank, cells=cells, command=command)
        if record.result is None:
            return shown._replace(evaluated=count_evaluated(ledger, record))
        from raysearch.assessment.recorded import recorded_assessments
        from raysearch.recovery.record import recoveries_of_search

        return shown._replace(
            assessed=recorded_assessments(ledger, record), recoveries=recoveries_of_search(ledger, record)
        )


def load(search: str = "latest", *, store: PathLike = "mlruns") -> SearchResult:
    """Return the result of a search from the ledger: ``load("latest").to_frame()``.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        store: The store, or a ledger's file.
    """
    return _recorded_search(search, store).finished_result


def searches(*, store: PathLike = "mlruns") -> pd.DataFrame:
    """Return all searches of a ledger as a table indexed by their ids, the newest first.

    A search that has not finished has no losses in the table.
    """
    from raysearch.searching.frames import searches_frame

    return searches_frame(show(store=store).records)


def evaluated(search: str = "latest", *, store: PathLike = "mlruns") -> int:
    """Return the number of masks evaluated on a search's samples so far: the progress of an unfinished search.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.record import count_evaluated

    with _opened_search(search, store) as (ledger, record):
        return count_evaluated(ledger, record)


def assessed(search: str = "latest", *, store: PathLike = "mlruns") -> dict[str, float]:
    """Return all assessed numbers of a search's mask, by the names that MLflow shows; empty if it was not assessed.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        store: The store, or a ledger's file.
    """
    from raysearch.assessment.recorded import recorded_assessments

    with _opened_search(search, store) as (ledger, record):
        return {} if record.result is None else recorded_assessments(ledger, record)


def recoveries(search: str = "latest", *, store: PathLike = "mlruns") -> list[RecoveryRecord]:
    """Return the recoveries of a search's masks in the order of their creation; empty if there are none.

    They include recoveries for other searches that found the same masks of the model; see `RecoveryRecord.search_id`.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        store: The store, or a ledger's file.
    """
    from raysearch.recovery.record import recoveries_of_search

    with _opened_search(search, store) as (ledger, record):
        return recoveries_of_search(ledger, record)


def recommend(
    search: str = "latest",
    *overrides: str,
    budget: Mapping[str, float | str] | None = None,
    store: PathLike = "mlruns",
) -> Recommendation:
    """Return how many layers can be removed within a budget. Nothing is computed: all numbers are from the ledger.

        recommend("latest", "budget.loss=0.1")
        recommend("latest", budget={"readout": "10%", "speedup": 1.2})

    Args:
        search: A search, preferably with a range of sizes, ``remove=1..9``.
        *overrides: ``budget.loss``, ``budget.readout``, ``budget.speedup`` and ``budget.memory``, each with its value.
            Without any, the budget of the search itself (``remove=auto``).
        budget: The same as a mapping.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.recommend import recommend
    from raysearch.searching.recommendation import Budget

    limits = [
        *_all_overrides(overrides, {}),
        *(f"budget.{limit}={as_typed(value)}" for limit, value in (budget or {}).items()),
    ]
    new_budget = Budget.parse(limits) if limits else None
    with _opened_search(search, store) as (ledger, record):
        result = record.finished_result
        search_budget = None if result.recommendation is None else result.recommendation.budget
        return recommend(result, new_budget or search_budget or Budget(), ledger)


def export(
    search: str = "latest",
    *,
    out: PathLike,
    remove: int | None = None,
    overwrite: bool = False,
    prompt: str | None = None,
    push: str | None = None,
    public: bool = False,
    store: PathLike = "mlruns",
) -> ExportResult:
    """Write the pruned model of a search as a checkpoint that plain transformers, vLLM and llama.cpp load.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        out: The folder to write.
        remove: Export the best mask of so many layers; None for the search's result.
        overwrite: Replace an existing export.
        prompt: A text for both models to continue, as a spot check.
        push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the export to.
        public: Make the repository public.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.export import export_search

    inputs = _export_inputs(search, overwrite, push, public, store)
    return export_search(
        inputs.record,
        inputs.spec,
        as_path("--out", out),
        remove=remove,
        overwrite=overwrite,
        prompt=prompt,
        push=inputs.repository,
    )


def export_gguf(
    search: str = "latest",
    *,
    out: PathLike,
    source: PathLike | None = None,
    remove: int | None = None,
    overwrite: bool = False,
    push: str | None = None,
    public: bool = False,
    store: PathLike = "mlruns",
) -> GGUFExport:
    """Write the pruned model of a search as a GGUF file. The tensors that remain are copied byte for byte.

        export_gguf("latest", out="pruned-Q4_K_M.gguf", source="model-Q4_K_M.gguf")

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        out: The file to write.
        source: A GGUF file of the same model, in any quantisation; None for the file that was searched.
        remove: Export the best mask of so many layers; None for the search's result.
        overwrite: Replace an existing file.
        push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the file to.
        public: Make the repository public.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.export import export_search_as_gguf

    inputs = _export_inputs(search, overwrite, push, public, store)
    return export_search_as_gguf(
        inputs.record,
        inputs.spec,
        as_path("--gguf", out),
        source=None if source is None else as_path("--from", source),
        remove=remove,
        overwrite=overwrite,
        push=inputs.repository,
    )


def export_recovered(
    search: str = "latest",
    *,
    out: PathLike,
    remove: int | None = None,
    overwrite: bool = False,
    push: str | None = None,
    public: bool = False,
    store: PathLike = "mlruns",
) -> RecoveredExport:
    """Copy the checkpoint that `recover` wrote last to another folder.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        out: The folder to write.
        remove: Export the recovery of the best mask of so many layers; None for the search's result.
        overwrite: Replace an existing export.
        push: A repository of the Hugging Face Hub, ``OWNER/NAME``, to upload the export to.
        public: Make the repository public.
        store: The store, or a ledger's file.
    """
    from raysearch.recovery.export import export_recovered

    inputs = _export_inputs(search, overwrite, push, public, store)
    folder = as_path("--out", out)
    with _opened_ledger(store) as ledger:
        return export_recovered(
            inputs.record,
            ledger,
            inputs.spec,
            folder,
            remove=remove,
            overwrite=overwrite,
            push=inputs.repository,
        )


def export_recovered_gguf(
    search: str = "latest",
    *,
    out: PathLike,
    source: PathLike | None = None,
    remove: int | None = None,
    overwrite: bool = False,
    store: PathLike = "mlruns",
) -> HealedGGUF:
    """Write the model that `recover` wrote last as a GGUF file.

    Tensors that the training has not changed keep their bytes; the others have eight bits or more per weight.

        export_recovered_gguf("latest", out="healed.gguf")

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        out: The file to write.
        source: A GGUF file of the dense model; None for the file that was searched.
        remove: Export the recovery of the best mask of so many layers; None for the search's result.
        overwrite: Replace an existing file.
        store: The store, or a ledger's file.
    """
    from raysearch.recovery.export import export_recovered_as_gguf

    inputs = _export_inputs(search, overwrite, None, False, store)
    file = as_path("--gguf", out)
    source = None if source is None else as_path("--from", source)
    with _opened_ledger(store) as ledger:
        return export_recovered_as_gguf(
            inputs.record, ledger, inputs.spec, file, source=source, remove=remove, overwrite=overwrite
        )


def recover(
    search: str = "latest",
    *overrides: str,
    out: PathLike,
    remove: int | None = None,
    overwrite: bool = False,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    observer: Observer | None = None,
    **values: Any,
) -> Recovered:
    """Train the pruned model to regain the lost quality, write it as a checkpoint, and assess it.

    The same call again resumes a recovery that was stopped.

        recover("latest", out="healed")
        recover("latest", "data.path=alpaca.jsonl", out="healed", recovery="paper", data="alpaca")

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        *overrides: ``key=value`` texts.
        out: The folder of the recovered checkpoint.
        remove: Recover the best mask of so many layers; None for the search's result.
        overwrite: Replace an existing checkpoint.
        config_dir: A folder of your own YAML files.
        store: The store, or a ledger's file.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    observer = _observer_or_default(observer)
    checked(bool, "--overwrite", overwrite)
    with _recovery_inputs(search, _all_overrides(overrides, values), store, config_dir) as inputs:
        from raysearch.recovery.recover import recover_search

        tracking = _tracking_options(inputs.record, store, inputs.ledger)
        return recover_search(
            inputs.record,
            inputs.ledger,
            inputs.search,
            inputs.spec,
            as_path("--out", out),
            remove=remove,
            overwrite=overwrite,
            observer=_tracked_observer(tracking, observer),
        )


def recovery_cost(
    search: str = "latest",
    *overrides: str,
    remove: int | None = None,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    observer: Observer | None = None,
    **values: Any,
) -> RecoveryCost:
    """Return the expected cost of a recovery. One training step is timed, and nothing is written.

    Args:
        search: A search id, the start of one, an MLflow run id, or ``latest``.
        *overrides: As for `recover`.
        remove: Recover the best mask of so many layers; None for the search's result.
        config_dir: A folder of your own YAML files.
        store: The store, or a ledger's file.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.
    """
    observer = _observer_or_default(observer)
    with _recovery_inputs(search, _all_overrides(overrides, values), store, config_dir) as inputs:
        from raysearch.recovery.recover import recovery_cost

        return recovery_cost(inputs.record, inputs.ledger, inputs.search, inputs.spec, remove, observer)


def sync(
    name: str = "latest", *overrides: str, store: PathLike = "mlruns", **values: Any
) -> SyncedSearch | SyncedStudy:
    """Upload the missing runs and metrics of a search or a study from the ledger to MLflow. Nothing is written twice.

        sync("latest")
        sync("greedy-m5-3fa2c1d0", "tracking.uri=http://127.0.0.1:5000")

    Args:
        name: The id of a search or a study, the start of one, an MLflow run id, or ``latest``.
        *overrides: ``tracking.key=value`` texts, for another place than the recorded one.
        store: The store, or a ledger's file.
        **values: The same keys as keyword arguments.
    """
    from raysearch.configuration.compose import with_tracking
    from raysearch.tracking.sync import sync

    with _opened_ledger(store) as ledger:
        record = _search_or_study(ledger, name)
        new_config = with_tracking(record.config, _all_overrides(overrides, values))
        tracking = _tracking_options(replace(record, config=new_config), store, ledger)
        if tracking.type == "none":
            raise UserError(
                f"SEARCH={name} was run with tracking=none; name a place: tracking=mlflow, and tracking.uri=…"
            )
        return sync(record, ledger, tracking)


def check_ledger(*, store: PathLike = "mlruns") -> LedgerCheck:
    """Read every row of a ledger, and return the damage that was found."""
    from raysearch.ledger.checking import check_ledger

    with _opened_ledger(store) as ledger:
        return check_ledger(ledger, _record_tables())


def merge_ledgers(*other_ledgers: PathLike, store: PathLike = "mlruns") -> Merged:
    """Copy the rows of other ledgers that this one lacks. Each ledger is merged completely, or not at all.

        merge_ledgers("other-machine/ledger.db", store="mlruns")

    Args:
        *other_ledgers: The files of the other ledgers, or their stores.
        store: The store of this ledger, or its file.
    """
    from raysearch.ledger.ledger import Ledger
    from raysearch.ledger.merging import merge_ledgers

    files = [ledger_path("OTHER", ledger) for ledger in other_ledgers]
    with closing(Ledger(ledger_path("--store", store))) as ledger:
        return merge_ledgers(ledger, files, _record_tables())


def clean_ledger(*searches: str, yes: bool = False, store: PathLike = "mlruns") -> Cleaned:
    """Delete searches, and the evaluations that no other recorded search uses, and shrink the file.

    Args:
        *searches: Ids, starts of ids, or ``latest``; none to shrink the file only.
        yes: Delete. Otherwise only count what would be deleted.
        store: The store, or a ledger's file.
    """
    from raysearch.searching.record import clean
    from raysearch.studies.record import STUDIES

    checked(bool, "yes", yes)
    with _opened_ledger(store) as ledger:
        studies = STUDIES.all(ledger)
        cleaned = clean(ledger, searches, really=yes)
        affected = [
            study.study_id for study in studies if any(cell.search_id in cleaned.searches for cell in study.cells)
        ]
        return replace(cleaned, studies=affected)


def export_ledger(*, out: PathLike, format: str = "csv", store: PathLike = "mlruns") -> dict[Path, int]:
    """Write the searches, trials and evaluations of a ledger as tables for pandas, R or a spreadsheet.

    Args:
        out: The folder to write.
        format: ``csv``, ``parquet`` or ``jsonl``.
        store: The store, or a ledger's file.

    Returns:
        The files, each with its number of rows.
    """
    from raysearch.searching.frames import export_frames

    with _opened_ledger(store) as ledger:
        return export_frames(ledger, as_folder("--out", out), format)


def ui(store: PathLike = "mlruns", uri: str | None = None, host: str = "127.0.0.1", port: int = 5000) -> NoReturn:
    """Run MLflow's server for the recorded searches until Ctrl-C. The current process becomes the server.

    Args:
        store: The folder that searches write to.
        uri: A tracking URI other than the store's.
        host: The address to listen on.
        port: The port to listen on.
    """
    from raysearch.tracking.mlflow.ui import serve_ui

    serve_ui(as_path("--store", store), uri, host, port)


def _run(
    spec: SearchSpec, tracking: TrackingOptions, observer: Observer, resumed_id: str | None = None
) -> SearchResult:
    """Run a search. A search by budget also writes the figure ``reports/<search>/knee.png`` in its store."""
    from raysearch.searching.run import run_search

    tracker = _tracker(tracking, observer)
    result = run_search(spec, observer, tracker, resumed_id, _speed_meter(spec, observer))
    if result.recommendation is not None:
        from raysearch.reporting.figures.knee import write_knee

        write_knee(result.recommendation, tracking.folder)
    return result


def _speed_meter(spec: SearchSpec, observer: Observer) -> SpeedMeter | None:
    """Return the meter of speeds for a search by budget, or refuse its options; None without a budget."""
    if spec.budget is None:
        return None
    from raysearch.assessment.assess import speed_meter
    from raysearch.configuration import build

    return speed_meter(build.speed_options(spec.config), spec.evaluation, observer)


def _opened_ledger(store: object) -> AbstractContextManager[Ledger]:
    """Open the ledger of a store, or the ledger's file."""
    from raysearch.ledger.ledger import opened

    return opened(ledger_path("--store", store))


def _all_overrides(overrides: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return overrides, followed by keyword arguments as overrides."""
    from raysearch.configuration.overrides import as_overrides

    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"{reprlib.repr(override)} has no key; name it, as in remove=5 or masks=[[1]]")
    return [*overrides, *as_overrides(values)]


def _several_calibrations(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: PathLike | None
) -> EvaluationSpec:
    """Return an evaluation on the calibration of the overrides, and on those of `also`."""
    from raysearch.configuration import build

    calibrations = [also] if isinstance(also, str) else also
    return build.evaluation_spec(_all_overrides(overrides, values), calibrations, config_dir)


class _ExportInputs(NamedTuple):
    """A recorded search, its specification, and the repository to upload its export to, if any."""

    record: SearchRecord
    spec: SearchSpec
    repository: HubRepository | None


def _export_inputs(search: str, overwrite: bool, push: str | None, public: bool, store: PathLike) -> _ExportInputs:
    """Check the options of an export, and return its inputs."""
    from raysearch.configuration import build

    checked(bool, "--overwrite", overwrite)
    checked(bool, "--public", public)
    if public and push is None:
        raise UserError("--public is of a repository of the hub; name it with --push=OWNER/NAME")
    repository = None
    if push is not None:
        from raysearch.models.hub import HubRepository

        repository = HubRepository(push, public, overwrite)
    record = _recorded_search(search, store)
    return _ExportInputs(record, build.recorded_search(record.config), repository)


def _record_tables() -> list[Table[Any]]:
    """Return the tables of a ledger whose rows are records: searches and studies."""
    from raysearch.searching.record import SEARCHES
    from raysearch.studies.record import STUDIES

    return [SEARCHES, STUDIES]


@contextmanager
def _opened_search(search: str, store: PathLike) -> Iterator[tuple[Ledger, SearchRecord]]:
    """Open the ledger of a store, or the ledger's file, and find the search of this name."""
    with _opened_ledger(store) as ledger:
        yield ledger, _search_named(ledger, search)


def _search_named(ledger: Ledger, name: str) -> SearchRecord:
    """Return the only search that matches a name."""
    from raysearch.searching.record import SEARCHES, find_search
    from raysearch.studies.record import STUDIES

    try:
        return find_search(ledger, name)
    except UserError as error:
        if SEARCHES.names(ledger, name) or not STUDIES.names(ledger, name):
            raise
        raise UserError(
            f"SEARCH={name!r} is a study; raysearch report {name} shows the results of its searches, or name one of "
            "them"
        ) from error


def _recorded_search(search: str, store: PathLike) -> SearchRecord:
    """Return the record of the search of this name."""
    with _opened_search(search, store) as (_, record):
        return record


def _current_paths(record: SearchRecord | StudyRecord, store: PathLike, ledger: Ledger) -> dict[str, str | None]:
    """Return the values of ``store`` and ``ledger`` for a record, which may have been moved since it was written.

    If only the ledger's file is named, the store is the folder of the file; or the recorded store, if the record has a
    separate ledger.
    """
    folder = as_path("--store", store)
    if folder.is_file():
        folder = folder.parent if record.config.get("ledger") is None else Path(record.config["store"])
    return {"store": str(folder), "ledger": None if ledger.path == folder / "ledger.db" else str(ledger.path)}


class _RecoveryInputs(NamedTuple):
    """A recorded search, its ledger and specification, and the specification of its recovery."""

    record: SearchRecord
    ledger: Ledger
    search: SearchSpec
    spec: RecoverSpec


@contextmanager
def _recovery_inputs(
    search: str, overrides: Sequence[str], store: PathLike, config_dir: PathLike | None
) -> Iterator[_RecoveryInputs]:
    """Open the ledger of a store, and build the recovery of one of its searches."""
    from raysearch.configuration import build

    with _opened_search(search, store) as (ledger, record):
        job_config = _job_config("recover", overrides, record, config_dir)
        changes = {**_current_paths(record, store, ledger), "cluster": job_config["cluster"]}
        search_spec = build.recorded_search({**record.config, **changes})
        yield _RecoveryInputs(record, ledger, search_spec, build.recover_spec(job_config))


def _job_config(
    job: str, overrides: Sequence[str], record: SearchRecord | StudyRecord, config_dir: PathLike | None
) -> dict[str, Any]:
    """Return the configuration of a job for a recorded search or study: on its cluster, unless overridden."""
    from raysearch.configuration.compose import compose, with_section

    return compose(job, with_section("cluster", record.config, overrides), config_dir)


def _search_or_study(ledger: Ledger, name: str) -> SearchRecord | StudyRecord:
    """Return the only search or study that matches a name."""
    from raysearch.ledger.table import find_in
    from raysearch.searching.record import SEARCHES, SearchRecord, with_current_states
    from raysearch.studies.record import STUDIES

    record: SearchRecord | StudyRecord = find_in(ledger, name, SEARCHES, STUDIES)
    return with_current_states(ledger, [record])[0] if isinstance(record, SearchRecord) else record


def _tracking_options(record: SearchRecord | StudyRecord, store: PathLike, ledger: Ledger) -> TrackingOptions:
    """Return the tracking options of a recorded search or study."""
    from raysearch.configuration import build
    from raysearch.configuration.compose import with_tracking

    return build.tracking_options({**with_tracking(record.config, ()), **_current_paths(record, store, ledger)})


def _tracker(tracking: TrackingOptions, observer: Observer) -> Tracker:
    """Return the tracker. The observer receives its warnings, and its progress when the caller waits for it."""
    from raysearch.tracking.mlflow.tracker import open_tracker

    return open_tracker(tracking, observer.warn, observer.recording)


def _tracked_observer(tracking: TrackingOptions, observer: Observer) -> Observer:
    """Return an observer that passes every event to a tracker and to this observer."""
    return Observers(_tracker(tracking, observer), observer)


def _write_report(
    record: StudyRecord,
    ledger: Ledger,
    store: PathLike,
    out: PathLike | None,
    observer: Observer,
    mlflow_url: str | None = None,
) -> tuple[StudyResult, list[Path]]:
    """Write a study's report, and record it."""
    from raysearch.reporting.write import write_report
    from raysearch.studies.collect import collect, has_ended

    tracking = _tracking_options(record, store, ledger)
    default_folder = tracking.folder / "reports" / as_name("STUDY", record.study_id)
    folder = default_folder if out is None else as_folder("--out", out)
    results = collect(record, ledger, lambda run_id: tracking.link(run_id, mlflow_url))
    files = write_report(results, folder)
    top_entries = sorted({folder / file.relative_to(folder).parts[0] for file in files})
    ended = has_ended(results, ledger)
    tracked_observer = _tracked_observer(tracking, observer)
    tracked_observer.on_event(StudyReported(record.mlflow_run_id, results.totals, top_entries, ended))
    return results, files


def _observer_or_default(observer: Observer | None) -> Observer:
    """Return the user's observer; by default, one for a notebook or for a script."""
    if observer is not None and not isinstance(observer, Observer):
        raise UserError(
            f"observer={reprlib.repr(observer)} is not an Observer; give an object of a class derived from it"
        )
    return observer or (NotebookProgress() if in_notebook() else ProgressLines())
