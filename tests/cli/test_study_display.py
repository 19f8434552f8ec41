"""The display of a running study."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raysearch.cli.cells import number_cell
from raysearch.cli.displays import StudyDisplay
from raysearch.cli.study_tables import (
    assessed_table,
    plan_line,
    plan_table,
    study_lines,
    study_table,
)
from raysearch.configuration import build
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.checkpoint_findings import checkpoint_findings
from raysearch.searching.events import CellEnded, CellProgressed, CellStarted, ReplicasPolled, StudyHeader, StudyStarted
from raysearch.studies.plan import CellPlan, StudyPlan
from raysearch.studies.result import StudyResult
from tests.cli.conftest import World
from tests.reporting.synthetic import synthetic_study


@pytest.fixture
def cells(world: World) -> Any:
    overrides = [*world.overrides(cluster="local"), "study.grid.searcher=[greedy,beam]", "study.grid.remove=[1,2]"]
    return build.study_spec(overrides).cells


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def tell(display: StudyDisplay, cells: Any) -> None:
    display.on_event(StudyStarted(StudyHeader("my-study-1", {}, [*map(str, cells)], done=[0])))
    display.on_event(CellStarted(1))
    display.on_event(CellProgressed(1, n_rounds=2, n_requested=9, best_loss=3.25))
    display.on_event(CellEnded(1, None))
    display.on_event(CellStarted(2))
    display.on_event(CellEnded(2, "out of [memory]"))
    display.warn("MLflow is down")


def test_without_a_terminal_a_line_is_printed_when_a_search_ends(cells: Any) -> None:
    console = Console(file=io.StringIO(), width=200)
    with StudyDisplay(console) as display:
        tell(display, cells)
        display.assessing("speed: 5 models in turn")
    text = shown(console)
    assert text.endswith("speed: 5 models in turn\n"), "it takes minutes"
    assert "my-study-1: 4 searches, of which 1 search done already" in text
    assert "2 of 4 done  0 s  greedy, M=2" in text
    assert "round 2, 9 masks, best 3.2500" in text
    assert "failed beam, M=1" in text
    assert "out of [memory]" in text
    assert "warning: MLflow is down" in text


def test_a_long_wait_for_replicas_suggests_a_command(cells: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysearch.searching.live_progress._LONG_WAIT_S", 0.0)
    console = Console(file=io.StringIO(), width=200)
    with StudyDisplay(console) as display:
        display.on_event(StudyStarted(StudyHeader("my-study-1", {}, [*map(str, cells)])))
        display.on_event(CellStarted(1))
        display._line_time -= 60
        for awaited in (True, False):
            display.on_event(ReplicasPolled(awaited))
    waiting, running = shown(console).splitlines()[-2:]
    assert "0 of 4 done" in waiting
    assert "ray status shows what is missing" in waiting
    assert "running: " in running


def test_on_a_terminal_the_running_searches_are_a_live_table(cells: Any) -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    with StudyDisplay(console) as display:
        display.on_event(StudyStarted(StudyHeader("my-study-1", {}, [*map(str, cells)])))
        display.on_event(CellStarted(3))
        display.assessing("perplexity: 12 %")
        view = Console(file=io.StringIO(), width=160)
        view.print(display._view("perplexity: 12 %"))
    assert "0 of 4 done" in shown(view)
    assert "running" in shown(view)
    assert "beam, M=2" in shown(view)
    assert "perplexity: 12 %" in shown(view)


def test_the_plan_adds_up(cells: Any) -> None:
    plans = [CellPlan(cell, evaluations=5, separate=20, shared=8, heads=5, naive=40) for cell in cells[:3]]
    plan = StudyPlan(plans, unpredictable=cells[3:], eta_seconds=61)
    assert plan_line(plan) == (
        "4 searches: 24 layer-forwards together instead of 60 one by one (40%), or 120 by a full forward per mask; "
        "about 1 min 01 s of searching"
    )
    assert plan_line(replace(plan, trainings=8)).endswith("of searching; then 8 trainings at most")
    console = Console(file=io.StringIO(), width=200, markup=False)
    console.print(plan_table(plan))
    assert "unpredictable" in shown(console)
    assert "120" in shown(console)
    assert plain(plan) == {
        "cells": [
            {**cell.labels, "evaluations": 5, "layer_forwards": {"shared": 8, "separate": 20, "naive": 40}}
            for cell in cells[:3]
        ],
        "unpredictable": [cells[3].labels],
        "eta_seconds": 61,
        "memory_bytes": None,
        "notes": [],
        "trainings": 0,
        "assessed": 0,
        "measures": [],
        "layer_forwards": {"shared": 24, "separate": 60, "naive": 120},
    }


def test_the_closing_table_shows_every_search_and_the_cause_of_failures() -> None:
    results: StudyResult = synthetic_study()
    first = replace(results.cells[0], searcher="GA [no prior]")
    console = Console(file=io.StringIO(), width=250, markup=False)
    console.print(study_table(replace(results, cells=[first, *results.cells[1:]])))
    assert "GA [no prior]" in shown(console)
    text = shown(console)
    for cell in results.cells:
        if cell.failure:
            assert cell.failure.split()[0] in text
        else:
            assert cell.search_id in text
    lines = study_lines(results, [Path("r/report.html")], " --store s")
    assert "Report: r/report.html" in lines
    *exports, last = (line for line in lines if "raysearch " in line)
    assert last == f"Next: raysearch assess {results.study_id} --store s" or "export" in last, exports


def test_the_assessed_numbers_of_a_study_are_a_table_and_the_best_is_exported_next() -> None:
    results: StudyResult = synthetic_study()
    table = assessed_table(results)
    assert table is not None
    assert results.metrics
    first = results.metrics[0]
    numbers = {
        cell.search_id: number_cell(cell.outcome.assessed[first.name], first.unit)
        for cell in results.cells
        if cell.outcome is not None and first.name in cell.outcome.assessed
    }
    searches, _, shown, *_ = ([*column.cells] for column in table.columns)
    assert dict(zip(searches[1:], shown[1:], strict=True)) == numbers
    assert searches[0] == "dense"
    assert shown[0] == number_cell(next(iter(results.dense.values()))[first.name], first.unit), (
        "the dense model is first"
    )
    sizes = {cell.search_id: cell.remove for cell in results.cells}
    takes = [finding.command.split()[2] for finding in checkpoint_findings(analyse(results))]
    exports = [line.split()[-3::2] for line in study_lines(results, [Path("r")], "") if "raysearch export" in line]
    assert exports == [[search_id, f"pruned-by-{sizes[search_id]}"] for search_id in takes], "those of the report"


def test_masks_that_cannot_become_gguf_have_a_mark() -> None:
    study: StudyResult = synthetic_study()
    masks = [Mask.of(*cell.outcome.removed) for cell in study.cells if cell.outcome is not None]
    results = replace(study, refused={study.cells[0].model: {masks[0]: "it has windows"}})
    for table in (study_table(results), assessed_table(results)):
        assert table is not None
        cells = {cell for column in table.columns for cell in column.cells}
        assert f"{masks[0]} *" in cells
        assert str(masks[0]) not in cells
    assert f"* export --gguf refuses {masks[0]}: it has windows" in study_lines(results, [Path("r")], "")


def test_a_study_shows_the_time_left(cells: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    with StudyDisplay(console) as display:
        tell(display, cells)
        display.study._started_s -= 60
        display.on_event(CellStarted(2))
        assert "2 of 4 done  1 min 00 s  left about 2 min 00 s" in display._tally()
