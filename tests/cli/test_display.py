"""The display of searches whose events are simulated, without a model."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from raysearch.cli.displays import SearchDisplay
from raysearch.core.mask import Mask
from raysearch.evaluation.progress import Progress
from raysearch.searching.events import RoundEnded
from raysearch.searching.forecast import RoundCost, SearchForecast
from tests.tracking.simulated import greedy_search
from tests.tracking.tracker_suite import MARGIN

SEARCH = greedy_search(n_remove=3)
EXPECTED = SearchForecast([RoundCost(8, 20, 8, 56), RoundCost(7, 100, 7, 42), RoundCost(6, 300, 6, 30)])


@pytest.fixture
def stderr_text() -> io.StringIO:
    """Return the text of standard error."""
    return io.StringIO()


@pytest.fixture
def display(stderr_text: io.StringIO) -> SearchDisplay:
    """Return the display of a search after its first round: 20 layer-forwards in 10 s of two replicas."""
    shown = SearchDisplay(Console(file=stderr_text, width=200))
    shown.search.expected = EXPECTED
    shown.progress(Progress(0, 20, 0, 8, 0, 8, n_replicas=2))
    shown.progress(Progress(20, 20, 8, 8, 8, 8, n_replicas=2, computing_s=10.0))
    return shown


def test_a_finished_round_shows_the_time_left(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    summary = SEARCH.rounds[0]
    display.on_event(RoundEnded(summary))  # left are 100 + 300 layer-forwards, at 0.5 s each on two replicas
    assert stderr_text.getvalue().endswith("left about 1 min 40 s\n")
    assert stderr_text.getvalue().count("\n") == 1


def test_how_fast_answers_are_written_is_shown(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display._line_time -= 60
    display.progress(Progress(20, 40, 8, 16, 8, 16, n_replicas=2, computing_s=20.0, tokens_written=600))
    assert stderr_text.getvalue().endswith("replicas 2, 60 tokens/s\n")


def test_the_last_round_leaves_nothing(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    for summary in SEARCH.rounds:
        display.on_event(RoundEnded(summary))
    assert [line.rpartition("  ")[2] for line in stderr_text.getvalue().splitlines()] == [
        "left about 1 min 40 s",
        "left about 1 min 15 s",
        "8 s",
    ]


def test_a_search_without_a_forecast_shows_no_time(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display.search.expected = SearchForecast(None)
    display.on_event(RoundEnded(SEARCH.rounds[0]))
    assert "left" not in stderr_text.getvalue()


def test_a_statistic_that_costs_no_forward_is_shown(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display._line_time -= 60
    display.progress(Progress(0, 0, 0, 0, 0, 1, n_replicas=2, computing_s=11.0))
    assert "replicas 2" in stderr_text.getvalue()


def test_each_stage_of_an_assessment_is_printed_when_it_begins(
    display: SearchDisplay, stderr_text: io.StringIO
) -> None:
    for line in ("lm-eval: 0 of 9 jobs", "lm-eval: 1 of 9 jobs", "speed: 5 models in turn"):
        display.assessing(line)
    assert stderr_text.getvalue().splitlines() == ["lm-eval: 0 of 9 jobs", "speed: 5 models in turn"]


def test_the_best_of_a_round_is_a_bare_number(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    summary = greedy_search(measure=MARGIN).rounds[0]
    assert summary.round_best_loss is not None
    assert summary.round_best_loss < 0
    display.on_event(RoundEnded(replace(summary, round_best=Mask.of(4))))
    assert f"round 1 done  best of the round {{4}} {summary.round_best_loss:.4f}  9 computed" in stderr_text.getvalue()
    display.on_event(RoundEnded(replace(summary, round=2, round_best_loss=None)))  # screening dropped all masks
    assert "round 2 done  9 computed" in stderr_text.getvalue(), "not the best of the round before"


def test_a_long_wait_for_replicas_suggests_a_command(
    display: SearchDisplay, stderr_text: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    for least, expected in ((60.0, "waiting for replicas to load"), (0.0, "ray status shows what is missing")):
        monkeypatch.setattr("raysearch.searching.live_progress._LONG_WAIT_S", least)
        display._line_time -= 60
        display.progress(Progress(n_replicas=0))
        assert expected in stderr_text.getvalue().splitlines()[-1]


def test_the_live_line_names_the_round_of_the_best(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display.on_event(RoundEnded(replace(SEARCH.rounds[0], round_best=Mask.of(4))))
    display._line_time -= 60
    display.progress(Progress(10, 100, 0, 7, 0, 7, n_replicas=2, computing_s=15.0))
    line = stderr_text.getvalue().splitlines()[-1]
    assert line.startswith("round 2/3  10% of 7 masks  best of round 1: {4} ")
    assert "best of the round" not in line


def test_a_search_by_budget_shows_the_maximum_time_left(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display.search.expected = replace(EXPECTED, by_budget=True)
    display.on_event(RoundEnded(SEARCH.rounds[0]))
    assert stderr_text.getvalue().endswith("left at most 1 min 40 s\n")
    display._line_time -= 60
    display.progress(Progress(0, 100, 0, 7, 0, 7, n_replicas=2, computing_s=10.0))
    assert "round 2/3 at most" in stderr_text.getvalue()
    assert "left 1 min 40 s at most" in stderr_text.getvalue()


def test_the_conversion_of_a_model_is_shown_immediately(display: SearchDisplay, stderr_text: io.StringIO) -> None:
    display.progress(Progress(loading="reading and converting x.gguf (once)"))
    assert stderr_text.getvalue() == "reading and converting x.gguf (once)\n"
