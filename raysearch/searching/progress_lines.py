"""The progress of a search, study or assessment that a script runs: lines on a terminal, else records of a logger."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from typing_extensions import override

from raysearch.core.formatting import count, duration
from raysearch.searching.observer import Observer, StudyHeader

if TYPE_CHECKING:  # an observer needs none of what these bring along
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult

_S_BETWEEN_LINES = 15.0


class ProgressLines(Observer):
    """Prints a line a round on standard error if that is a terminal; else gives it to the logger ``raysearch`` as INFO.

    What comes many times, such as how far an assessment is, is told at most every 15 seconds.
    """

    def __init__(self) -> None:
        self._name = self._rounds = self._stage = ""
        self._done = self._cells = 0
        self._told = -_S_BETWEEN_LINES  # when the last line was

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        self._name = f"{header.search_id}: "
        if expected and expected.rounds:
            self._rounds = f" of{' at most' * expected.by_budget} {len(expected.rounds)}"
        self._tell(f"remove {header.config['remove']} of {header.n_layers} layers (0-based)")

    @override
    def reading(self, line: str) -> None:
        self._tell(line)

    @override
    def progress(self, progress: Progress) -> None:
        if progress.waiting:
            self._tell_stage(progress.waiting)

    @override
    def round_done(self, summary: RoundSummary) -> None:
        best = f", best {summary.best_of_round}" if summary.best_of_round else ""
        self._tell(f"round {summary.round}{self._rounds} done{best}, {duration(summary.seconds)}")

    @override
    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        if result is not None:
            self._tell(f"removed {result.mask}, loss {result.loss:.4f} {result.measure.unit}")
        elif failure is not None:
            self._tell(failure)

    @override
    def study_started(self, header: StudyHeader) -> None:
        self._name, self._cells, self._done = f"{header.study_id}: ", len(header.cells), len(header.done)

    @override
    def cell_ended(self, cell: int, failure: str | None) -> None:
        self._done += 1
        self._tell(f"{self._done} of {count(self._cells, 'search', 'searches')} done")

    @override
    def assessing(self, line: str) -> None:
        self._tell_stage(line)

    def _tell_stage(self, line: str) -> None:
        """Tell a line that others like it follow: the first of its stage at once."""
        begins, self._stage = line.partition(":")[0] != self._stage, line.partition(":")[0]
        if begins or time.monotonic() - self._told > _S_BETWEEN_LINES:
            self._tell(line)

    def _tell(self, line: str) -> None:
        self._told = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"{self._name}{line}\n")
        else:
            logging.getLogger("raysearch").info("%s%s", self._name, line)
