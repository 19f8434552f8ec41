"""The Python API: one function for each command, which returns objects."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raysearch.config.parts import checked
from raysearch.core.paths import PathLike, as_folder, as_name, as_path, ledger_path
from raysearch.errors import UserError

if TYPE_CHECKING:
    from raysearch.assessment.results import RunAssessment
    from raysearch.assessment.spec import AssessSpec
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.search.inspection import Inspection
    from raysearch.search.observer import Observer
    from raysearch.search.result import SearchResult
    from raysearch.search.score import Score
    from raysearch.search.sweep import Sweep
    from raysearch.study.result import StudyResults
    from raysearch.study.run import StudyObserver
    from raysearch.tracking.syncing import SyncedRun, SyncedStudy

_Observer = TypeVar("_Observer")


def search(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> SearchResult:
    """Finds which layers to remove; the same call again goes on where it was stopped.

        search(model="smollm2-135m", searcher="beam", remove=5, protect=[0, -1])
        search("data.path=my.txt", data="file", remove=3)

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Watches the search; None for silence.
        **values: The same keys as arguments. A mapping sets the keys inside a group: ``data={"samples": 32}``.

    Returns:
        What was found, with every trial.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the text or the machine.
        EvaluationError: Something could not be evaluated, and the search cannot go on without it.
    """
    from raysearch.config import build
    from raysearch.config import compose as config
    from raysearch.config.overrides import as_overrides
    from raysearch.search.observer import SilentObserver
    from raysearch.search.run import run_search

    spec = build.search_spec(config.compose("search", [*overrides, *as_overrides(values)], config_dir))
    return run_search(spec, _observer_or(observer, SilentObserver()))


def score(*overrides: str, config_dir: PathLike | None = None, **values: Any) -> list[Score]:
    """Gives the exact loss of masks that you already have.

        score(masks=[[3], [3, 5], []], model="smollm2-135m")

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        **values: The same keys as arguments.

    Returns:
        A score for each mask, in order.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the text or the machine.
        EvaluationError: A mask has no finite loss.
    """
    from raysearch.config import build
    from raysearch.config import compose as config
    from raysearch.config.overrides import as_overrides
    from raysearch.search.score import score_masks

    spec = build.score_spec(config.compose("score", [*overrides, *as_overrides(values)], config_dir))
    return score_masks(spec, lambda progress: None)


def study(
    *overrides: str,
    config_dir: PathLike | None = None,
    out: PathLike | None = None,
    observer: StudyObserver | None = None,
    **values: Any,
) -> tuple[StudyResults, list[Path]]:
    """Runs a grid of searches and writes its report; the same call again goes on where it was stopped.

        study(study="two_calibrations", assess="offline")
        study("study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[3,5]", data={"samples": 8})

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        out: The folder of the report; None for ``reports/<study>`` in the store.
        observer: Watches the study; None for silence.
        **values: The same keys as arguments.

    Returns:
        What the study found, and the files of the report, the page first. A search that fails does not stop the
        others: its cause stands in the results.

    Raises:
        UserError: A key or value is not understood, or a search does not fit its model, its data or the machine.
        EvaluationError: What was found cannot be assessed.
    """
    from raysearch.config import build
    from raysearch.config.overrides import as_overrides
    from raysearch.study.run import SilentStudyObserver, run_study

    spec = build.study_spec([*overrides, *as_overrides(values)], config_dir)
    out = None if out is None else as_folder("--out", out)
    watching = _observer_or(observer, SilentStudyObserver())
    record = run_study(spec, watching)
    return report(record.study_id, store=spec.tracking.folder, ledger=spec.ledger, out=out, warn=watching.warn)


def report(
    study: str = "latest",
    *,
    store: PathLike = "mlruns",
    ledger: PathLike | None = None,
    out: PathLike | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[StudyResults, list[Path]]:
    """Writes the report of a study as far as it is done: a page, Markdown, tables and figures; nothing is computed.

    Args:
        study: A study's id, the start of one, its MLflow run id, or ``latest``.
        store: The folder that its searches wrote to.
        ledger: The ledger, if it is not in the store.
        out: The folder to write; None for ``reports/<study>`` in the store.
        warn: Told, in one sentence, if MLflow cannot be written to.

    Returns:
        What the study found, and the files, the page first.

    Raises:
        UserError: There is no such study, or the folder cannot be written to.
    """
    from raysearch.config import build
    from raysearch.ledger.ledger import opened
    from raysearch.ledger.studies import find_study
    from raysearch.study.report import report_study

    store, study = as_path("--store", store), checked(str, "study", study)
    with opened(ledger_path(store, ledger)) as found:
        record = find_study(found, study)
        tracking = build.tracking_options(record.config, store, found.path)
        folder = store / "reports" / as_name("STUDY", record.study_id) if out is None else as_folder("--out", out)
        return report_study(record, found, tracking, folder, warn)


def sync(
    run: str = "latest", *overrides: str, store: PathLike = "mlruns", ledger: PathLike | None = None
) -> SyncedRun | SyncedStudy:
    """Writes to MLflow what it lacks of a search or a study, from the ledger alone; twice writes nothing twice.

        sync("latest")
        sync("greedy-m5-3fa2c1d0", "tracking.uri=http://127.0.0.1:5000")

    Args:
        run: A run or study id, the start of one, an MLflow run id, or ``latest`` for the last search.
        *overrides: ``tracking.key=value`` words, for another place than the one on record.
        store: The folder that searches wrote to.
        ledger: The ledger, if it is not in the store.

    Raises:
        UserError: There is nothing of that name, it has found nothing yet, or MLflow cannot be written to.
    """
    from raysearch.config import build
    from raysearch.config import compose as config
    from raysearch.ledger.ledger import opened
    from raysearch.tracking.syncing import sync

    store, run = as_path("--store", store), checked(str, "run", run)
    with opened(ledger_path(store, ledger)) as found:
        return sync(
            run, found, lambda before: build.tracking_options(config.recorded(before, overrides), store, found.path)
        )


def assess(
    run: str = "latest",
    *overrides: str,
    remove: int | None = None,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    ledger: PathLike | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda message: None,
    **values: Any,
) -> RunAssessment:
    """Measures what a search found beside the dense model; what the ledger knows is not computed again.

        assess("latest", assess="paper")
        assess("greedy-m5-3fa2c1d0", "assess=none", assess={"tasks": ["piqa"], "limit": 100})

    Args:
        run: A run id, the start of one, an MLflow run id, or ``latest``.
        *overrides: ``key=value`` words, as on the command line.
        remove: The best mask of so many layers, not the one that the search found.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        store: The folder that searches wrote to.
        ledger: The ledger, if it is not in the store.
        on_progress: Told in a line how far it is.
        warn: Told in a sentence if MLflow could not be reached.
        **values: The same keys as arguments.

    Raises:
        UserError: There is no such search, a key or value is not understood, or a text or task is not there.
        EvaluationError: Something could not be evaluated.
    """
    from raysearch.assessment.assess_search import assess_run
    from raysearch.config import build
    from raysearch.config.overrides import as_overrides
    from raysearch.ledger.ledger import opened
    from raysearch.ledger.searches import find_search

    path, run = ledger_path(store, ledger), checked(str, "run", run)
    remove = checked(int | None, "--remove", remove)
    with opened(path) as found:
        record = find_search(found, run)
    words = [*overrides, *as_overrides(values)]
    spec, cluster = _assessment(words, record.config, config_dir)
    search_spec = build.search_spec({**record.config, "ledger": str(path), "store": str(store), "cluster": cluster})
    return assess_run(record, search_spec, spec, remove=remove, on_progress=on_progress, warn=warn)


def assess_study(
    study: str = "latest",
    *overrides: str,
    config_dir: PathLike | None = None,
    store: PathLike = "mlruns",
    ledger: PathLike | None = None,
    out: PathLike | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda message: None,
    **values: Any,
) -> tuple[StudyResults, list[Path]]:
    """Measures what each search of a study found beside the dense model, and writes the study's report anew.

        assess_study("latest", assess="paper")

    Args:
        study: A study's id, the start of one, its MLflow run id, or ``latest``.
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        store: The folder that its searches wrote to.
        ledger: The ledger, if it is not in the store.
        out: The folder of the report; None for ``reports/<study>`` in the store.
        on_progress: Told in a line how far it is.
        warn: Told in a sentence if MLflow could not be reached.
        **values: The same keys as arguments.

    Returns:
        What the study found, and the files of the report, the page first.

    Raises:
        UserError: There is no such study, a key or value is not understood, or a text or task is not there.
        EvaluationError: Something could not be evaluated.
    """
    from raysearch.config import build
    from raysearch.config.overrides import as_overrides
    from raysearch.ledger.ledger import opened
    from raysearch.ledger.studies import find_study
    from raysearch.study.assess import assess_study

    store, path, study = as_path("--store", store), ledger_path(store, ledger), checked(str, "study", study)
    out = None if out is None else as_folder("--out", out)
    words = [*overrides, *as_overrides(values)]
    with opened(path) as found:
        record = find_study(found, study)
        spec, cluster = _assessment(words, record.config, config_dir)
        here = {"ledger": str(path), "store": str(store), "cluster": cluster}
        assess_study(record, found, spec, lambda recorded: build.search_spec({**recorded, **here}), on_progress, warn)
    return report(record.study_id, store=store, ledger=path, out=out, warn=warn)


def _assessment(
    words: Sequence[str], recorded: Mapping[str, Any], config_dir: PathLike | None
) -> tuple[AssessSpec, Mapping[str, Any]]:
    """What words name to assess, and the cluster that computes it: the recorded one, unless they name another."""
    from raysearch.config import build
    from raysearch.config import compose as config
    from raysearch.config.overrides import as_overrides

    own = any(word.startswith("cluster=") for word in words)
    cluster = [] if own else as_overrides({"cluster": recorded["cluster"]})
    composed = config.compose("assess", [*cluster, *words], config_dir)
    return build.assess_spec(composed), composed["cluster"]


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    config_dir: PathLike | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **values: Any,
) -> Sweep:
    """Removes each layer by itself, and lays side by side what several calibrations make of it.

        sweep(model="smollm2-135m", data="sotu", also=["objective=kl", "objective=hidden_cosine"])

    Args:
        *overrides: ``key=value`` words, as on the command line.
        also: Other calibrations, by the words that are different.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        on_progress: Told how far it is.
        **values: The same keys as arguments.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: The dense model cannot be evaluated.
    """
    from raysearch.search.sweep import run_sweep

    return run_sweep(_side_by_side(overrides, values, also, config_dir), on_progress)


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: PathLike | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **values: Any,
) -> list[Inspection]:
    """Shows calibrations as the model will see them.

        inspect(data="commonsense170k", objective="task_margin", loss=False)

    Args:
        *overrides: ``key=value`` words, as on the command line.
        also: Other calibrations, by the words that are different.
        samples: How many samples to show of each.
        loss: Whether the dense model is run on them.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        on_progress: Told how far that is.
        **values: The same keys as arguments.

    Raises:
        UserError: A key or value is not understood, or the data cannot be used.
        EvaluationError: The dense model cannot be evaluated.
    """
    from raysearch.search.inspection import inspect_data

    if checked(int, "--samples", samples) < 0:
        raise UserError(f"--samples={samples} is negative; use 0 or more")
    samples, loss = min(samples, sys.maxsize), checked(bool, "--loss", loss)
    return inspect_data(_side_by_side(overrides, values, also, config_dir), samples, loss, on_progress)


def _side_by_side(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: PathLike | None
) -> EvaluationSpec:
    """The calibration that words and values name, and others beside it."""
    from raysearch.config import build
    from raysearch.config import compose as config
    from raysearch.config.overrides import as_overrides

    words = [*overrides, *as_overrides(values)]
    also = checked(list[str], "--also", list(also) if isinstance(also, tuple) else also)
    others = [config.compose_calibration(one, words, config_dir) for one in also]
    return build.evaluation_spec(config.compose("evaluation", words, config_dir), others)


def _observer_or(given: _Observer | None, silent: _Observer) -> _Observer:
    """Whoever watches, if it has ears for all that is told."""
    for name in () if given is None else dir(silent):
        if not name.startswith("_") and not hasattr(given, name):
            raise UserError(f"observer={reprlib.repr(given)} has no {name}; give a {type(silent).__name__} of your own")
    return given or silent
