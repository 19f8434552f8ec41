"""Collects a study from the ledger, as the plain values from which its report is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.trial import joint_removals
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_locked
from raysearch.searching.gguf_masks import refused_masks_of_record
from raysearch.searching.result import SearchResult
from raysearch.searching.search_record import SEARCHES, SearchRecord
from raysearch.studies.result import CellResult, Outcome, State, StudyResult
from raysearch.studies.settings import StudySettings
from raysearch.studies.study_record import AssessedMasks, CellRecord, StudyRecord
from raysearch.studies.study_recovery import recovered_masks


def collect(study: StudyRecord, ledger: Ledger, link: Callable[[str | None], str | None]) -> StudyResult:
    """Return the results of a study so far.

    Args:
        study: The recorded study.
        ledger: The ledger with the study and its searches.
        link: It returns the address of an MLflow run, by the run's id; None if there is no run.

    Returns:
        The cells of the study with their numbers, and the facts that all cells share.
    """
    settings = StudySettings(study.config)
    searches = SEARCHES.by_ids(ledger, [cell.search_id for cell in study.cells])
    recorded = [(cell, searches[cell.search_id]) for cell in study.cells if cell.search_id in searches]
    metrics = {metric.name: metric for assessed in study.assessed.values() for metric in assessed.metrics}
    return StudyResult(
        study_id=study.study_id,
        name=settings.name,
        cells=[_cell(cell, searches.get(cell.search_id), study.assessed, link) for cell in study.cells],
        sites={cell.model: search.result.sites for cell, search in recorded if search.result},
        metrics=list(metrics.values()),
        dense={model: assessed.of(Mask()) for model, assessed in study.assessed.items()},
        facts={**study.facts, "record": f"{study.study_id}, last changed {study.updated.partition('.')[0]} UTC"},
        link=link(study.mlflow_run_id),
        searchers=_searchers(recorded),
        margin=settings.margin,
        contrasts=settings.contrasts,
        recovered=recovered_masks(recorded, ledger),
        refused=_refused(recorded),
        option=study.places.ledger_option,
    )


def has_ended(results: StudyResult, ledger: Ledger) -> bool:
    """Return whether a study has ended: every search has finished, failed or spent its budget, and no process runs it.

    Args:
        results: The collected study.
        ledger: The ledger with the study.

    Returns:
        Whether it has ended.
    """
    return all(cell.state != "waiting" for cell in results.cells) and not is_locked(ledger, results.study_id)


def _refused(recorded: Sequence[tuple[CellRecord, SearchRecord]]) -> dict[str, dict[Mask, str]]:
    """Return, by model, the masks that `export --gguf` refuses, each with the reason."""
    settings_by_model = {cell.model: search.settings for cell, search in recorded}
    masks = {
        model: [search.result.mask for cell, search in recorded if cell.model == model and search.result]
        for model in settings_by_model
    }
    return {model: refused_masks_of_record(settings, masks[model]) for model, settings in settings_by_model.items()}


def _searchers(recorded: Sequence[tuple[CellRecord, SearchRecord]]) -> dict[str, Mapping[str, Any]]:
    """Return the options of each searcher that are the same in all its searches."""
    by_searcher: dict[str, Mapping[str, Any]] = {}
    for cell, search in recorded:
        options = search.settings.searcher
        shared = by_searcher.setdefault(cell.searcher, options)
        by_searcher[cell.searcher] = {name: value for name, value in shared.items() if options.get(name) == value}
    return by_searcher


def _cell(
    cell: CellRecord,
    search: SearchRecord | None,
    assessed: Mapping[str, AssessedMasks],
    link: Callable[[str | None], str | None],
) -> CellResult:
    if search is None:
        return CellResult(**vars(cell))
    state: State = search.state if search.state in ("finished", "stopped", "failed") else "waiting"
    result = search.result if state in ("finished", "stopped") else None
    return CellResult(
        **vars(cell),
        state=state,
        failure=search.failure,
        link=None if result is None else link(result.mlflow_run_id),
        outcome=None if result is None else _outcome(result, assessed.get(cell.model, AssessedMasks())),
    )


def _outcome(result: SearchResult, assessed: AssessedMasks) -> Outcome:
    return Outcome(
        removed=result.removed,
        measure=result.measure,
        dense_loss=result.dense_loss,
        loss=result.loss,
        delta_error=result.delta_error,
        evaluations=result.work.evaluations.requested,
        layer_forwards_alone=result.work.layer_forwards.alone,
        layer_forwards_naive=result.work.layer_forwards.naive,
        seconds=result.work.seconds,
        path={size: trial.loss for size, trial in result.best_by_size.items() if trial.loss is not None},
        best_so_far=_best_so_far(result),
        assessed=assessed.of(result.mask),
        joint_removals=joint_removals(result.trials, result.space_sites, result.space),
        items=assessed.items.get(str(result.mask), {}),
        n_samples=result.samples.n_samples,
        source=_source(result.config),
        space=result.space,
    )


def _source(config: Mapping[str, Any]) -> str:
    """Return the objective and the data source of a calibration, without the number and the draw of its samples."""
    data = config.get("data", {})
    source = {key: value for key, value in data.items() if key not in ("samples", "seed", "shard_samples")}
    return json.dumps([config.get("objective"), source], sort_keys=True)


def _best_so_far(result: SearchResult) -> list[tuple[int, float]]:
    """Return each new lowest loss of a mask of the result's size, with the number of evaluations until then."""
    best: list[tuple[int, float]] = []
    proposed = [trial for trial in result.trials if trial.round > 0]
    for evaluations, trial in enumerate(proposed, start=1):
        is_of_size = result.space.size_of(trial.mask) == result.n_removed
        if is_of_size and trial.loss is not None and (not best or trial.loss < best[-1][1]):
            best.append((evaluations, trial.loss))
    return best
