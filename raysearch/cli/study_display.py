"""What a person sees of a study: what it will cost, and a quiet live view of its searches, on standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from raysearch.cli.live import LiveConsole
from raysearch.core.formatting import added, count, duration

if TYPE_CHECKING:  # a command that stops early needs none of what these bring along
    from pathlib import Path

    from raysearch.study.plan import StudyPlan
    from raysearch.study.result import StudyResults
    from raysearch.study.spec import Cell


class StudyDisplay(LiveConsole):
    """Follows a study: a live table on a terminal, a line for each search that ends elsewhere.

    Args:
        console: Where to write; standard error.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._cells: Sequence[Cell] = ()
        self._running: dict[int, Mapping[str, Any]] = {}
        self._done: set[int] = set()
        self._failed: dict[int, str] = {}
        self._started = time.monotonic()

    def study_started(self, study_id: str, cells: Sequence[Cell], done: Sequence[int]) -> None:
        """See `StudyObserver`."""
        self._cells, self._done, self._started = cells, set(done), time.monotonic()
        known = f", of which {count(len(done), 'search', 'searches')} done already" if done else ""
        self._say(f"[bold]{escape(study_id)}[/]: {count(len(cells), 'search', 'searches')}{known}")

    def cell_started(self, cell: int) -> None:
        """See `StudyObserver`."""
        self._running[cell] = {}
        self._failed.pop(cell, None)
        self._show()

    def cell_reported(self, cell: int, report: Mapping[str, Any]) -> None:
        """See `StudyObserver`."""
        self._running[cell] = report
        self._show()

    def cell_ended(self, cell: int, failure: str | None) -> None:
        """See `StudyObserver`."""
        report = self._running.pop(cell, {})
        if failure is not None:
            self._failed[cell] = failure
            self._say(f"[red]failed[/] {escape(str(self._cells[cell]))}: {escape(failure)}")
        else:
            self._done.add(cell)
            self._say(f"{self._tally()}  {escape(str(self._cells[cell]))}  {escape(_standing(report))}")
        self._show()

    def assessing(self, line: str) -> None:
        """See `StudyObserver`."""
        self._show(line)

    def _tally(self) -> str:
        failed = f", {len(self._failed)} failed" if self._failed else ""
        elapsed = duration(time.monotonic() - self._started)
        return f"{len(self._done)} of {len(self._cells)} done{failed}  {elapsed}"

    def _show(self, line: str = "") -> None:
        """What changes all the time: live on a terminal, now and then elsewhere."""
        running = ", ".join(f"{self._cells[cell]} ({_standing(report)})" for cell, report in self._running.items())
        self._update(self._view(line), escape(f"{self._tally()}  {line or f'running: {running}'}"))

    def _view(self, line: str) -> RenderableType:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for cell, report in sorted(self._running.items()):
            table.add_row("[cyan]running[/]", escape(str(self._cells[cell])), escape(_standing(report)))
        return Group(f"[bold]{self._tally()}[/]", table, escape(line))


def _standing(report: Mapping[str, Any]) -> str:
    """Where a search stands, in a few words."""
    if not report:
        return "starts"
    best = report.get("best_loss")
    found = "" if best is None else f", best {best:.4f}"
    return f"round {report['round']}, {count(report['evaluations'], 'mask')}{found}"


def plan_table(plan: StudyPlan) -> Table:
    """What each search of a study is expected to cost."""
    table = Table(title="Expected cost, in layer-forwards over the calibration", title_justify="left")
    for name in ("model", "calibration", "searcher", "M", "seed"):
        table.add_column(name, justify="right" if name in ("M", "seed") else "left")
    for name in ("masks", "in this study", "by itself", "a forward a mask"):
        table.add_column(name, justify="right")
    for one in plan.cells:
        numbers = (one.evaluations, one.shared, one.separate, one.naive)
        table.add_row(*one.cell.labels.values(), *(f"{number:,}" for number in numbers))
    for cell in plan.unpredictable:
        table.add_row(*cell.labels.values(), "cannot be told", "", "", "")
    totals = plan.layer_forwards
    masks = sum(one.evaluations for one in plan.cells)
    table.add_section()
    sums = (masks, totals["shared"], totals["separate"], totals["naive"])
    table.add_row("all", "", "", "", "", *(f"{number:,}" for number in sums))
    return table


def plan_line(plan: StudyPlan) -> str:
    """The same in a sentence."""
    totals = plan.layer_forwards
    share = f" ({totals['shared'] / totals['separate']:.0%})" if totals["separate"] else ""
    searches = count(len(plan.cells) + len(plan.unpredictable), "search", "searches")
    left = "" if plan.seconds is None else f"; about {duration(plan.seconds)} of searching"
    return (
        f"{searches}: {totals['shared']:,} layer-forwards together instead of {totals['separate']:,} one by one"
        f"{share}, or {totals['naive']:,} by a full forward per mask{left}"
    )


def study_table(results: StudyResults) -> Table:
    """What each search of a study found; ± is one standard error, by the choice of samples."""
    table = Table(title=results.study_id, title_justify="left")
    for name in ("calibration", "M", "searcher", "loss over dense", "removed layers (0-based)", "masks"):
        table.add_column(name, justify="right" if name in ("M", "loss over dense", "masks") else "left")
    several_models = len({cell.model for cell in results.cells}) > 1
    several_seeds = len({cell.seed for cell in results.cells}) > 1
    before = None
    for cell in sorted(results.cells, key=lambda cell: (cell.model, cell.calibration, cell.remove)):
        if before not in (None, (cell.model, cell.calibration, cell.remove)):
            table.add_section()
        before = cell.model, cell.calibration, cell.remove
        calibration = f"{cell.calibration}, {cell.model}" if several_models else cell.calibration
        searcher = f"{cell.searcher}, seed {cell.seed}" if several_seeds else cell.searcher
        if cell.outcome is None:
            found = cell.state if cell.failure is None else f"{cell.state}: {cell.failure}"
            table.add_row(calibration, str(cell.remove), searcher, "", found, "")
        else:
            outcome = cell.outcome
            over = added(outcome.loss - outcome.dense_loss, outcome.delta_error)
            stopped = " (budget spent)" if cell.state == "stopped" else ""
            removed = f"{{{','.join(map(str, outcome.removed))}}}{stopped}"
            masks = f"{outcome.evaluations:,}"
            table.add_row(calibration, str(cell.remove), searcher, over, removed, masks)
    return table


def study_lines(results: StudyResults, files: Sequence[Path]) -> list[str]:
    """The lines under it: what sharing saved, and where the report is."""
    totals = results.layer_forwards
    lines = []
    if totals["separate"]:
        lines.append(
            f"Layer-forwards: {totals['shared']:,.0f} together, {totals['separate']:,.0f} one by one "
            f"({totals['shared'] / totals['separate']:.0%}), {totals['naive']:,.0f} by a full forward per mask"
        )
    return [*lines, f"Report: {files[0]}"]
