"""Assessment of the masks that the searches of a study found, during the study or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysearch.assessment.assess import UNREPAIRED_REMEDY, assess_masks, check_tasks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.tracked_assessments import record_assessments
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool
from raysearch.ledger.ledger import Ledger
from raysearch.searching.notices import warn_of_unknown_tokens
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SEARCHES, SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.studies.study_record import AssessedMasks, StudyRecord, add_assessed


def assess_searches(
    plan: AssessmentPlan,
    ledger: Ledger,
    records: Sequence[SearchRecord],
    observer: Observer,
    make_pool: Callable[[], Pool] | None = None,
) -> AssessedMasks:
    """Assess the masks of one model's searches, each once, and record and return the numbers.

    Args:
        plan: What to measure, and with which data.
        ledger: The ledger that records the numbers.
        records: The searches; each has found a mask.
        observer: It is notified of progress and of the numbers.
        make_pool: It returns a pool of replicas that are running; None to start replicas.

    Returns:
        The metrics, the results of each mask, and the answers to the items.

    Raises:
        UserError: A task or its data cannot be loaded.
        EvaluationError: An evaluation failed after all its retries.
    """
    masks = sorted({record.finished_result.mask for record in records})
    assessments = assess_masks(plan, ledger, masks, make_pool=make_pool, on_progress=observer.assessing)
    record_assessments(ledger, records, assessments, observer)
    by_mask = {str(mask): numbers for mask, numbers in assessments.values.items()}
    items = {
        str(mask): {name: result.items for name, result in results.items() if result.items}
        for mask, results in assessments.by_mask.items()
    }
    return AssessedMasks(tuple(assessments.metrics), by_mask, items)


def assess_study(
    study: StudyRecord,
    ledger: Ledger,
    spec: AssessSpec,
    build_search: Callable[[Mapping[str, Any]], SearchSpec],
    observer: Observer,
) -> None:
    """Assess the masks that a study has found so far, model by model, and add the numbers to its record.

    Args:
        study: The recorded study.
        ledger: The ledger with the study and its searches.
        spec: What to measure.
        build_search: It builds a search from its recorded configuration, with the cluster that runs the assessment.
        observer: It is notified of progress, warnings and numbers.

    Raises:
        UserError: No search has found a mask, a model has changed since its search, or a task or its data is missing
            or does not fit a model.
        EvaluationError: An evaluation failed after all its retries.
    """
    records = SEARCHES.by_ids(ledger, [cell.search_id for cell in study.cells])
    by_model: dict[str, list[SearchRecord]] = {}
    for cell in study.cells:
        if (record := records.get(cell.search_id)) and record.result:
            by_model.setdefault(cell.model, []).append(record)
    if not by_model:
        raise UserError(f"STUDY={study.study_id} has found no mask yet; run the same raysearch study command first")
    plans = {}
    for model, model_records in by_model.items():
        searches = [build_search(record.config) for record in model_records]
        for search in searches:
            search.check_unrepaired("assess", UNREPAIRED_REMEDY)
        evaluations = [search.evaluation for search in searches]
        first = evaluations[0]
        calibrations = [calibration for evaluation in evaluations for calibration in evaluation.calibrations]
        searched = replace(first, calibrations=calibrations, weighting=None)
        plans[model] = plan_assessment(spec, first.model, first.cluster, ledger.path, searched=searched)
    for model, plan in plans.items():
        for note in plan.notes:
            observer.warn(note)
        for record in by_model[model]:
            record.check_weights(plan.fingerprint)
        check_tasks(plan, ledger)
    warn_of_unknown_tokens([calibration for plan in plans.values() for calibration in plan.calibrations], observer)
    for model, plan in plans.items():
        add_assessed(ledger, study, {model: assess_searches(plan, ledger, by_model[model], observer)})
