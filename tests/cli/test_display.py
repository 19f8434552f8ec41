"""What the terminal says, of searches that no model runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from raysearch.display import SearchDisplay, remark_notes, remark_table
from raysearch.evaluation.evaluator import Progress
from raysearch.study.forecast import RoundCost
from raysearch.testing.tracker_suite import greedy_search

SEARCH = greedy_search(n_remove=3)
EXPECTED = [RoundCost(8, 20, 8, 56), RoundCost(7, 100, 7, 42), RoundCost(6, 300, 6, 30)]


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
    _, summary = SEARCH.rounds[0]
    display.round_done(summary)  # of (100 + 300) layer-forwards, at 0.5 s each on two replicas
    assert said.getvalue().endswith("left about 1 min 40 s\n") and said.getvalue().count("\n") == 1


def test_the_last_round_leaves_nothing(display: SearchDisplay, said: io.StringIO) -> None:
    for _, summary in SEARCH.rounds:
        display.round_done(summary)
    assert [line.rpartition("  ")[2] for line in said.getvalue().splitlines()] == [
        "left about 1 min 40 s",
        "left about 1 min 15 s",
        "8 s",
    ]


def test_a_search_that_cannot_be_foretold_says_no_time(display: SearchDisplay, said: io.StringIO) -> None:
    display._expected = None
    display.round_done(SEARCH.rounds[0][1])
    assert "left" not in said.getvalue()


def test_a_statistic_that_costs_no_forward_is_shown(display: SearchDisplay) -> None:
    display._last_line -= 60
    display.progress(Progress(0, 0, 0, 0, 0, 1, n_replicas=2, computing_s=11.0))


def test_remarks_are_plain_words() -> None:
    remarks = {"gap": 0.031416, "masks": 142506.0, "solver_says": "proven\noptimal", "odd": None, "scores": [1.0, 2.0]}
    assert remark_notes(remarks) == ["gap: 0.03142", "masks: 142,506", "solver says: proven optimal", "odd: not finite"]


def test_lists_of_different_lengths_share_a_table() -> None:
    table = remark_table({"block_influence": [0.25, None], "gates": [504543.94, 2.0, 3.0], "gap": 1.0})
    assert [column.header for column in table.columns] == ["layer", "block influence", "gates"]
    assert [list(column.cells) for column in table.columns] == [
        ["0", "1", "2"],
        ["0.25", "not finite", ""],
        ["504,543.9", "2", "3"],
    ]
