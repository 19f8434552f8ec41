"""The arithmetic probe by the number of layers removed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raysearch.core.estimate import Estimate, Metric
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.figures.probe import probe_pictures
from raysearch.reporting.stats.frame import cells_frame
from tests.reporting.cells import cell, outcome, study

TOP_1 = Metric("arithmetic_top1", "arithmetic probe", "probe", "%", True)


def test_a_searcher_is_a_line_from_the_dense_model_down() -> None:
    found = [
        cell(searcher, outcome(removed=tuple(range(size)), assessed={TOP_1.name: Estimate(value)}), remove=size)
        for searcher, values in (("greedy", {2: 20.0, 5: 10.0}), ("reverse", {2: 15.0, 5: 5.0}))
        for size, value in values.items()
    ]
    results = replace(study(*found, metrics=(TOP_1,)), dense={"m": {TOP_1.name: Estimate(30.0)}})
    (picture,) = probe_pictures(results, cells_frame(results), Palette.of(results))
    lines = [np.asarray(line.get_xydata()) for line in picture.figure.axes[0].get_lines()[:2]]
    assert lines[0] == pytest.approx(np.array([[0, 30], [2, 20], [5, 10]]))
    assert lines[1] == pytest.approx(np.array([[0, 30], [2, 15], [5, 5]]))
    assert "greedy, c, M = 5: 10" in picture.alt


def test_no_probe_no_figure() -> None:
    results = study(cell("greedy", outcome()))
    assert probe_pictures(results, cells_frame(results), Palette.of(results)) == []
