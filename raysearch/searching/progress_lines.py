"""Prints the progress of a search, study or assessment of a script: lines on a terminal, else records of a logger."""

from __future__ import annotations

import logging
import sys
import time

from typing_extensions import override

from raysearch.searching.events import (
    AssessmentProgressed,
    CellEnded,
    ReadingStarted,
    RoundEnded,
    RoundProgressed,
    SearchEnded,
    SearchStarted,
)
from raysearch.searching.live_progress import ProgressObserver
from raysearch.text.numbers import count, duration

_S_BETWEEN_LINES = 15.0


class ProgressLines(ProgressObserver):
    """Prints a line for each round on standard error if that is a terminal; else logs it as INFO to ``raysearch``.

    Frequent lines, such as the progress of an assessment, are printed at most every 15 seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stage = ""
        self._last_line_at = -_S_BETWEEN_LINES

    @override
    def on_search_started(self, event: SearchStarted) -> None:
        self._print(f"remove {event.header.settings.remove} of {event.header.n_layers} layers (0-based)")
        if event.header.target is not None:
            self._print(str(event.header.target))

    @override
    def on_reading_started(self, event: ReadingStarted) -> None:
        self._print(event.line)

    @override
    def on_round_progressed(self, event: RoundProgressed) -> None:
        if event.progress.waiting:
            self._print_stage(event.progress.waiting)

    @override
    def on_round_ended(self, event: RoundEnded) -> None:
        summary = event.summary
        search = self.search
        self._print(f"round {summary.round}{search.of_rounds} done{search.best}, {duration(summary.seconds)}")

    @override
    def on_search_ended(self, event: SearchEnded) -> None:
        if event.result is not None:
            result = event.result
            self._print(f"removed {result.mask}, loss {result.loss:.4f} {result.measure.unit}")
        elif event.failure is not None:
            self._print(event.failure)

    @override
    def on_cell_ended(self, event: CellEnded) -> None:
        self._print(f"{self.study.n_ended} of {count(len(self.study.cells), 'search', 'searches')} done")

    @override
    def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
        self._print_stage(event.line)

    def _print_stage(self, line: str) -> None:
        """Print a frequent line: the first of a stage at once, the next ones some seconds apart."""
        stage = line.partition(":")[0]
        is_first = stage != self._stage
        self._stage = stage
        if is_first or time.monotonic() - self._last_line_at > _S_BETWEEN_LINES:
            self._print(line)

    def _print(self, line: str) -> None:
        self._last_line_at = time.monotonic()
        name = self.search.name or self.study.study_id
        prefix = f"{name}: " if name else ""
        if sys.stderr.isatty():
            sys.stderr.write(f"{prefix}{line}\n")
        else:
            logging.getLogger("raysearch").info("%s%s", prefix, line)
