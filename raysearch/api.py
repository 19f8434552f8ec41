"""The Python API: what the command line does, returning objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysearch.assessment.results import RunAssessment
    from raysearch.assessment.spec import AssessSpec
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import JudgeSpec
    from raysearch.reporting.results import StudyResults
    from raysearch.studies.inspection import Inspection
    from raysearch.studies.observer import Observer
    from raysearch.studies.running import StudyObserver
    from raysearch.studies.score import Score
    from raysearch.studies.sweep import Sweep
    from raysearch.tracking.base import SearchResult


def search(
    *overrides: str, config_dir: Path | None = None, observer: Observer | None = None, **values: Any
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
    from raysearch import build, config
    from raysearch.studies.observer import SilentObserver
    from raysearch.studies.search import run_search

    spec = build.search_spec(config.compose("search", [*overrides, *config.as_overrides(values)], config_dir))
    return run_search(spec, observer or SilentObserver())


def score(*overrides: str, config_dir: Path | None = None, **values: Any) -> list[Score]:
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
    from raysearch import build, config
    from raysearch.studies.score import score_masks

    spec = build.score_spec(config.compose("score", [*overrides, *config.as_overrides(values)], config_dir))
    return score_masks(spec, lambda progress: None)


def assess_study(
    study: str = "latest",
    *overrides: str,
    config_dir: Path | None = None,
    store: Path = Path("mlruns"),
    ledger: Path | None = None,
    out: Path | None = None,
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
    from raysearch import build, config
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.studies import find_study
    from raysearch.studies.assess_study import assess_study

    path = ledger or store / "ledger.db"
    words = [*overrides, *config.as_overrides(values)]
    with opened(path) as found:
        record = find_study(found, study)
        spec, cluster = _assessment(words, record.config, config_dir)
        here = {"ledger": str(path), "store": str(store), "cluster": cluster}
        assess_study(record, found, spec, lambda recorded: build.search_spec({**recorded, **here}), on_progress, warn)
    return report(record.study_id, store=store, ledger=path, out=out, warn=warn)


def assess(
    run: str = "latest",
    *overrides: str,
    remove: int | None = None,
    config_dir: Path | None = None,
    store: Path = Path("mlruns"),
    ledger: Path | None = None,
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
    from raysearch import build, config
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.runs import find_run
    from raysearch.studies.assess_run import assess_run

    path = ledger or store / "ledger.db"
    with opened(path) as found:
        record = find_run(found, run)
    words = [*overrides, *config.as_overrides(values)]
    spec, cluster = _assessment(words, record.config, config_dir)
    search_spec = build.search_spec({**record.config, "ledger": str(path), "store": str(store), "cluster": cluster})
    return assess_run(record, search_spec, spec, remove=remove, on_progress=on_progress, warn=warn)


def study(
    *overrides: str,
    config_dir: Path | None = None,
    out: Path | None = None,
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
    from raysearch import build, config
    from raysearch.studies.running import SilentStudyObserver, run_study

    spec = build.study_spec([*overrides, *config.as_overrides(values)], config_dir)
    watching = observer or SilentStudyObserver()
    record = run_study(spec, watching)
    return report(record.study_id, store=spec.tracking.folder, ledger=spec.ledger, out=out, warn=watching.warn)


def report(
    study: str = "latest",
    *,
    store: Path = Path("mlruns"),
    ledger: Path | None = None,
    out: Path | None = None,
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
    from raysearch import build
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.studies import find_study
    from raysearch.studies.reporting import report_study

    with opened(ledger or store / "ledger.db") as found:
        record = find_study(found, study)
        tracking = build.tracking_options(record.config, store)
        return report_study(record, found, tracking, out or store / "reports" / record.study_id, warn)


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    config_dir: Path | None = None,
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
    from raysearch.studies.sweep import run_sweep

    return run_sweep(_side_by_side(overrides, values, also, config_dir), on_progress)


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: Path | None = None,
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
    from raysearch.studies.inspection import inspect_data

    return inspect_data(_side_by_side(overrides, values, also, config_dir), samples, loss, on_progress)


def _assessment(
    words: Sequence[str], recorded: Mapping[str, Any], config_dir: Path | None
) -> tuple[AssessSpec, Mapping[str, Any]]:
    """What words name to assess, and the cluster that computes it: the recorded one, unless they name another."""
    from raysearch import build, config

    own = any(word.startswith("cluster=") for word in words)
    cluster = [] if own else config.as_overrides({"cluster": recorded["cluster"]})
    composed = config.compose("assess", [*cluster, *words], config_dir)
    return build.assess_spec(composed), composed["cluster"]


def _side_by_side(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: Path | None
) -> JudgeSpec:
    """The calibration that words and values name, and others beside it."""
    from raysearch import build, config

    words = [*overrides, *config.as_overrides(values)]
    others = [config.compose_calibration(one, words, config_dir) for one in also]
    return build.judge_spec(config.compose("judge", words, config_dir), others)
