"""Why code fails, as bars that add up, and the arithmetic probe by the number of layers removed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raysearch.core.estimate import Estimate, Metric
from raysearch.reporting.analysis.frame import cells_frame
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.pictures.texts import failure_pictures, probe_pictures
from tests.reporting.cells import cell, outcome, study

SHARES = {"assertion": 40, "parenthesis": 20, "other_syntax": 5, "undefined_name": 5, "time_or_depth": 0, "other": 10}
TOP_1 = Metric("arithmetic_top1", "arithmetic probe", "probe", "%", True)


def test_bars_of_code_stand_beside_the_dense_models() -> None:
    metrics = (
        Metric("mbpp", "MBPP", "generation", "%", True),
        *(Metric(f"mbpp.failed.{reason}", f"MBPP, {reason}", "failures", "%", False) for reason in SHARES),
    )
    assessed = {f"mbpp.failed.{reason}": Estimate(float(share)) for reason, share in SHARES.items()}
    dense = {name: Estimate(estimate.value / 2) for name, estimate in assessed.items()}
    cells = [
        cell(searcher, outcome(removed=tuple(range(size)), assessed=assessed), calibration, size)
        for calibration in "xy"
        for size in (5, 7)
        for searcher in ("one_shot", "greedy")
    ]
    results = replace(study(*cells, metrics=metrics), dense={"m": dense})
    (picture,) = failure_pictures(results, cells_frame(results))
    panels = picture.figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == [
        f"MBPP, calibrated by {calibration}" for calibration in "xy"
    ]
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == ["dense", "M = 5, one_shot", "M = 5, greedy", "M = 7, one_shot", "M = 7, greedy"]
    rows: dict[float, float] = {}
    for bar in panels[0].patches:
        rows[bar.get_y()] = rows.get(bar.get_y(), 0) + bar.get_width()  # type: ignore[attr-defined]
    assert list(rows.values()) == [pytest.approx(share) for share in (40, 80, 80, 80, 80)]


def test_a_searcher_is_a_line_from_the_dense_model_down() -> None:
    cells = [
        cell(searcher, outcome(removed=tuple(range(size)), assessed={TOP_1.name: Estimate(value)}), remove=size)
        for searcher, values in (("greedy", {2: 20.0, 5: 10.0}), ("reverse", {2: 15.0, 5: 5.0}))
        for size, value in values.items()
    ]
    results = replace(study(*cells, metrics=(TOP_1,)), dense={"m": {TOP_1.name: Estimate(30.0)}})
    (picture,) = probe_pictures(results, cells_frame(results), study_palette(results))
    lines = [np.asarray(line.get_xydata()) for line in picture.figure.axes[0].get_lines()[:2]]
    assert lines == [pytest.approx(np.array([[0, 30], [2, a], [5, b]])) for a, b in ((20, 10), (15, 5))]


def test_what_was_not_asked_has_no_figure() -> None:
    results = study(cell("greedy", outcome()))
    frame = cells_frame(results)
    assert failure_pictures(results, frame) == probe_pictures(results, frame, study_palette(results)) == []
