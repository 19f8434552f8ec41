"""A terminal that is lost or full ends no search, and a text of others cannot command it."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raysearch.cli.console import SafeConsole
from tests.cli.conftest import Run, World

COMMAND = [sys.executable, "-m", "raysearch"]


def test_a_standard_error_that_cannot_be_written_ends_no_search(run: Run, world: World) -> None:
    words = world.search(tracking__type="none")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "search", *words, "--json"], stderr=full, stdout=subprocess.PIPE)
    assert done.returncode == 0 and b'"search_id"' in done.stdout
    assert run("show", "latest").code == 0


def hung_up(words: list[str], ignored: bool) -> tuple[int, str]:
    """A search whose terminal is lost as it begins: its exit code, and what it says from then on."""
    ignore = (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None
    with subprocess.Popen(
        [*COMMAND, "search", *words], stderr=subprocess.PIPE, text=True, preexec_fn=ignore
    ) as started:
        assert started.stderr is not None
        for line in started.stderr:
            if "remove 2 of" in line:
                started.send_signal(signal.SIGHUP)
                break
        else:
            pytest.fail("it never said that it began")
        said = started.stderr.read()
    return started.returncode, said


def test_a_lost_terminal_stops_a_search_which_says_how_to_go_on(run: Run, world: World, here: Path) -> None:
    slow = world.search(tracking__type="none", searcher="exhaustive", remove="2", data__samples=200)
    code, said = hung_up(slow, ignored=False)
    assert code == 130 and "raysearch resume" in said
    assert "interrupted" in run("show").out


def test_nohup_keeps_a_search_from_it(run: Run, world: World, here: Path) -> None:
    code, _ = hung_up(world.search(tracking__type="none", remove="2"), ignored=True)
    assert code == 0 and "finished" in run("show").out


def test_a_console_spells_commands_and_hides_secrets() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=80, highlight=False, _environ={})
    console.print("[bold]a\x1b[2Jb[/] https://me:s3cret@host/x")
    assert "a\\x1b[2Jb" in file.getvalue() and "s3cret" not in file.getvalue()
    assert "\x1b[1m" in file.getvalue(), "its own colours stay"


def test_a_refusal_needs_no_standard_error(here: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "show"], stderr=full, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 2
