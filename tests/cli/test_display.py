"""What the terminal says, of searches that no model runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from raysearch.cli.displays import SearchDisplay
from raysearch.core.mask import Mask
from raysearch.evaluation.progress import Progress
from raysearch.searching.forecast import RoundCost, SearchForecast
from raysearch.testing.tracker_suite import MARGIN
from tests.tracking.simulated import greedy_search

SEARCH = greedy_search(n_remove=3)
EXPECTED = SearchForecast([RoundCost(8, 20, 8, 56), RoundCost(7, 100, 7, 42), RoundCost(6, 300, 6, 30)])


@pytest.fixture
def said() -> io.StringIO:
    """What goes to standard error."""
    return io.StringIO()


@pytest.fixture
def display(said: io.StringIO) -> SearchDisplay:
    """A search that has computed its first round of 20 layer-forwards in 10 s of two replicas, all but their start."""
    shown = SearchDisplay(Console(file=said, width=200))
    shown._expected = EXPECTED
    shown.progress(Progress(0, 20, 0, 8, 0, 8, n_replicas=2))
    shown.progress(Progress(20, 20, 8, 8, 8, 8, n_replicas=2, computing_s=10.0))
    return shown


def test_a_finished_round_says_what_is_left_of_the_search(display: SearchDisplay, said: io.StringIO) -> None:
    summary = SEARCH.rounds[0]
    display.round_done(summary)  # of (100 + 300) layer-forwards, at 0.5 s each on two replicas
    assert said.getvalue().endswith("left about 1 min 40 s\n") and said.getvalue().count("\n") == 1


def test_how_fast_answers_are_written_is_shown(display: SearchDisplay, said: io.StringIO) -> None:
    display._last_line -= 60
    display.progress(Progress(20, 40, 8, 16, 8, 16, n_replicas=2, computing_s=20.0, tokens_written=600))
    assert said.getvalue().endswith("replicas 2, 60 tokens/s\n")


def test_the_last_round_leaves_nothing(display: SearchDisplay, said: io.StringIO) -> None:
    for summary in SEARCH.rounds:
        display.round_done(summary)
    assert [line.rpartition("  ")[2] for line in said.getvalue().splitlines()] == [
        "left about 1 min 40 s",
        "left about 1 min 15 s",
        "8 s",
    ]


def test_a_search_that_cannot_be_foretold_says_no_time(display: SearchDisplay, said: io.StringIO) -> None:
    display._expected = SearchForecast(None)
    display.round_done(SEARCH.rounds[0])
    assert "left" not in said.getvalue()


def test_a_statistic_that_costs_no_forward_is_shown(display: SearchDisplay, said: io.StringIO) -> None:
    display._last_line -= 60
    display.progress(Progress(0, 0, 0, 0, 0, 1, n_replicas=2, computing_s=11.0))
    assert "replicas 2" in said.getvalue()


def test_each_stage_of_an_assessment_is_told_as_it_begins(display: SearchDisplay, said: io.StringIO) -> None:
    for line in ("lm-eval: 0 of 9 jobs", "lm-eval: 1 of 9 jobs", "speed: 5 models in turn"):
        display.assessing(line)
    assert said.getvalue().splitlines() == ["lm-eval: 0 of 9 jobs", "speed: 5 models in turn"]


def test_the_best_of_a_round_is_a_bare_number(display: SearchDisplay, said: io.StringIO) -> None:
    summary = greedy_search(measure=MARGIN).rounds[0]
    assert summary.round_best_loss is not None and summary.round_best_loss < 0
    display.round_done(replace(summary, round_best=Mask.of(4)))
    assert f"round 1 done  best of the round {{4}} {summary.round_best_loss:.4f}  9 computed" in said.getvalue()
    display.round_done(replace(summary, round=2, round_best_loss=None))  # where screening dropped all
    assert "round 2 done  9 computed" in said.getvalue(), "not the best of the round before"


def test_a_wait_for_replicas_that_do_not_come_says_where_to_look(
    display: SearchDisplay, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    for least, expected in ((60.0, "waiting for replicas to load"), (0.0, "ray status tells what it lacks")):
        monkeypatch.setattr("raysearch.cli.displays._LONG_S", least)
        display._last_line -= 60
        display.progress(Progress(n_replicas=0))
        assert expected in said.getvalue().splitlines()[-1]


def test_the_live_line_names_the_round_of_the_best(display: SearchDisplay, said: io.StringIO) -> None:
    display.round_done(replace(SEARCH.rounds[0], round_best=Mask.of(4)))
    display._last_line -= 60
    display.progress(Progress(10, 100, 0, 7, 0, 7, n_replicas=2, computing_s=15.0))
    line = said.getvalue().splitlines()[-1]
    assert line.startswith("round 2/3  10% of 7 masks  best of round 1: {4} ") and "best of the round" not in line


def test_a_search_by_budget_says_what_is_left_at_most_of_all_rounds(display: SearchDisplay, said: io.StringIO) -> None:
    display._expected = replace(EXPECTED, by_budget=True)
    display.round_done(SEARCH.rounds[0])
    assert said.getvalue().endswith("left at most 1 min 40 s\n")
    display._last_line -= 60
    display.progress(Progress(0, 100, 0, 7, 0, 7, n_replicas=2, computing_s=10.0))
    assert "round 2/3 at most" in said.getvalue() and "left 1 min 40 s at most" in said.getvalue()


def test_a_model_that_is_converted_is_told_at_once(display: SearchDisplay, said: io.StringIO) -> None:
    display.progress(Progress(loading="reading and converting x.gguf (once)"))
    assert said.getvalue() == "reading and converting x.gguf (once)\n"
