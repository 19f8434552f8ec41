"""A command starts nothing that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from raysearch.cli.app import app
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.models.conftest import write_llama

HEAVY = {"torch", "transformers", "ray", "mlflow", "hydra", "pandas", "scipy", "matplotlib", "datasets", "sklearn"}
IMPORTED = """
import json, sys
from raysearch.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print("IMPORTED", end.code or 0, *sorted({name.partition(".")[0] for name in sys.modules}), flush=True)
"""


def imported(*commands: Sequence[str]) -> tuple[list[set[str]], str, str]:
    """Type commands that go well in one process; return what is imported after each, and what they print."""
    command = [sys.executable, "-c", IMPORTED, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ends = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("IMPORTED")]
    assert len(ends) == len(commands), done
    assert all(code == "0" for code, *_ in ends), done
    return [set(modules) for _, *modules in ends], done.stdout, done.stderr


def test_help_and_show_import_nothing_heavy(run: Run, world: World) -> None:
    assert run("search", *world.search()).code == 0
    cli: Any = typer.main.get_command(app)
    names = sorted(cli.commands)
    assert {"search", "ledger", "recover"} <= {*names}
    helped = [["--help"], *([name, "--help"] for name in names)]
    modules, printed, stderr_text = imported(*helped, ["show"], ["show", "latest"], ["show", "latest", "--json"])
    assert stderr_text == ""
    assert not HEAVY & modules[len(names)]
    assert not HEAVY - {"hydra"} & modules[-1]
    for command in ("", *names):
        assert f"Usage: raysearch {command}".rstrip() in printed


def test_what_the_ledger_answers_needs_neither_torch_nor_transformers(run: Run, world: World) -> None:
    before = json_answer(run("search", *world.search(), "--json"))
    for remove in (1, 2):
        assert run("search", *world.search(remove=remove, screening="off")).code == 0
    repeated = [*world.search(cluster="local"), "--json"]
    overrides = world.search(remove=None, cluster="local")
    modules, printed, _ = imported(
        ["search", *repeated],
        ["search", *repeated, "searcher=one_shot"],
        ["resume", before["search_id"]],
        ["study", *overrides, "study.grid.remove=[1,2]", "study.grid.searcher=[greedy]"],
        ["report"],
    )
    assert not {"torch", "transformers", "ray"} & modules[-1]
    answered = json.loads(printed.partition("IMPORTED")[0])
    assert answered["evaluations"]["computed"] == 0
    assert answered["removed"] == before["removed"]
    assert answered["loss"] == before["loss"]


def test_search_and_export_of_a_kept_gguf_file_leave_torch_to_the_replica(run: Run, cwd: Path, world: World) -> None:
    model = write_llama(cwd / "model.gguf")
    changes = {"model": model, "searcher": "one_shot"}
    assert run("search", *world.search(**changes, data__seed=1)).code == 0  # which keeps it
    repeated = ["search", *world.search(**changes, cluster="local", cluster__replicas=1), "--json"]
    (*_, modules), printed, _ = imported(repeated, ["export", "latest", "--gguf", "pruned.gguf"])
    assert "ray" in modules
    assert not {"torch", "pandas", "datasets", "sklearn"} & modules
    inline = json_answer(run("search", *world.search(**changes, store="elsewhere"), "--json"))
    mapped = json.loads(printed.partition("IMPORTED")[0])
    assert mapped["evaluations"]["computed"] == inline["evaluations"]["computed"]
    assert (mapped["loss"], mapped["dense_loss"]) == (inline["loss"], inline["dense_loss"])
