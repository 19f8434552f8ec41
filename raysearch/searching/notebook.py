"""Shows the progress of a search or a study in a Jupyter notebook: a bar below the running cell."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from raysearch.searching.observer import Observer, StudyHeader
from raysearch.text.numbers import count, duration

if TYPE_CHECKING:  # imports that an observer does not need
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult

_S_BETWEEN_UPDATES = 0.2


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process, so that it can show HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(Observer):
    """Shows the progress of a search, a study or an assessment below the cell; the last state stays in the notebook."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._name = self._best = ""
        self._round = 1
        self._of_rounds = ""  # `` of 5``: the expected number of rounds
        self._done = self._cells = 0
        self._shown = 0.0

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        self._name = header.search_id
        if expected and expected.rounds:
            limit = "at most " if expected.by_budget else ""
            self._of_rounds = f" of {limit}{len(expected.rounds)}"
        self._show(0.0, "starts", now=True)

    @override
    def progress(self, progress: Progress) -> None:
        if progress.waiting:
            return self._show(0.0, progress.waiting)
        share = progress.masks_done / progress.masks_planned if progress.masks_planned else 0.0
        waiting = "" if progress.n_replicas else ", waiting for replicas to load"
        masks = count(progress.masks_planned, "mask")
        self._show(share, f"round {self._round}{self._of_rounds}, {share:.0%} of {masks}{self._best}{waiting}")

    @override
    def round_done(self, summary: RoundSummary) -> None:
        self._best = f", best {summary.best_of_round}" if summary.best_of_round else ""
        self._round = summary.round + 1
        done = f"round {summary.round}{self._of_rounds} done{self._best}, {duration(summary.seconds)}"
        self._show(1.0, done, now=True)

    @override
    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        if result is not None:
            removed = f"removed {result.sites.text(result.mask)}"
            loss = f"loss {result.loss:.4f} {result.measure.unit}"
            self._show(1.0, f"{removed}, {loss}, {duration(result.seconds)}", now=True)
        else:
            self._show(0.0, "stopped" if stopped or failure is None else f"failed: {failure}", now=True)

    @override
    def study_started(self, header: StudyHeader) -> None:
        self._name = header.study_id
        self._cells = len(header.cells)
        self._done = len(header.done)
        self._show_study()

    @override
    def cell_ended(self, cell: int, failure: str | None) -> None:
        self._done += 1
        self._show_study()

    @override
    def assessing(self, line: str) -> None:
        self._show(1.0, line)

    def _show_study(self) -> None:
        searches = count(self._cells, "search", "searches")
        self._show(self._done / max(1, self._cells), f"{self._done} of {searches} done", now=True)

    def _show(self, share: float, text: str, now: bool = False) -> None:
        """Show a bar with a text; unless `now`, only if the last update was some time ago."""
        if not now and time.monotonic() - self._shown < _S_BETWEEN_UPDATES:
            return
        from IPython.display import HTML, display

        self._shown = time.monotonic()
        name = f"<b>{escape(self._name)}</b> " if self._name else ""
        bar = HTML(f'<progress value="{share:.3f}" max="1"></progress> {name}{escape(text)}')
        if self._handle is None:
            self._handle = display(bar, display_id=True)
        else:
            self._handle.update(bar)
