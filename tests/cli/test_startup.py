"""A command starts nothing that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from raysearch.evaluation import replica
from raysearch.models import loading
from tests.cli.conftest import Run, World
from tests.cli.test_search import found
from tests.models.conftest import write_llama

HEAVY = {"torch", "transformers", "ray", "mlflow", "pandas", "scipy", "matplotlib", "datasets", "sklearn"}
IMPORTED = """
import sys
from raysearch.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
print(code or 0, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_help_and_show_import_nothing_heavy(run: Run, here: Path, world: World) -> None:
    assert run("search", *world.search()).code == 0
    for words in (["--help"], ["search", "--help"], ["show"], ["show", "latest"], ["show", "latest", "--json"]):
        command = [sys.executable, "-c", IMPORTED, *words]
        said = subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stderr.splitlines()[-1]
        code, *modules = said.split()
        assert code == "0" and not HEAVY & set(modules), words


def test_a_search_that_the_ledger_answers_starts_no_ray_and_reads_no_weights(
    run: Run, here: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found(run("search", *world.search(), "--json"))
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray starts"))
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("the weights are read"))
    monkeypatch.setattr(replica, "make_replica", lambda *_, **__: pytest.fail("a replica is made"))
    again = found(run("search", *world.search(cluster="local"), "--json"))
    assert again["evaluations"]["computed"] == 0
    assert again["removed"] == before["removed"] and again["loss"] == before["loss"]


def test_a_search_that_the_ledger_answers_needs_neither_torch_nor_transformers(
    run: Run, here: Path, world: World
) -> None:
    before = found(run("search", *world.search(), "--json"))
    again = [*world.search(cluster="local"), "--json"]
    for words in (["search", *again], ["search", *again, "searcher=one_shot"], ["resume", before["search_id"]]):
        command = [sys.executable, "-c", IMPORTED, *words]
        said = subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stderr.splitlines()[-1]
        code, *modules = said.split()
        assert code == "0" and not {"torch", "transformers", "ray"} & set(modules), words


def test_a_study_that_the_ledger_answers_needs_neither_torch_nor_ray(run: Run, here: Path, world: World) -> None:
    words = [
        "study",
        *world.search(remove=None, cluster="local"),
        "study.grid.remove=[1,2]",
        "study.grid.searcher=[greedy]",
    ]
    for remove in (1, 2):
        assert run("search", *world.search(remove=remove, screening="off")).code == 0
    for again in (words, ["report"]):
        command = [sys.executable, "-c", IMPORTED, *again]
        said = subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stderr.splitlines()[-1]
        code, *modules = said.split()
        assert code == "0" and not {"torch", "transformers", "ray"} & set(modules), again


def test_a_search_of_a_kept_gguf_file_leaves_torch_to_its_replicas(run: Run, here: Path, world: World) -> None:
    model = write_llama(here / "model.gguf")
    words = {"model": model, "searcher": "one_shot"}
    assert run("search", *world.search(**words, data__seed=1)).code == 0  # which keeps it
    again = ["search", *world.search(**words, cluster="local", cluster__replicas=2), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *again], capture_output=True, text=True, cwd=here, check=True
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0" and "ray" in modules and not {"torch", "pandas", "datasets", "sklearn"} & set(modules)
    inline = found(run("search", *world.search(**words, store="elsewhere"), "--json"))
    mapped = json.loads(done.stdout)
    assert mapped["evaluations"]["computed"] == inline["evaluations"]["computed"]
    assert (mapped["loss"], mapped["dense_loss"]) == (inline["loss"], inline["dense_loss"])
