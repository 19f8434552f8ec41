"""From what the ledger keeps of a study to the plain values that a report is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.searches import SearchRecord, read_searches
from raysearch.ledger.studies import CellRecord, StudyRecord
from raysearch.study.result import CellResult, Outcome, State, StudyResults

_STATES: Mapping[str, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


def collect(study: StudyRecord, ledger: Ledger, link: Callable[[str | None], str | None]) -> StudyResults:
    """What a study has found so far.

    Args:
        study: Its record.
        ledger: Where its searches' records are.
        link: Gives the address of an MLflow run; None for one that is not there.
    """
    runs = read_searches(ledger, [cell.search_id for cell in study.cells])
    cells = [_cell(cell, runs.get(cell.search_id), study.assessed, link) for cell in study.cells]
    metrics = {one["name"]: Metric(**one) for of in study.assessed.values() for one in of["metrics"]}
    return StudyResults(
        study_id=study.study_id,
        name=study.config["study"]["name"],
        cells=cells,
        n_layers={
            cell.model: run.result["n_layers"]
            for cell in study.cells
            if (run := runs.get(cell.search_id)) and run.result
        },
        metrics=list(metrics.values()),
        dense={model: _estimates(of, Mask()) for model, of in study.assessed.items()},
        facts={**study.facts, "record": f"{study.study_id}, last changed {study.updated.partition('.')[0]} UTC"},
        link=link(study.mlflow_run_id),
    )


def totals_of(results: StudyResults) -> dict[str, float]:
    """Return the numbers of a study as a whole, by name."""
    return {
        **{f"layer_forwards_{kind}": value for kind, value in results.layer_forwards.items()},
        "searches": len(results.cells),
        "searches_done": sum(cell.outcome is not None for cell in results.cells),
    }


def _cell(
    cell: CellRecord, run: SearchRecord | None, assessed: Mapping[str, Any], link: Callable[[str | None], str | None]
) -> CellResult:
    result = None if run is None else run.result
    state: State = "waiting" if run is None else _STATES.get(run.state, "waiting")
    return CellResult(
        model=cell.model,
        calibration=cell.calibration,
        searcher=cell.searcher,
        remove=cell.remove,
        seed=cell.seed,
        state=state,
        failure=None if run is None else run.failure,
        search_id=cell.search_id,
        link=None if result is None else link(result["mlflow_run_id"]),
        outcome=None if result is None else _outcome(cell, result, assessed.get(cell.model)),
    )


def _outcome(cell: CellRecord, result: Mapping[str, Any], assessed: Mapping[str, Any] | None) -> Outcome:
    removed = tuple(result["removed"])
    return Outcome(
        removed=removed,
        measure=Measure(**result["measure"]),
        dense_loss=result["dense_loss"],
        loss=result["loss"],
        delta_error=result["delta_error"],
        evaluations=result["evaluations"]["asked"],
        layer_forwards_alone=result["layer_forwards"]["alone"],
        layer_forwards_naive=result["layer_forwards"]["naive"],
        layer_forwards_shared=cell.layer_forwards_shared,
        seconds=result["seconds"],
        path={entry["n_removed"]: entry["loss"] for entry in result["path"]},
        best_so_far=_best_so_far(result["trials"], len(removed)),
        assessed={} if assessed is None else _estimates(assessed, Mask(removed)),
        error_to_best=cell.error_to_best,
    )


def _best_so_far(trials: Sequence[Mapping[str, Any]], size: int) -> list[tuple[int, float]]:
    """The lowest loss of a mask with so many layers after so many evaluations, wherever it falls."""
    best: list[tuple[int, float]] = []
    asked = [trial for trial in trials if trial["round"] > 0]
    for evaluations, trial in enumerate(asked, start=1):
        loss = trial["loss"]
        if len(trial["mask"]) == size and loss is not None and (not best or loss < best[-1][1]):
            best.append((evaluations, loss))
    return best


def _estimates(assessed: Mapping[str, Any], mask: Mask) -> dict[str, Estimate]:
    return {name: Estimate(**estimate) for name, estimate in assessed["by_mask"].get(str(mask), {}).items()}
