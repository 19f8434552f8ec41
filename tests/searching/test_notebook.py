"""A search in a notebook of a real kernel: its progress bar, and the display of results."""

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
    """A client that keeps the displays of the kernel, in order."""

    @override
    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            shown.append((msg["msg_type"], msg["content"]["data"].get("text/html", "")))
        return super().process_message(msg, cell, cell_index)


shown: list[tuple[str, str]] = []


def html_of(cell: Any) -> str:
    return "".join(output["data"].get("text/html", "") for output in cell.outputs if "data" in output)


@pytest.mark.filterwarnings("ignore")  # warnings of jupyter_client
def test_a_search_shows_a_moving_bar_and_then_its_result(cwd: Path, world: World) -> None:
    run = f"import raysearch\nsearch = raysearch.search(*{world.search()!r})"
    cells = [
        run,
        "search",
        "search.result.plot.path();",
        "raysearch.search('remove=99', *" + repr(world.overrides()) + ")",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.cells[-1].metadata["tags"] = ["raises-exception"]
    Watched(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(cwd)}}).execute()
    kinds = [kind for kind, html in shown if "<progress" in html]
    assert kinds[0] == "display_data", "one bar is updated"
    assert kinds.count("update_display_data") >= 3, "one bar is updated"
    running, table, plot, refused = book.cells
    assert 'value="1.000"' in html_of(running), "the last state stays"
    assert "removed {" in html_of(running), "the last state stays"
    assert html_of(running).count("<progress") == 1
    assert "loss over dense" in html_of(table)
    assert "<table>" in html_of(table)
    assert any("image/png" in output.get("data", {}) for output in plot.outputs)
    assert refused.outputs[-1]["ename"] == "UserError"


def test_the_bar_shows_that_another_search_computes_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_html: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: shown_html.append(html.data))
    NotebookProgress().progress(Progress(masks_elsewhere=12, elsewhere="process 7 on host"))
    assert [html.partition("</progress>")[2] for html in shown_html] == [
        " waiting for 12 masks that another search is computing: process 7 on host"
    ]
