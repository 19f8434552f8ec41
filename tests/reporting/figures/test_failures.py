"""Why code fails, as bars that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysearch.core.estimate import Estimate, Metric
from raysearch.reporting.figures.failures import failure_pictures
from raysearch.reporting.stats.frame import cells_frame
from tests.reporting.synthetic import synthetic_study

SHARES = {"assertion": 40, "parenthesis": 20, "other_syntax": 5, "undefined_name": 5, "time_or_depth": 0, "other": 10}


def test_bars_of_code_stand_beside_the_dense_models() -> None:
    study = synthetic_study(searchers=["one_shot", "greedy"], flaws=False)
    metrics = [
        Metric("mbpp", "MBPP", "generation", "%", True),
        *(Metric(f"mbpp.failed.{reason}", f"MBPP, {reason}", "failures", "%", False) for reason in SHARES),
    ]
    found = {f"mbpp.failed.{reason}": Estimate(float(share)) for reason, share in SHARES.items()}
    dense = {name: Estimate(one.value / 2) for name, one in found.items()}
    cells = [
        cell if cell.outcome is None else replace(cell, outcome=replace(cell.outcome, assessed=found))
        for cell in study.cells
    ]
    study = replace(study, metrics=metrics, dense=dict.fromkeys(study.dense, dense), cells=cells)
    (picture,) = failure_pictures(study, cells_frame(study))
    panels = picture.figure.axes
    assert [panel.get_title(loc="left").partition(",")[0] for panel in panels] == ["MBPP", "MBPP"]
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == ["dense", "M = 5, one_shot", "M = 5, greedy", "M = 7, one_shot", "M = 7, greedy"]
    rows: dict[float, float] = {}
    for bar in panels[0].patches:
        rows[bar.get_y()] = rows.get(bar.get_y(), 0) + bar.get_width()  # type: ignore[attr-defined]
    assert list(rows.values()) == [pytest.approx(share) for share in (40, 80, 80, 80, 80)]
    assert "parenthesis 20 %" in picture.alt


def test_no_code_no_figure() -> None:
    study = synthetic_study()
    assert failure_pictures(study, cells_frame(study)) == []
