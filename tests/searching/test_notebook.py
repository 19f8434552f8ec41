"""A search in a notebook, run by a real kernel: a bar that moves, and results that show themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from typing_extensions import override

from raysearch.evaluation.progress import Progress
from raysearch.searching.notebook import NotebookProgress
from tests.cli.conftest import World


class Watched(NotebookClient):
    """A client that keeps what the kernel showed, in order."""

    @override
    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            shown.append((msg["msg_type"], msg["content"]["data"].get("text/html", "")))
        return super().process_message(msg, cell, cell_index)


shown: list[tuple[str, str]] = []


def html_of(cell: Any) -> str:
    return "".join(one["data"].get("text/html", "") for one in cell.outputs if "data" in one)


@pytest.mark.filterwarnings("ignore")  # of jupyter_client's own
def test_a_search_shows_a_bar_that_moves_and_then_itself(here: Path, world: World) -> None:
    search = f"import raysearch\nresult = raysearch.search(*{world.search()!r})"
    cells = [search, "result", "result.plot.path();", "raysearch.search('remove=99', *" + repr(world.words()) + ")"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.cells[-1].metadata["tags"] = ["raises-exception"]
    Watched(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(here)}}).execute()
    kinds = [kind for kind, html in shown if "<progress" in html]
    assert kinds[0] == "display_data" and kinds.count("update_display_data") >= 3, "it moves in one place"
    running, table, plot, refused = book.cells
    assert 'value="1.000"' in html_of(running) and "removed {" in html_of(running), "what is kept is its end"
    assert html_of(running).count("<progress") == 1
    assert "loss over dense" in html_of(table) and "<table>" in html_of(table)
    assert any("image/png" in one.get("data", {}) for one in plot.outputs)
    assert refused.outputs[-1]["ename"] == "UserError"


def test_it_says_that_another_search_computes_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: said.append(html.data))
    NotebookProgress().progress(Progress(masks_elsewhere=12, elsewhere="process 7 on host"))
    assert [one.partition("</progress>")[2] for one in said] == [
        " waiting for 12 masks that another search is computing: process 7 on host"
    ]
