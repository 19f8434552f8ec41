"""What masks are worth elsewhere, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.api.studying import report
from raysearch.construct import checked
from raysearch.paths import PathLike, as_folder, as_path, ledger_path

if TYPE_CHECKING:
    from raysearch.assessment.results import RunAssessment
    from raysearch.assessment.spec import AssessSpec
    from raysearch.reporting.results import StudyResults


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
    from raysearch import build
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.runs import find_run
    from raysearch.overrides import as_overrides
    from raysearch.studies.assess_run import assess_run

    path, run = ledger_path(store, ledger), checked(str, "run", run)
    remove = checked(int | None, "--remove", remove)
    with opened(path) as found:
        record = find_run(found, run)
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
    from raysearch import build
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.studies import find_study
    from raysearch.overrides import as_overrides
    from raysearch.studies.assess_study import assess_study

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
    from raysearch import build, config
    from raysearch.overrides import as_overrides

    own = any(word.startswith("cluster=") for word in words)
    cluster = [] if own else as_overrides({"cluster": recorded["cluster"]})
    composed = config.compose("assess", [*cluster, *words], config_dir)
    return build.assess_spec(composed), composed["cluster"]
