"""The display of a running search or study: a live view on a terminal, occasional lines elsewhere.

It is printed on standard error, so that standard output holds only results.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from typing_extensions import override

from raysearch.cli.output import say
from raysearch.core.problem import AUTO
from raysearch.searching.events import (
    AssessmentProgressed,
    CellEnded,
    CellProgressed,
    CellStarted,
    ReadingStarted,
    RecordingProgressed,
    ReplicasPolled,
    RoundEnded,
    RoundProgressed,
    SearchStarted,
    StudyStarted,
    WarningRaised,
)
from raysearch.searching.live_progress import ProgressObserver
from raysearch.text.numbers import count, duration, short_duration, size, written
from raysearch.text.sentences import listed

if TYPE_CHECKING:  # slow to import, and a command that stops early does not need them
    from raysearch.searching.forecast import SearchForecast

_SECONDS_BETWEEN_LINES = 15
_SECONDS_BETWEEN_EQUAL_LINES = 120


class Display(ProgressObserver):
    """Shows the progress of an assessment, and warnings, on the console of standard error."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._line = ""  # the last line that was printed
        self._line_time = time.monotonic()  # when it was printed
        self._stage = ""

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._show("reading the configuration and the model's files")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @override
    def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
        self._show(escape(event.line), event.line.partition(":")[0])

    @override
    def on_recording_progressed(self, event: RecordingProgressed) -> None:
        self._show(escape(event.line))

    @override
    def on_reading_started(self, event: ReadingStarted) -> None:
        self._say(escape(event.line))

    @override
    def on_warning_raised(self, event: WarningRaised) -> None:
        self._line_time = time.monotonic()
        say(self._console, "[yellow]warning:[/]", event.message)

    def _show(self, line: str, stage: str = "") -> None:
        """Show the current line."""
        self._update(f"[cyan]{line}[/]", line, stage)

    def _update(self, view: RenderableType, line: str, stage: str = "") -> None:
        """Show a view on a terminal; elsewhere print the line, unless another line was printed shortly before.

        The first line of a new stage is always printed: there may be no further line for minutes.
        """
        is_new_stage = stage not in ("", self._stage)
        self._stage = stage or self._stage
        wait_s = _SECONDS_BETWEEN_EQUAL_LINES if line == self._line else _SECONDS_BETWEEN_LINES
        if self._live:
            self._live.update(view)
        elif is_new_stage or time.monotonic() - self._line_time > wait_s:
            self._say(line)

    def _say(self, line: str) -> None:
        self._line_time = time.monotonic()
        self._line = line
        self._console.print(line, highlight=False, soft_wrap=True)


class SearchDisplay(Display):
    """Shows the progress of a search: one live line on a terminal, plain lines elsewhere."""

    @override
    def on_search_started(self, event: SearchStarted) -> None:
        header = event.header
        remove = header.settings.remove
        total = f"{header.space.total(header.sites)} {header.space.plural}"
        sites = f"as many of {total} as the budget allows" if remove == AUTO else f"{remove} of {total}"
        calibration = f"{header.choices['objective']} on {header.choices['data']}"
        dtype = f", in {header.dtype}" if header.dtype else ""
        self._say(f"[bold]{escape(header.search_id)}[/]: remove {sites} (0-based) by {escape(calibration)}{dtype}")
        if header.target is not None:
            self._say(escape(str(header.target)))
        if event.expected is not None:
            self._say(forecast_line(event.expected))

    @override
    def on_round_progressed(self, event: RoundProgressed) -> None:
        progress = event.progress
        if progress.waiting:
            return self._show(escape(progress.waiting), progress.loading)
        if not progress.n_replicas:
            return self._show(str(self.search.wait))
        search = self.search
        at_most = " at most" if search.by_budget else ""
        rounds = f"/{search.n_expected}{at_most}" if search.round <= search.n_expected else ""
        stage = f"  stage {progress.stage}/{progress.stages}" if progress.stage else ""
        masks = count(progress.masks_planned, "mask")
        best = ""
        if search.last_round is not None and search.last_round.best_of_round:
            best = f"best of round {search.last_round.round}: {search.last_round.best_of_round}  "
        self._show(
            f"round {search.round}{rounds}{stage}  {search.share:.0%} of {masks}  {best}"
            f"left {duration(search.seconds_left)}{at_most}  "
            f"replicas {progress.n_replicas}{written(progress.tokens_per_s)}"
        )

    @override
    def on_round_ended(self, event: RoundEnded) -> None:
        summary = event.summary
        best = f"best of the round {summary.best_of_round}  " if summary.best_of_round else ""
        seconds_left = self.search.seconds_left
        time_left = ""
        if seconds_left is not None and seconds_left >= 1:
            time_left = f"  left {'at most' if self.search.by_budget else 'about'} {duration(seconds_left)}"
        self._say(
            f"round {summary.round} done  {best}{summary.n_computed} computed, {summary.n_cached} cached  "
            f"{duration(summary.seconds)}{time_left}"
        )


class StudyDisplay(Display):
    """Shows the progress of a study: a live table on a terminal; elsewhere, a line when a search ends.

    Attributes:
        in_ledger: The option that names the study's ledger for a later command.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shows_wait = False
        self.in_ledger = ""

    @override
    def on_study_started(self, event: StudyStarted) -> None:
        header = event.header
        self.in_ledger = header.places.ledger_option
        done = f", of which {count(len(header.done), 'search', 'searches')} done already" if header.done else ""
        self._say(f"[bold]{escape(header.study_id)}[/]: {count(len(header.cells), 'search', 'searches')}{done}")

    @override
    def on_replicas_polled(self, event: ReplicasPolled) -> None:
        if event.awaited:
            self._show_all(str(self.study.wait))
        elif self._shows_wait:
            self._show_all()
        self._shows_wait = event.awaited

    @override
    def on_cell_started(self, event: CellStarted) -> None:
        self._show_all()

    @override
    def on_cell_progressed(self, event: CellProgressed) -> None:
        self._show_all()

    @override
    def on_cell_ended(self, event: CellEnded) -> None:
        name = escape(self.study.cells[event.cell])
        if event.failure is not None:
            self._say(f"[red]failed[/] {name}: {escape(event.failure)}")
        else:
            self._say(f"{self._tally()}  {name}  {escape(self._progress_of(event.cell))}")
        self._show_all()

    @override
    def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
        self._show_all(event.line)

    def _progress_of(self, cell: int) -> str:
        """Return the last round of a search as text."""
        last_round = self.study.last_rounds.get(cell)
        if last_round is None:
            return "starts"
        best = "" if last_round.best_loss is None else f", best {last_round.best_loss:.4f}"
        return f"round {last_round.n_rounds}, {count(last_round.n_requested, 'mask')}{best}"

    def _tally(self) -> str:
        study = self.study
        failed = f", {len(study.failed)} failed" if study.failed else ""
        time_left = f"  left about {study.time_left}" if study.time_left else ""
        return f"{len(study.done)} of {len(study.cells)} done{failed}  {duration(study.elapsed_s)}{time_left}"

    def _show_all(self, line: str = "") -> None:
        study = self.study
        running = listed([f"{study.cells[cell]} ({self._progress_of(cell)})" for cell in study.running], most=3)
        plain_line = escape(f"{self._tally()}  {line or f'running: {running}'}")
        self._update(self._view(line), plain_line, line.partition(":")[0] or "running")

    def _view(self, line: str) -> RenderableType:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for cell in sorted(self.study.running):
            table.add_row("[cyan]running[/]", escape(self.study.cells[cell]), escape(self._progress_of(cell)))
        return Group(f"[bold]{self._tally()}[/]", table, escape(line))


def forecast_line(expected: SearchForecast) -> str:
    """Return the expected cost of a search, in one sentence. Screening saves an unknown part of it."""
    trainings = ""
    if expected.in_stages:
        steps = f" of at most {count(expected.training_steps, 'step')}" if expected.training_steps else ""
        trainings = f"; in {count(expected.trainings, 'stage')}, each with a training{steps} after its search"
    elif expected.trainings:
        trainings = f"; then {count(expected.trainings, 'training')} of {count(expected.training_steps, 'step')}"
    if expected.rounds is None:
        return f"its cost cannot be predicted{trainings}"
    masks = sum(cost.masks for cost in expected.rounds)
    layers = sum(cost.layer_forwards for cost in expected.rounds)
    heads = sum(cost.head_forwards for cost in expected.rounds)
    naive = sum(cost.naive_layer_forwards for cost in expected.rounds)
    about = "about " if expected.open_ended else ""
    at_most = "at most " if expected.by_budget else ""
    ending = ", as far as the budget allows" if expected.by_budget else ""
    limit = "" if expected.open_ended else " at most"
    comparison = f" instead of {naive:,}" if layers < naive else ""
    if expected.screened and not expected.by_budget:
        comparison += ", fewer with screening"
    rounds = count(len(expected.rounds), "round")
    # "about": replicas that share a round each run the first layers of their part, which is not counted here
    return (
        f"{at_most}{about}{count(masks, 'mask')} in {rounds}{ending}: about {layers:,} layer-forwards over the "
        f"calibration{comparison}, and {about}{count(heads, 'head-forward')}{limit}{trainings}"
    )


def resource_lines(expected: SearchForecast) -> list[str]:
    """Return the expected time and memory of a search, one per line."""
    pool = expected.pool
    assert pool is not None, "the forecast of a dry run has read the data"
    replicas = count(pool.n_replicas, "replica")
    if expected.seconds is None:
        time_line = f"Time: no estimate, {expected.time_source}"
    else:
        at_most = "at most " if expected.by_budget else ""
        time_line = f"Time: {at_most}about {short_duration(expected.seconds)} on {replicas}, {expected.time_source}"
        not_included = ["loading the model"]
        if expected.by_budget:
            not_included.append("the measurement of speeds")
        if expected.trainings:
            not_included.append("the trainings")
        time_line += f"; {listed(not_included)} {'comes' if len(not_included) == 1 else 'come'} on top"
    weights = f"{size(pool.shared_bytes)} of shared weights and " if pool.shared_bytes else ""
    per_replica = size(pool.replica_bytes)
    return [time_line, f"Memory: about {size(pool.total_bytes)}: {weights}{per_replica} for each of {replicas}"]
