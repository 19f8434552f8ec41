"""Assesses what the searches of a study found: while its replicas are there, or at any later time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysearch.assessment.assessing import assess_masks
from raysearch.assessment.spec import AssessSpec
from raysearch.errors import UserError
from raysearch.evaluation.cluster import ClusterOptions
from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.runs import RunRecord, read_runs
from raysearch.evaluation.studies import StudyRecord, find_study, write_study
from raysearch.evaluation.unit import Pool
from raysearch.mask import Mask
from raysearch.models.loading import ModelSpec
from raysearch.studies.spec import SearchSpec
from raysearch.studies.study_record import add_assessed, plain_assessments
from raysearch.tracking.options import TrackingOptions


def assess_found(
    spec: AssessSpec,
    model: ModelSpec,
    cluster: ClusterOptions,
    ledger: Ledger,
    runs: Sequence[RunRecord],
    tracking: TrackingOptions,
    make_pool: Callable[[], Pool] | None,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Assesses the masks of one model's searches, each mask once, and puts the numbers on the searches' MLflow runs.

    Args:
        spec: What to assess.
        model: The dense model.
        cluster: Who computes it, unless there is a `make_pool`.
        ledger: Open, and left open.
        runs: The searches; those that have found nothing are passed over.
        tracking: Where they were recorded.
        make_pool: Gives replicas that are there already.
        on_progress: Told in a line how far it is.
        warn: Told in a sentence if MLflow cannot be written to.

    Returns:
        What `StudyRecord.assessed` holds of the model.

    Raises:
        UserError: A text, a task or an option does not fit the model or is not there.
        EvaluationError: Something failed for good.
    """
    masks = {run.run_id: Mask(tuple(run.result["removed"])) for run in runs if run.result is not None}
    chosen = sorted(set(masks.values()))
    found = assess_masks(spec, model, cluster, ledger, chosen, make_pool=make_pool, on_progress=on_progress)
    for run in runs:
        if run.result is not None:
            tracking.record_assessment(run.result["mlflow_run_id"], found.named(masks[run.run_id]), warn)
    return plain_assessments(found)


def assess_study(
    study: StudyRecord,
    ledger: Ledger,
    spec: AssessSpec,
    build_search: Callable[[Mapping[str, Any]], SearchSpec],
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> StudyRecord:
    """Assesses what a study's searches found so far, model by model, and adds it to the study's record.

    Args:
        study: Its record.
        ledger: Where its searches' records are.
        spec: What to assess.
        build_search: Builds a search from its recorded configuration, with the cluster that is to compute this.
        on_progress: Told in a line how far it is.
        warn: Told in a sentence if MLflow cannot be written to.

    Returns:
        The record as it is now.

    Raises:
        UserError: No search has found anything, or something named is not there or does not fit a model.
        EvaluationError: Something failed for good.
    """
    runs = {
        run_id: run for run_id, run in read_runs(ledger, [cell.run_id for cell in study.cells]).items() if run.result
    }
    if not runs:
        raise UserError(f"STUDY={study.study_id} has found nothing yet; first: raysearch study, with the same words")
    assessed: Mapping[str, Any] = study.assessed
    for model in dict.fromkeys(cell.model for cell in study.cells):
        of_model = [runs[cell.run_id] for cell in study.cells if cell.model == model and cell.run_id in runs]
        if of_model:
            search = build_search(of_model[0].config)
            judge, tracking = search.judge, search.tracking
            new = assess_found(spec, judge.model, judge.cluster, ledger, of_model, tracking, None, on_progress, warn)
            assessed = add_assessed(assessed, {model: new})
            write_study(ledger, study.study_id, study.config, study.cells, study.facts, assessed, study.mlflow_run_id)
    return find_study(ledger, study.study_id)
