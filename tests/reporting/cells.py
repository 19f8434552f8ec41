"""Cells of studies for the tests of statistics."""

from __future__ import annotations

from typing import Any

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.measure import PERPLEXITY
from raysearch.core.site import Sites
from raysearch.reporting.analysis.comparison import Comparison, compare
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS, cells_frame, quantity_of, settings
from raysearch.studies.result import CellResult, Outcome, StudyResult

ACCURACY = Metric("acc", "Accuracy", "accuracy", "%", True)
PERPLEXITY_METRIC = Metric("ppl", "Perplexity", "perplexity", "perplexity", False)


def outcome(loss: float = 1.0, **changes: object) -> Outcome:
    values = {
        "removed": (1, 2), "measure": PERPLEXITY, "dense_loss": 0.5, "loss": loss, "delta_error": None,
        "evaluations": 10, "layer_forwards_alone": 100.0, "layer_forwards_naive": 300.0,
        "seconds": 1.0, **changes,
    }  # fmt: skip
    return Outcome(**values)  # type: ignore[arg-type]


def cell(
    searcher: str, result: Outcome | None, calibration: str = "c", remove: int = 2, seed: int = 0, **more: Any
) -> CellResult:
    state = "waiting" if result is None else "finished"
    return CellResult("m", calibration, searcher, remove, seed, "", state=state, outcome=result, **more)  # type: ignore[arg-type]


def study(*cells: CellResult, metrics: tuple[Metric, ...] = ()) -> StudyResult:
    return StudyResult("s", "s", cells, {"m": Sites.of_equal_layers(12)}, metrics, {}, {})


def compared(*cells: CellResult, margin: float | None = None, by: Metric | None = None) -> Comparison:
    """Return the comparison of the searchers of one setting, by their loss or by a metric."""
    ((setting, searches),) = settings(cells_frame(study(*cells, metrics=(by,) if by else ())))
    comparison = compare(setting, searches, quantity_of(by) if by else CALIBRATION_LOSS, margin)
    assert comparison is not None
    return comparison


def grid(values: dict[tuple[str, str], list[float]], metric: Metric = ACCURACY, axis: str = "seed") -> StudyResult:
    place: type = {"seed": int, "draw": str}[axis]
    searchers = list(dict.fromkeys(searcher for _, searcher in values))
    cells = [
        cell(
            searcher,
            outcome(removed=(0, 1 + searchers.index(searcher)), assessed={metric.name: Estimate(value)}),
            calibration,
            **{axis: place(number)},
        )
        for (calibration, searcher), several in values.items()
        for number, value in enumerate(several)
    ]
    return study(*cells, metrics=(metric,))
