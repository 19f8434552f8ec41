"""What is kept of a study: its searches, what each adds to the work of all, how they compare on the same samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.assessment.results import Assessments
from raysearch.core.mask import Mask
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.searches import SearchRecord, read_searches
from raysearch.ledger.studies import CellRecord, list_studies, write_study
from raysearch.study.facts import facts_of
from raysearch.study.model_group import ModelGroup
from raysearch.study.sharing import shared_layer_forwards
from raysearch.study.spec import StudySpec


def record_study(
    study: StudySpec,
    ledger: Ledger,
    search_ids: Sequence[str],
    model_groups: Sequence[ModelGroup],
    parent: str | None,
    assessed: Mapping[str, Any],
) -> None:
    """Writes down where a study stands.

    Args:
        study: The study.
        ledger: Where.
        search_ids: Its searches, in order.
        model_groups: Its models.
        parent: MLflow's id of it.
        assessed: By the label of a model, as `plain_assessments`: added to what was assessed before.
    """
    runs = {search_id: run for search_id, run in read_searches(ledger, search_ids).items() if run.result is not None}
    shared: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    for model_group in model_groups:
        for numbers in model_group.groups(study):
            found = [search_ids[number] for number in numbers if search_ids[number] in runs]
            evaluation = study.cells[numbers[0]].search.evaluation
            calibrations, n_layers = model_group.prepared_for(evaluation).calibrations, model_group.info.n_layers
            references = () if evaluation.weighting is None else evaluation.weighting.references(n_layers)
            results = [runs[search_id].result or {} for search_id in found]
            costs = shared_layer_forwards(results, calibrations, n_layers, references)
            shared.update(zip(found, costs, strict=True))
            if len(calibrations) == 1:
                errors |= _errors_to_best({search_id: runs[search_id] for search_id in found}, calibrations[0], ledger)
    cells = [
        CellRecord(
            model=cell.model,
            calibration=cell.calibration,
            searcher=cell.searcher,
            remove=cell.search.sizes[-1],
            seed=cell.search.seed,
            search_id=search_id,
            layer_forwards_shared=shared.get(search_id, 0.0),
            error_to_best=errors.get(search_id),
        )
        for cell, search_id in zip(study.cells, search_ids, strict=True)
    ]
    before = next((one for one in list_studies(ledger) if one.study_id == study.study_id), None)
    whole = add_assessed(before.assessed if before else {}, assessed)
    is_recorded = study.config["tracking"]["type"] != "none"
    known = before.mlflow_run_id if before and is_recorded else None  # MLflow may be down today
    write_study(ledger, study.study_id, study.config, cells, facts_of(study, model_groups), whole, parent or known)


def plain_assessments(found: Assessments) -> dict[str, Any]:
    """What masks of a model were assessed at, plain values."""
    return {
        "metrics": [vars(metric) for metric in found.metrics],
        "by_mask": {
            str(mask): {name: vars(estimate) for name, estimate in values.items()}
            for mask, values in found.values.items()
        },
    }


def add_assessed(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What was assessed, earlier and now, by the label of a model; a number anew stands for the one before."""
    whole = dict(before)
    for model, found in new.items():
        known = whole.get(model, {"metrics": [], "by_mask": {}})
        names = {metric["name"] for metric in found["metrics"]}
        masks = {**known["by_mask"], **found["by_mask"]}
        whole[model] = {
            "metrics": [*(one for one in known["metrics"] if one["name"] not in names), *found["metrics"]],
            "by_mask": {mask: {**known["by_mask"].get(mask, {}), **found["by_mask"].get(mask, {})} for mask in masks},
        }
    return whole


def _errors_to_best(runs: Mapping[str, SearchRecord], calibration: Any, ledger: Ledger) -> dict[str, float | None]:
    """By run id, the standard error of each loss over the lowest of the same size, on the same samples."""
    masks = {search_id: Mask(tuple(run.result["removed"])) for search_id, run in runs.items() if run.result}
    losses = {search_id: run.result["loss"] for search_id, run in runs.items() if run.result}
    errors: dict[str, float | None] = {}
    for size in {len(mask) for mask in masks.values()}:
        peers = [search_id for search_id, mask in masks.items() if len(mask) == size]
        best = masks[min(peers, key=lambda search_id: losses[search_id])]
        found = standard_errors(calibration, ledger, [masks[search_id] for search_id in peers], best)
        errors.update(zip(peers, found, strict=True))
    return errors
