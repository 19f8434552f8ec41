"""The Python API: one function for each command, which returns objects.

Arguments that mean the same in all of them:

    *overrides    ``key=value`` words, as on the command line
    **values      the same keys as arguments; a mapping sets the keys inside a group: ``data={"samples": 32}``
    config_dir    a folder of your own YAML files, laid out like ``conf/``
    search        a search id, the start of one, an MLflow run id, or ``latest``
    name          the id of a search or a study, the start of one, an MLflow run id, or ``latest`` for the last search
    remove        of a search on record: its best mask of so many layers, not the one that it found
    overwrite     whether to replace what is there
    push          the repository of the Hugging Face Hub that an export is sent to as well, ``OWNER/NAME``
    public        whether that is one that everyone may read; a new one is private without
    store         the folder that searches write to, or the file of a ledger that is elsewhere
    observer      watches; without one, a notebook shows a bar, a script on a terminal prints a line a round, any other
                  one logs it (``logging.getLogger("raysearch")``), and warnings become Python warnings

Every function raises `UserError` where a key or a value is not understood, or does not fit the model, the data or the
machine; those that compute raise `EvaluationError` where something cannot be evaluated.
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
from raysearch.errors import EvaluationError, UserError, hidden_keys
from raysearch.searching.notebook import NotebookProgress, in_notebook
from raysearch.searching.observer import Observer, Observers, Tracker
from raysearch.searching.progress_lines import ProgressLines

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
    """Find which layers to remove; the same call again goes on where it was stopped.

        search(model="smollm2-135m", searcher="beam", remove=5, protect=[0, -1])
        search("data.path=my.txt", data="file", remove=3)
        search(remove="auto", budget={"loss": 0.1})
        search(searcher=Annealing(steps=20), remove=3)    an object of a class of your own, see docs/searchers.md

    Returns:
        What was found, with every trial.
    """
    from raysearch.configuration import build

    watching = _observer(observer)
    return _run(*build.tracked_search(_words(overrides, values), config_dir), watching)


def config(*overrides: str, of: Command = "search", config_dir: PathLike | None = None, **values: Any) -> list[Setting]:
    """Return the resolved configuration of a command, each value with its origin.

        config("searcher=beam", remove=3)

    Args:
        of: The command: ``search``, ``score``, ``study``, ``assess`` or ``recover``.
    """
    from raysearch.configuration.origins import settings_of

    if of not in (commands := get_args(Command)):
        raise UserError(f"of={of} has no configuration; use {', '.join(commands[:-1])} or {commands[-1]}")
    return settings_of(of, _words(overrides, values), config_dir)


def forecast(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> SearchForecast:
    """Return what a search would cost on an empty ledger, or refuse it as `search` would; nothing is recorded.

    The arguments are those of `search`. The data are read, the model's weights are not: its speed is measured on a few
    layers with random weights.
    """
    from raysearch.configuration import build
    from raysearch.searching.run import forecast_search

    watching = _observer(observer)
    spec = build.search_spec(_words(overrides, values), config_dir)
    _speed_meter(spec, watching)  # refuses what cannot be measured
    return forecast_search(spec, watching)


def resume(
    search: str = "latest",
    *overrides: str,
    store: PathLike = "mlruns",
    observer: Observer | None = None,
    **values: Any,
) -> SearchResult:
    """Go on with a search that was stopped; the ledger answers what was evaluated before.

    Args:
        *overrides: ``tracking.key=value`` words, for another place to record it in.
    """
    from raysearch.configuration import build
    from raysearch.configuration.compose import recorded

    watching = _observer(observer)
    with _found(search, store) as (found, record):
        composed = {**recorded(record.config, _words(overrides, values)), **_places(record, store, found)}
    spec, tracking = build.recorded_search(composed, goes_on=True), build.tracking_options(composed)
    tracking.store.check()
    for key in hidden_keys({**spec.config, "tracking": {}}):
        raise UserError(
            f"{key} is on record without its secret; type the whole search command again, which goes on too"
        )
    return _run(spec, tracking, watching, record.search_id)


def score(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> list[Score]:
    """Return the exact loss of masks that you already have.

        score(masks=[[3], [3, 5], []], model="smollm2-135m")

    Returns:
        A score for each mask, in order.
    """
    from raysearch.configuration import build
    from raysearch.searching.score import score_masks

    watching = _observer(observer)
    return score_masks(*build.score_spec(_words(overrides, values), config_dir), watching)


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    out: PathLike | None = None,
    remove: int = 5,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> Sweep:
    """Remove each layer by itself, and compare what several calibrations make of it.

        sweep(model="smollm2-135m", data="sotu", also=["objective=kl", "objective=hidden_cosine"])

    Args:
        also: Other calibrations, by the words that are different.
        out: The folder to write a figure and tables to; None for none.
        remove: How many layers the figure marks.
    """
    from raysearch.searching.sweep import run_sweep

    watching = _observer(observer)
    folder = None if out is None else as_folder("--out", out)  # before hours are spent
    found = run_sweep(_side_by_side(overrides, values, also, config_dir), watching)
    if folder is None:
        return found
    from raysearch.reporting.figures.sweep import write_sweep

    return replace(found, files=tuple(write_sweep(found, remove, folder)))


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> list[Inspection]:
    """Show calibrations as the model will see them.

        inspect(data="commonsense170k", objective="task_margin", loss=False)

    Args:
        also: Other calibrations, by the words that are different.
        samples: How many samples to show of each.
        loss: Whether the dense model is run on them.
    """
    from raysearch.searching.inspection import inspect_data

    if samples < 0:
        raise UserError(f"--samples={samples} is negative; use 0 or more")
    watching = _observer(observer)
    return inspect_data(_side_by_side(overrides, values, also, config_dir), samples, loss, watching)


def study(
    *overrides: str,
    config_dir: PathLike | None = None,
    out: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> tuple[StudyResult, list[Path]]:
    """Run a grid of searches and write its report; the same call again goes on where it was stopped.

        study(study="two_calibrations", assess="offline")
        study("study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[3,5]", data={"samples": 8})

    Args:
        out: The folder of the report; None for ``reports/<study>`` in the store.

    Returns:
        What the study found, and the files of the report, the page first; ``cells.csv`` among them is a table for
        pandas, a line a search. A search that fails does not stop the others: its cause stands in the results.

    Raises:
        UserError: Something cannot be held out, assessed or recovered; the message names the report of all else.
        EvaluationError: The same, or Ray has died.
    """
    from raysearch.configuration import build
    from raysearch.studies.run import run_study
    from raysearch.tracking.mlflow.tracker import open_tracker
    from raysearch.tracking.sync import mend

    watching = _observer(observer)
    spec, tracking = build.tracked_study(_words(overrides, values), config_dir)
    out = None if out is None else as_folder("--out", out)
    open_one = partial(open_tracker, tracking.elsewhere())
    record, failures = run_study(spec, watching, _tracker(tracking, watching), open_one)
    with _opened(spec.ledger) as found:
        mend(record, found, tracking, watching.warn)
        written = _report(record, found, spec.store, out, watching)
    if failures:
        first, others = failures[0], len(failures) - 1
        more = f" (and {count(others, 'failure')} more)" if others else ""
        kind = UserError if isinstance(first, UserError) else EvaluationError
        raise kind(f"{first}{more}; all else is in {written[1][0]}, and the same command tries this again") from first
    return written


def plan(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> StudyPlan:
    """Return what a study would cost, in how much time and memory, or refuse it as `study` would.

    The arguments are those of `study`.
    """
    from raysearch.configuration import build
    from raysearch.studies.plan import plan_study

    watching = _observer(observer)
    return plan_study(build.study_spec(_words(overrides, values), config_dir), watching, with_time=True)


def report(
    study: str = "latest",
    *,
    store: PathLike = "mlruns",
    out: PathLike | None = None,
    mlflow_url: str | None = None,
    observer: Observer | None = None,
) -> tuple[StudyResult, list[Path]]:
    """Write the report of a study as far as it is done: a page, Markdown, tables and figures; nothing is computed.

    Args:
        study: A study's id, the start of one, its MLflow run id, or ``latest``.
        out: The folder to write; None for ``reports/<study>`` in the store.
        mlflow_url: Where the report's readers find MLflow: ``http://host:5000``. None for where the study wrote to, or
            where ``raysearch ui`` serves its store.

    Returns:
        What the study found, and the files, the page first.
    """
    from raysearch.studies.record import STUDIES

    watching = _observer(observer)
    with _opened(store) as found:
        return _report(STUDIES.find(found, study), found, store, out, watching, mlflow_url)


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
    """Measure what a search, or each search of a study, found beside the dense model.

    What the ledger knows is not computed again. The report of a study is written anew.

        assess("latest", assess="paper")
        assess("greedy-m5-3fa2c1d0", "assess=none", assess={"tasks": ["piqa"], "limit": 100})

    Args:
        out: The folder of a study's report; None for ``reports/<study>`` in the store.

    Returns:
        The assessment of a search; or what a study found, and the files of its report, the page first.
    """
    from raysearch.assessment.assess import assess_search
    from raysearch.configuration import build
    from raysearch.searching.record import SearchRecord
    from raysearch.studies.assess import assess_study
    from raysearch.studies.record import STUDIES

    watching = _observer(observer)
    out = None if out is None else as_folder("--out", out)
    words = _words(overrides, values)
    with _opened(store) as found:
        record = _search_or_study(found, name)
        if remove is not None and not isinstance(record, SearchRecord):
            raise UserError(f"--remove={remove} is of one search; leave it out for a study, or name the search")
        if out is not None and isinstance(record, SearchRecord):
            raise UserError(f"--out={out} is of a study, which has a report; leave it out for one search")
        composed, here = _composed("assess", words, record, store, found, config_dir)
        spec = build.assess_spec(composed)
        both = _recording(_tracking(record, store, found), watching)
        if isinstance(record, SearchRecord):
            search = build.recorded_search({**record.config, **here})
            return assess_search(record, found, search, spec, remove, both)
        assess_study(record, found, spec, lambda recorded: build.recorded_search({**recorded, **here}), both)
        return _report(STUDIES.find(found, record.study_id), found, store, out, watching)


class Shown(NamedTuple):
    """Searches on record, the newest first; and what else is known of one that was named.

    Args:
        gap: The rank of its result among all masks of as many layers, if that was asked for.
        evaluated: Masks that have been evaluated on its samples so far; None once it has found a mask.
        assessed: What `assessed` returns of it.
        recoveries: What `recoveries` returns of it.
        cells: By search id, the study that it is part of, and its place there.
        command: The command that repeats it; None if no search was named.
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
        gap: Whether to rank what the search found among all masks of as many layers.
    """
    from raysearch.searching.record import SEARCHES, as_they_stand, count_evaluated
    from raysearch.studies.record import cells_by_search

    with _opened(store) as found:
        cells = cells_by_search(found)
        if search is None:
            if gap:
                raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
            return Shown(as_they_stand(found, SEARCHES.all(found)), cells=cells)
        record, ranked = _search_of(found, search), None
        if gap:
            from raysearch.searching.gap import gap_of  # which brings torch

            ranked = gap_of(record, found)
        from raysearch.configuration.repeat import command_of

        command = command_of(record.config) or f"raysearch resume {record.search_id}{option_of(record.config)}"
        shown = Shown([record], ranked, cells=cells, command=command)
        if record.result is None:
            return shown._replace(evaluated=count_evaluated(found, record))
        from raysearch.assessment.recorded import recorded_assessments
        from raysearch.recovery.record import recoveries_of_search

        return shown._replace(
            assessed=recorded_assessments(found, record), recoveries=recoveries_of_search(found, record)
        )


def load(search: str = "latest", *, store: PathLike = "mlruns") -> SearchResult:
    """Return what a search found, from the ledger: ``load("latest").to_frame()``."""
    return _recorded(search, store).found


def searches(*, store: PathLike = "mlruns") -> pd.DataFrame:
    """Return all searches of a ledger as a table, the newest first, by their ids.

    Losses are missing of a search that has not finished.
    """
    from raysearch.searching.frames import searches_frame

    return searches_frame(show(store=store).records)


def evaluated(search: str = "latest", *, store: PathLike = "mlruns") -> int:
    """Return how many masks have been evaluated on a search's samples: how far one is that has not finished."""
    from raysearch.searching.record import count_evaluated

    with _found(search, store) as (found, record):
        return count_evaluated(found, record)


def assessed(search: str = "latest", *, store: PathLike = "mlruns") -> dict[str, float]:
    """Return all assessed numbers of a search's mask, by the names that MLflow shows; empty if it was not assessed."""
    from raysearch.assessment.recorded import recorded_assessments

    with _found(search, store) as (found, record):
        return {} if record.result is None else recorded_assessments(found, record)


def recoveries(search: str = "latest", *, store: PathLike = "mlruns") -> list[RecoveryRecord]:
    """Return the recoveries of a search's masks, in the order in which they came about; empty if there are none.

    Those of other searches that found the same masks of the model are among them; `search_id` tells whose each is.
    """
    from raysearch.recovery.record import recoveries_of_search

    with _found(search, store) as (found, record):
        return recoveries_of_search(found, record)


def recommend(
    search: str = "latest",
    *overrides: str,
    budget: Mapping[str, float | str] | None = None,
    store: PathLike = "mlruns",
) -> Recommendation:
    """Return how many layers can go by a budget, from the ledger alone.

        recommend("latest", "budget.loss=0.1")
        recommend("latest", budget={"readout": "10%", "speedup": 1.2})

    Args:
        search: Best one of a range, ``remove=1..9``.
        *overrides: ``budget.loss``, ``budget.readout``, ``budget.speedup`` and ``budget.memory``, each with its value;
            without any, those that a search by budget (``remove=auto``) was given.
        budget: The same as a mapping.
    """
    from raysearch.searching.recommend import recommend
    from raysearch.searching.recommendation import Budget

    words = [*_words(overrides, {}), *(f"budget.{part}={as_typed(value)}" for part, value in (budget or {}).items())]
    given = Budget.parse(words) if words else None
    with _found(search, store) as (found, record):
        own = None if record.found.recommendation is None else record.found.recommendation.budget
        return recommend(record.found, given or own or Budget(), found)


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
    """Write what a search found as a checkpoint that plain transformers, vLLM and llama.cpp load.

    Args:
        out: The folder to write.
        prompt: A text for both models to continue, as a spot check.
    """
    from raysearch.searching.export import export_search

    record, spec, hub = _to_export(search, overwrite, push, public, store)
    folder = as_path("--out", out)
    return export_search(record, spec, folder, remove=remove, overwrite=overwrite, prompt=prompt, push=hub)


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
    """Take the layers that a search removed out of a GGUF file, whose tensors stay as they are, byte for byte.

        export_gguf("latest", out="pruned-Q4_K_M.gguf", source="model-Q4_K_M.gguf")

    Args:
        out: The file to write.
        source: A GGUF file of the same model, in any quantisation; None for the one that was searched.
    """
    from raysearch.searching.export import export_search_as_gguf

    record, spec, hub = _to_export(search, overwrite, push, public, store)
    file, source = as_path("--gguf", out), None if source is None else as_path("--from", source)
    return export_search_as_gguf(record, spec, file, source=source, remove=remove, overwrite=overwrite, push=hub)


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
    """Write the model that `recover` wrote last to another folder.

    Args:
        out: The folder to write.
    """
    from raysearch.recovery.export import export_recovered

    record, spec, hub = _to_export(search, overwrite, push, public, store)
    folder = as_path("--out", out)
    with _opened(store) as found:
        return export_recovered(record, found, spec, folder, remove=remove, overwrite=overwrite, push=hub)


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

    What the training has not changed keeps its bytes; the rest has eight bits or more.

        export_recovered_gguf("latest", out="healed.gguf")

    Args:
        out: The file to write.
        source: A GGUF file of the dense model; None for the one that was searched.
    """
    from raysearch.recovery.export import export_recovered_as_gguf

    record, spec, _ = _to_export(search, overwrite, None, False, store)
    file, source = as_path("--gguf", out), None if source is None else as_path("--from", source)
    with _opened(store) as found:
        return export_recovered_as_gguf(record, found, spec, file, source=source, remove=remove, overwrite=overwrite)


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
    """Train the pruned model to give back what it lost, and write and assess it.

    The same call again goes on where it was stopped.

        recover("latest", out="healed")
        recover("latest", "data.path=alpaca.jsonl", out="healed", recovery="paper", data="alpaca")

    Args:
        out: The folder of the recovered checkpoint.
    """
    watching = _observer(observer)
    checked(bool, "--overwrite", overwrite)
    with _recovery(search, _words(overrides, values), store, config_dir) as (record, found, searched, spec):
        from raysearch.recovery.recover import recover_search

        both = _recording(_tracking(record, store, found), watching)
        folder = as_path("--out", out)
        return recover_search(record, found, searched, spec, folder, remove=remove, overwrite=overwrite, observer=both)


def recovery_cost(
    search: str = "latest",
    *overrides: str,
    remove: int | None = None,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    observer: Observer | None = None,
    **values: Any,
) -> RecoveryCost:
    """Return what a recovery would cost; the arguments are those of `recover`. A step is timed, and nothing is kept."""
    watching = _observer(observer)
    with _recovery(search, _words(overrides, values), store, config_dir) as found:
        from raysearch.recovery.recover import recovery_cost

        return recovery_cost(*found, remove, watching)


def sync(
    name: str = "latest", *overrides: str, store: PathLike = "mlruns", **values: Any
) -> SyncedSearch | SyncedStudy:
    """Write to MLflow what it lacks of a search or a study, from the ledger alone; twice writes nothing twice.

        sync("latest")
        sync("greedy-m5-3fa2c1d0", "tracking.uri=http://127.0.0.1:5000")

    Args:
        *overrides: ``tracking.key=value`` words, for another place than the one on record.
    """
    from raysearch.configuration.compose import recorded
    from raysearch.tracking.sync import sync

    with _opened(store) as found:
        record = _search_or_study(found, name)
        composed = recorded(record.config, _words(overrides, values))
        tracking = _tracking(replace(record, config=composed), store, found)
        if tracking.type == "none":
            raise UserError(
                f"SEARCH={name} was run with tracking=none; name a place: tracking=mlflow, and tracking.uri=…"
            )
        return sync(record, found, tracking)


def check_ledger(*, store: PathLike = "mlruns") -> LedgerCheck:
    """Read every row of a ledger, and say what is damaged."""
    from raysearch.ledger.checking import check_ledger

    with _opened(store) as found:
        return check_ledger(found, _records())


def merge_ledgers(*others: PathLike, store: PathLike = "mlruns") -> Merged:
    """Take over what other ledgers have and this one lacks: each whole, with the same numbers, or not at all.

        merge_ledgers("other-machine/ledger.db", store="mlruns")

    Args:
        *others: The files, or the stores that they lie in.
    """
    from raysearch.ledger.ledger import Ledger
    from raysearch.ledger.merging import merge_ledgers

    files = [ledger_path("OTHER", one) for one in others]
    with closing(Ledger(ledger_path("--store", store))) as found:
        return merge_ledgers(found, files, _records())


def clean_ledger(*searches: str, yes: bool = False, store: PathLike = "mlruns") -> Cleaned:
    """Forget searches, with the evaluations that no other search on record is of; and give back the space.

    Args:
        *searches: Ids, starts of ids, or ``latest``; none to give back space alone.
        yes: Whether to do it, or only to count what would go.
    """
    from raysearch.searching.record import clean
    from raysearch.studies.record import STUDIES

    checked(bool, "yes", yes)
    with _opened(store) as found:
        studies = STUDIES.all(found)
        gone = clean(found, searches, really=yes)
        having = [one.study_id for one in studies if any(cell.search_id in gone.searches for cell in one.cells)]
        return replace(gone, studies=having)


def export_ledger(*, out: PathLike, format: str = "csv", store: PathLike = "mlruns") -> dict[Path, int]:
    """Write the searches, trials and evaluations of a ledger as tables for pandas, R or a spreadsheet.

    Args:
        out: The folder to write.
        format: ``csv``, ``parquet`` or ``jsonl``.

    Returns:
        The files, each with its number of rows.
    """
    from raysearch.searching.frames import export_frames

    with _opened(store) as found:
        return export_frames(found, as_folder("--out", out), format)


def ui(store: PathLike = "mlruns", uri: str | None = None, host: str = "127.0.0.1", port: int = 5000) -> NoReturn:
    """Run MLflow's server on the recorded searches until Ctrl-C, and end this process with it.

    Args:
        uri: A tracking URI other than the store's own.
        host: The address to listen on.
        port: The port to listen on.
    """
    from raysearch.tracking.mlflow.ui import serve_ui

    serve_ui(as_path("--store", store), uri, host, port)


def _run(spec: SearchSpec, tracking: TrackingOptions, observer: Observer, resumes: str | None = None) -> SearchResult:
    """Run a search; what one by budget recommends is drawn to ``reports/<search>/knee.png`` in its store."""
    from raysearch.searching.run import run_search

    tracker = _tracker(tracking, observer)
    result = run_search(spec, observer, tracker, resumes, _speed_meter(spec, observer))
    if result.recommendation is not None:
        from raysearch.reporting.figures.knee import write_knee

        write_knee(result.recommendation, tracking.folder)
    return result


def _speed_meter(spec: SearchSpec, observer: Observer) -> SpeedMeter | None:
    """Return what measures the speeds of a search by budget, or refuse its options; None without a budget."""
    if spec.budget is None:
        return None
    from raysearch.assessment.assess import speed_meter
    from raysearch.configuration import build

    return speed_meter(build.speed_options(spec.config), spec.evaluation, observer)


def _opened(store: object) -> AbstractContextManager[Ledger]:
    """Open the ledger of a store, or of that name."""
    from raysearch.ledger.ledger import opened

    return opened(ledger_path("--store", store))


def _words(overrides: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return words and values as words."""
    from raysearch.configuration.overrides import as_overrides

    for word in overrides:
        if not isinstance(word, str):
            raise UserError(f"{reprlib.repr(word)} has no key; name it, as in remove=5 or masks=[[1]]")
    return [*overrides, *as_overrides(values)]


def _side_by_side(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: PathLike | None
) -> EvaluationSpec:
    """Return the calibration that words and values name, and others beside it."""
    from raysearch.configuration import build

    return build.evaluation_spec(_words(overrides, values), [also] if isinstance(also, str) else also, config_dir)


def _to_export(
    search: str, overwrite: bool, push: str | None, public: bool, store: PathLike
) -> tuple[SearchRecord, SearchSpec, HubRepository | None]:
    """Return a search on record, what it is made of, and the repository that an export of it goes to, if any."""
    from raysearch.configuration import build

    checked(bool, "--overwrite", overwrite)
    checked(bool, "--public", public)
    if public and push is None:
        raise UserError("--public is of a repository of the hub; name it with --push=OWNER/NAME")
    hub = None
    if push is not None:
        from raysearch.models.hub import HubRepository

        hub = HubRepository(push, public, overwrite)
    record = _recorded(search, store)
    return record, build.recorded_search(record.config), hub


def _records() -> list[Table[Any]]:
    """Return the tables of a ledger that are records of a class."""
    from raysearch.searching.record import SEARCHES
    from raysearch.studies.record import STUDIES

    return [SEARCHES, STUDIES]


@contextmanager
def _found(search: str, store: PathLike) -> Iterator[tuple[Ledger, SearchRecord]]:
    """The ledger of a store, or of that name, and its search of some name."""
    with _opened(store) as found:
        yield found, _search_of(found, search)


def _search_of(ledger: Ledger, name: str) -> SearchRecord:
    """Return the one search that a name fits."""
    from raysearch.searching.record import SEARCHES, find_search
    from raysearch.studies.record import STUDIES

    try:
        return find_search(ledger, name)
    except UserError as error:
        if SEARCHES.names(ledger, name) or not STUDIES.names(ledger, name):
            raise
        raise UserError(
            f"SEARCH={name!r} is a study; raysearch report {name} tells what its searches found, or name one of them"
        ) from error


def _recorded(search: str, store: PathLike) -> SearchRecord:
    """Return the search of some name."""
    with _found(search, store) as (_, record):
        return record


def _places(record: SearchRecord | StudyRecord, store: PathLike, ledger: Ledger) -> dict[str, str | None]:
    """Return the store and the ledger of what is on record, as they are here.

    Where only the ledger is named, the store is the folder that it lay in, or the one on record.
    """
    folder = as_path("--store", store)
    if folder.is_file():
        folder = folder.parent if record.config.get("ledger") is None else Path(record.config["store"])
    return {"store": str(folder), "ledger": None if ledger.path == folder / "ledger.db" else str(ledger.path)}


@contextmanager
def _recovery(
    search: str, words: Sequence[str], store: PathLike, config_dir: PathLike | None
) -> Iterator[tuple[SearchRecord, Ledger, SearchSpec, RecoverSpec]]:
    """A search on record, its ledger, what it is made of, and the recovery that words name."""
    from raysearch.configuration import build

    with _found(search, store) as (found, record):
        composed, here = _composed("recover", words, record, store, found, config_dir)
        searched = build.recorded_search({**record.config, **here})
        yield record, found, searched, build.recover_spec(composed)


def _composed(
    job: str,
    words: Sequence[str],
    record: SearchRecord | StudyRecord,
    store: PathLike,
    ledger: Ledger,
    config_dir: PathLike | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of a job for what is on record, and what of the record's is different here.

    The job has the record's cluster, unless words name another.
    """
    from raysearch.configuration.compose import after, compose

    composed = compose(job, after("cluster", record.config, words), config_dir)
    return composed, {**_places(record, store, ledger), "cluster": composed["cluster"]}


def _search_or_study(ledger: Ledger, name: str) -> SearchRecord | StudyRecord:
    """Return the one search or study that a name fits."""
    from raysearch.ledger.table import find_in
    from raysearch.searching.record import SEARCHES, SearchRecord, as_they_stand
    from raysearch.studies.record import STUDIES

    found: SearchRecord | StudyRecord = find_in(ledger, name, SEARCHES, STUDIES)
    return as_they_stand(ledger, [found])[0] if isinstance(found, SearchRecord) else found


def _tracking(record: SearchRecord | StudyRecord, store: PathLike, ledger: Ledger) -> TrackingOptions:
    """Return where a search or a study on record is recorded for people to look at."""
    from raysearch.configuration import build

    return build.tracking_options({**record.config, **_places(record, store, ledger)})


def _tracker(tracking: TrackingOptions, observer: Observer) -> Tracker:
    """Return the tracker; the observer hears of its troubles, and how far it is where it is waited for."""
    from raysearch.tracking.mlflow.tracker import open_tracker

    return open_tracker(tracking, observer.warn, observer.recording)


def _recording(tracking: TrackingOptions, observer: Observer) -> Observer:
    """Return a tracker and the observer as one."""
    return Observers(_tracker(tracking, observer), observer)


def _report(
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

    tracking = _tracking(record, store, ledger)
    own = tracking.folder / "reports" / as_name("STUDY", record.study_id)
    folder = own if out is None else as_folder("--out", out)
    results = collect(record, ledger, lambda run_id: tracking.link(run_id, mlflow_url))
    files = write_report(results, folder)
    tops = sorted({folder / file.relative_to(folder).parts[0] for file in files})
    ended = has_ended(results, ledger)
    _recording(tracking, observer).study_reported(record.mlflow_run_id, results.totals, tops, ended)
    return results, files


def _observer(given: Observer | None) -> Observer:
    """Return the observer that was given; else a notebook's, or a script's."""
    if given is not None and not isinstance(given, Observer):
        raise UserError(f"observer={reprlib.repr(given)} is not an Observer; give an object of a class derived from it")
    return given or (NotebookProgress() if in_notebook() else ProgressLines())
