"""What is kept of a study: its searches, what each adds to the work of all, how they compare on the same samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.assessment.results import Assessments
from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.runs import RunRecord, read_runs
from raysearch.evaluation.studies import CellRecord, list_studies, write_study
from raysearch.evaluation.totals import standard_errors
from raysearch.mask import Mask
from raysearch.studies.bench import Bench
from raysearch.studies.facts import facts_of
from raysearch.studies.sharing import shared_layer_forwards
from raysearch.studies.spec import StudySpec


def record_study(
    study: StudySpec,
    ledger: Ledger,
    run_ids: Sequence[str],
    benches: Sequence[Bench],
    parent: str | None,
    assessed: Mapping[str, Any],
) -> None:
    """Writes down where a study stands.

    Args:
        study: The study.
        ledger: Where.
        run_ids: Its searches, in order.
        benches: Its models.
        parent: MLflow's id of it.
        assessed: By the label of a model, as `plain_assessments`: added to what was assessed before.
    """
    runs = {run_id: run for run_id, run in read_runs(ledger, run_ids).items() if run.result is not None}
    shared: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    for bench in benches:
        for numbers in bench.groups(study):
            found = [run_ids[number] for number in numbers if run_ids[number] in runs]
            judge = study.cells[numbers[0]].search.judge
            calibrations, n_layers = bench.reading_of(judge).calibrations, bench.info.n_layers
            references = () if judge.weighting is None else judge.weighting.references(n_layers)
            results = [runs[run_id].result or {} for run_id in found]
            costs = shared_layer_forwards(results, calibrations, n_layers, references)
            shared.update(zip(found, costs, strict=True))
            if len(calibrations) == 1:
                errors |= _errors_to_best({run_id: runs[run_id] for run_id in found}, calibrations[0], ledger)
    cells = [
        CellRecord(
            model=cell.model,
            calibration=cell.calibration,
            searcher=cell.searcher,
            remove=cell.search.sizes[-1],
            seed=cell.search.seed,
            run_id=run_id,
            layer_forwards_shared=shared.get(run_id, 0.0),
            error_to_best=errors.get(run_id),
        )
        for cell, run_id in zip(study.cells, run_ids, strict=True)
    ]
    before = next((one for one in list_studies(ledger) if one.study_id == study.study_id), None)
    whole = add_assessed(before.assessed if before else {}, assessed)
    known = before.mlflow_run_id if before and study.tracking.type != "none" else None  # MLflow may be down today
    write_study(ledger, study.study_id, study.config, cells, facts_of(study, benches), whole, parent or known)


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


def _errors_to_best(runs: Mapping[str, RunRecord], calibration: Any, ledger: Ledger) -> dict[str, float | None]:
    """By run id, the standard error of each loss over the lowest of the same size, on the same samples."""
    masks = {run_id: Mask(tuple(run.result["removed"])) for run_id, run in runs.items() if run.result}
    losses = {run_id: run.result["loss"] for run_id, run in runs.items() if run.result}
    errors: dict[str, float | None] = {}
    for size in {len(mask) for mask in masks.values()}:
        peers = [run_id for run_id, mask in masks.items() if len(mask) == size]
        best = masks[min(peers, key=lambda run_id: losses[run_id])]
        found = standard_errors(calibration, ledger, [masks[run_id] for run_id in peers], best)
        errors.update(zip(peers, found, strict=True))
    return errors
