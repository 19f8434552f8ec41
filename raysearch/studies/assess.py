"""Assesses what the searches of a study found: while its replicas are there, or at any later time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysearch.assessment.assess import assess_masks, check_tasks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.recorded import record_assessments
from raysearch.assessment.spec import AssessSpec
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool
from raysearch.ledger.ledger import Ledger
from raysearch.searching.observer import Observer, warn_of_unknown
from raysearch.searching.record import SEARCHES, SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.studies.record import AssessedMasks, StudyRecord, add_assessed


def assess_found(
    plan: AssessmentPlan,
    ledger: Ledger,
    records: Sequence[SearchRecord],
    observer: Observer,
    make_pool: Callable[[], Pool] | None = None,
) -> AssessedMasks:
    """Assess the masks of one model's searches, each once, and record and return the numbers.

    Each search has found something. `make_pool` gives replicas that are there already.

    Raises:
        UserError: A task or its data cannot be loaded.
        EvaluationError: Something failed for good.
    """
    masks = sorted({record.found.mask for record in records})
    found = assess_masks(plan, ledger, masks, make_pool=make_pool, on_progress=observer.assessing)
    record_assessments(ledger, records, found, observer)
    by_mask = {str(mask): numbers for mask, numbers in found.values.items()}
    items = {
        str(mask): {name: result.items for name, result in results.items() if result.items}
        for mask, results in found.by_mask.items()
    }
    return AssessedMasks(tuple(found.metrics), by_mask, items)


def assess_study(
    study: StudyRecord,
    ledger: Ledger,
    spec: AssessSpec,
    build_search: Callable[[Mapping[str, Any]], SearchSpec],
    observer: Observer,
) -> None:
    """Assess what a study's searches found so far, model by model, and add it to the study's record.

    `build_search` builds a search from its recorded configuration, with the cluster that is to compute this.

    Raises:
        UserError: No search has found anything, a model has changed since, or something named is not there or does not
            fit a model.
        EvaluationError: Something failed for good.
    """
    records = SEARCHES.some(ledger, [cell.search_id for cell in study.cells])
    by_model: dict[str, list[SearchRecord]] = {}
    for cell in study.cells:
        if (record := records.get(cell.search_id)) and record.result:
            by_model.setdefault(cell.model, []).append(record)
    if not by_model:
        raise UserError(f"STUDY={study.study_id} has found nothing yet; first: raysearch study, with the same words")
    read = {}
    for model, of_model in by_model.items():
        evaluations = [build_search(record.config).evaluation for record in of_model]
        first, calibrations = evaluations[0], [one for each in evaluations for one in each.calibrations]
        searched = replace(first, calibrations=calibrations, weighting=None)
        read[model] = plan_assessment(spec, first.model, first.cluster, ledger.path, searched=searched)
    for model, plan in read.items():
        for note in plan.notes:
            observer.warn(note)
        for record in by_model[model]:
            record.check_weights(plan.fingerprint)
        check_tasks(plan, ledger)
    warn_of_unknown([one for plan in read.values() for one in plan.calibrations], observer)
    for model, plan in read.items():
        add_assessed(ledger, study, {model: assess_found(plan, ledger, by_model[model], observer)})
