"""A lost or full terminal does not break a search, and text from files cannot control the terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysearch.cli.console import SafeConsole
from tests.cli.conftest import Run, World

#: Imports once what all searches need, which takes seconds, and types each command in a process of its own.
SEARCHES = """
import json, os, signal, sys
import transformers.models.llama.modeling_llama
import raysearch.configuration.build, raysearch.evaluation.inline_pool
from raysearch.cli import main
for line in sys.stdin:
    words, folder, stderr, ignored = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(stderr, os.O_WRONLY), 2)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        sys.argv[1:] = words
        main()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def searches() -> Iterator[subprocess.Popen[str]]:
    """Start a process that forks searches."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SEARCHES], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        yield process


def begin(searches: subprocess.Popen[str], arguments: list[str], stderr: Path, ignored: bool = False) -> int:
    """Begin a search with this standard error, that may ignore hangups, and return the id of its process."""
    assert searches.stdin is not None
    assert searches.stdout is not None
    print(json.dumps((["search", *arguments], str(Path.cwd()), str(stderr), ignored)), file=searches.stdin, flush=True)
    return int(searches.stdout.readline())


def end(searches: subprocess.Popen[str]) -> int:
    """Wait for the end of a search, and return its exit code."""
    assert searches.stdout is not None
    return int(searches.stdout.readline())


def test_a_standard_error_that_cannot_be_written_ends_no_search(
    run: Run, world: World, cwd: Path, searches: subprocess.Popen[str]
) -> None:
    begin(searches, [*world.search(tracking__type="none"), "--json"], Path("/dev/full"))
    assert end(searches) == 0
    assert '"search_id"' in (cwd / "stdout").read_text()
    assert run("show", "latest").code == 0


def hung_up(searches: subprocess.Popen[str], arguments: list[str], ignored: bool) -> tuple[int, str]:
    """Hang up the terminal of a search when it begins; return its exit code and its later output."""
    os.mkfifo("stderr")
    process = begin(searches, arguments, Path("stderr"), ignored)
    with open("stderr") as stderr:
        stderr_text = ""
        for line in stderr:
            stderr_text += line
            if "remove 2 of" in line:
                os.kill(process, signal.SIGHUP)
                break
        else:
            pytest.fail(f"it never printed its beginning: {stderr_text}")
        stderr_text = stderr.read()
    return end(searches), stderr_text


def test_a_lost_terminal_stops_a_search_which_prints_how_to_resume(
    run: Run, world: World, searches: subprocess.Popen[str]
) -> None:
    slow = world.search(tracking__type="none", searcher="exhaustive", remove="2", data__samples=200)
    code, stderr_text = hung_up(searches, slow, ignored=False)
    assert code == 130
    assert "raysearch resume" in stderr_text
    assert "interrupted" in run("show").out


def test_nohup_keeps_a_search_from_it(run: Run, world: World, searches: subprocess.Popen[str]) -> None:
    code, _ = hung_up(searches, world.search(tracking__type="none", remove="2"), ignored=True)
    assert code == 0
    assert "finished" in run("show").out


def test_a_console_spells_commands_and_hides_secrets() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=80, highlight=False, _environ={})
    console.print("[bold]a\x1b[2Jb[/] https://me:s3cret@host/x")
    assert "a\\x1b[2Jb" in file.getvalue()
    assert "s3cret" not in file.getvalue()
    assert "\x1b[1m" in file.getvalue(), "its own colours stay"
