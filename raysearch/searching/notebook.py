"""Shows the progress of a search or a study in a Jupyter notebook: a bar below the running cell."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from typing_extensions import override

from raysearch.searching.events import (
    AssessmentProgressed,
    CellEnded,
    RoundEnded,
    RoundProgressed,
    SearchEnded,
    SearchStarted,
    StudyStarted,
)
from raysearch.searching.live_progress import ProgressObserver
from raysearch.text.numbers import count, duration

_S_BETWEEN_UPDATES = 0.2


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process, so that it can show HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(ProgressObserver):
    """Shows the progress of a search, a study or an assessment below the cell; the last state stays in the notebook."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._shown_at_s = 0.0

    @override
    def on_search_started(self, event: SearchStarted) -> None:
        self._show(0.0, "starts", now=True)

    @override
    def on_round_progressed(self, event: RoundProgressed) -> None:
        progress = event.progress
        if progress.waiting:
            return self._show(0.0, progress.waiting)
        search = self.search
        masks = count(progress.masks_planned, "mask")
        waiting = "" if progress.n_replicas else f", {search.wait}"
        rounds = f"round {search.round}{search.of_rounds}"
        self._show(search.share, f"{rounds}, {search.share:.0%} of {masks}{search.best}{waiting}")

    @override
    def on_round_ended(self, event: RoundEnded) -> None:
        summary = event.summary
        search = self.search
        line = f"round {summary.round}{search.of_rounds} done{search.best}, {duration(summary.seconds)}"
        self._show(1.0, line, now=True)

    @override
    def on_search_ended(self, event: SearchEnded) -> None:
        if event.result is not None:
            result = event.result
            removed = f"removed {result.sites.text(result.mask)}"
            loss = f"loss {result.loss:.4f} {result.measure.unit}"
            self._show(1.0, f"{removed}, {loss}, {duration(result.work.seconds)}", now=True)
        elif event.stopped or event.failure is None:
            self._show(0.0, "stopped", now=True)
        else:
            self._show(0.0, f"failed: {event.failure}", now=True)

    @override
    def on_study_started(self, event: StudyStarted) -> None:
        self._show_study()

    @override
    def on_cell_ended(self, event: CellEnded) -> None:
        self._show_study()

    @override
    def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
        self._show(1.0, event.line)

    def _show_study(self) -> None:
        n_cells = len(self.study.cells)
        searches = count(n_cells, "search", "searches")
        self._show(self.study.n_ended / max(1, n_cells), f"{self.study.n_ended} of {searches} done", now=True)

    def _show(self, share: float, text: str, now: bool = False) -> None:
        """Show a bar with a text; unless `now`, only if the last update was some time ago."""
        if not now and time.monotonic() - self._shown_at_s < _S_BETWEEN_UPDATES:
            return
        from IPython.display import HTML, display

        self._shown_at_s = time.monotonic()
        name = self.search.name or self.study.study_id
        bold_name = f"<b>{escape(name)}</b> " if name else ""
        bar = HTML(f'<progress value="{share:.3f}" max="1"></progress> {bold_name}{escape(text)}')
        if self._handle is None:
            self._handle = display(bar, display_id=True)
        else:
            self._handle.update(bar)
