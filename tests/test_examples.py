"""The scripts of examples/ can be imported, and the notebook runs to its end, on a tiny model."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.cli.conftest import World, cwd, world
from tests.test_structure import ROOT

__all__ = ["cwd", "world"]  # fixtures


def test_the_scripts_find_what_they_import() -> None:
    files = sorted((ROOT / "examples").glob("*.py"))
    assert files
    for file in files:
        runpy.run_path(str(file), run_name="imported")


@pytest.mark.real
@pytest.mark.faults  # which takes long: it trains a model
@pytest.mark.filterwarnings("ignore")  # of jupyter_client's own
def test_the_notebook_runs(cwd: Path, world: World) -> None:
    book = nbformat.read(ROOT / "examples" / "search_to_recovery.ipynb", 4)
    (parameters,) = (cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ()))
    small = {"samples": 4, "seq_len": 32}
    values: dict[str, object] = {"model": str(world.model), "data": small, "budget": {"loss": 9}}
    values |= {"training": {"max_steps": 2, "max_tokens": 32}, "rows": {"samples": 20, "seq_len": 32}}
    parameters.source += "".join(f"\n{name} = {value!r}" for name, value in values.items())
    for cell in book.cells:
        cell.source = cell.source.replace('"seq_len": 64, "probe"', '"seq_len": 32, "probe"')
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(cwd)}}).execute()
    written = "".join(output["text"] for output in book.cells[-1].outputs if output.get("name") == "stdout")
    assert "pruned:" in written
    assert "healed:" in written
