"""Prints the progress of a search, study or assessment of a script: lines on a terminal, else records of a logger."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from typing_extensions import override

from raysearch.core.formatting import count, duration
from raysearch.searching.observer import Observer, StudyHeader

if TYPE_CHECKING:  # imports that an observer does not need
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult

_S_BETWEEN_LINES = 15.0


class ProgressLines(Observer):
    """Prints a line for each round on standard error if that is a terminal; else logs it as INFO to ``raysearch``.

    Frequent lines, such as the progress of an assessment, are printed at most every 15 seconds.
    """

    def __init__(self) -> None:
        self._name = self._stage = ""
        self._of_rounds = ""  # `` of 5``: the expected number of rounds
        self._done = self._cells = 0
        self._last_line_at = -_S_BETWEEN_LINES

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        self._name = f"{header.search_id}: "
        if expected and expected.rounds:
            limit = "at most " if expected.by_budget else ""
            self._of_rounds = f" of {limit}{len(expected.rounds)}"
        self._print(f"remove {header.settings.remove} of {header.n_layers} layers (0-based)")

    @override
    def reading(self, line: str) -> None:
        self._print(line)

    @override
    def progress(self, progress: Progress) -> None:
        if progress.waiting:
            self._print_stage(progress.waiting)

    @override
    def round_done(self, summary: RoundSummary) -> None:
        best = f", best {summary.best_of_round}" if summary.best_of_round else ""
        self._print(f"round {summary.round}{self._of_rounds} done{best}, {duration(summary.seconds)}")

    @override
    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        if result is not None:
            self._print(f"removed {result.mask}, loss {result.loss:.4f} {result.measure.unit}")
        elif failure is not None:
            self._print(failure)

    @override
    def study_started(self, header: StudyHeader) -> None:
        self._name = f"{header.study_id}: "
        self._cells = len(header.cells)
        self._done = len(header.done)

    @override
    def cell_ended(self, cell: int, failure: str | None) -> None:
        self._done += 1
        self._print(f"{self._done} of {count(self._cells, 'search', 'searches')} done")

    @override
    def assessing(self, line: str) -> None:
        self._print_stage(line)

    def _print_stage(self, line: str) -> None:
        """Print a frequent line: the first of a stage at once, the next ones some seconds apart."""
        stage = line.partition(":")[0]
        is_first = stage != self._stage
        self._stage = stage
        if is_first or time.monotonic() - self._last_line_at > _S_BETWEEN_LINES:
            self._print(line)

    def _print(self, line: str) -> None:
        self._last_line_at = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"{self._name}{line}\n")
        else:
            logging.getLogger("raysearch").info("%s%s", self._name, line)
