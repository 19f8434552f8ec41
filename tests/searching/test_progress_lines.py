"""The progress lines of a script that calls the Python functions."""

from __future__ import annotations

import io
import logging

import pytest

import raysearch
from raysearch.searching.progress_lines import ProgressLines
from tests.cli.conftest import World


def test_a_script_without_a_terminal_logs_a_line_for_each_round(
    world: World, cwd: object, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "raysearch"):
        result = raysearch.search(*world.search()).result
    lines = [record.getMessage() for record in caplog.records if record.name == "raysearch"]
    name = result.search_id
    assert lines[0] == f"{name}: remove 2 of 5 layers (0-based)"
    for summary in result.rounds:
        beginning = f"{name}: round {summary.round} of 2 done, best {summary.best_of_round}, "
        assert sum(line.startswith(beginning) for line in lines) == 1
    assert lines[-1] == f"{name}: removed {result.mask}, loss {result.loss:.4f} nats per token"
    assert capfd.readouterr() == ("", "")


def test_a_script_on_a_terminal_prints_the_lines(world: World, cwd: object, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    result = raysearch.search(*world.search()).result
    assert f"{result.search_id}: round 2 of 2 done" in terminal.getvalue()


def test_frequent_lines_are_printed_once_per_stage(caplog: pytest.LogCaptureFixture) -> None:
    lines = ProgressLines()
    with caplog.at_level(logging.INFO, "raysearch"):
        for line in ("speed: 1 of 4", "speed: 2 of 4", "perplexity: 1 of 2"):
            lines.assessing(line)
    assert [record.getMessage() for record in caplog.records] == ["speed: 1 of 4", "perplexity: 1 of 2"]
