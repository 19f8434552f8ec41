"""The display of a running search or study: a live view on a terminal, occasional lines elsewhere.

It is printed on standard error, so that standard output holds only results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from typing_extensions import override

from raysearch.cli.output import say
from raysearch.core.formatting import count, duration, listed, remaining, short_duration, size, written
from raysearch.core.problem import AUTO
from raysearch.searching.forecast import SearchForecast
from raysearch.searching.observer import Observer, StudyHeader

if TYPE_CHECKING:  # slow to import, and a command that stops early does not need them
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.result import RoundSummary, SearchHeader

_SECONDS_BETWEEN_LINES = 15
_SECONDS_BETWEEN_EQUAL_LINES = 120
#: After this time without a replica, the display suggests a command for diagnosis.
_LONG_WAIT_S = 60.0


class Display(Observer):
    """Shows the progress of an assessment, and warnings, on the console of standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._line = ""  # the last line that was printed
        self._line_time = time.monotonic()  # when it was printed
        self._stage = ""
        self._waiting_since: float | None = None  # the time since which there is no replica

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._show("reading the configuration and the model's files")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @override
    def assessing(self, line: str) -> None:
        self._show(escape(line), line.partition(":")[0])

    @override
    def recording(self, line: str) -> None:
        self._show(escape(line))

    @override
    def reading(self, line: str) -> None:
        self._say(escape(line))

    @override
    def warn(self, message: str) -> None:
        self._line_time = time.monotonic()
        say(self._console, "[yellow]warning:[/]", message)

    def _waiting(self) -> str:
        """Return the line for a time without replicas; after a while, with a command for diagnosis."""
        self._waiting_since = self._waiting_since or time.monotonic()
        waited_s = time.monotonic() - self._waiting_since
        if waited_s < _LONG_WAIT_S:
            return "waiting for replicas to load"
        return f"no replica is ready after {duration(waited_s)}; on a cluster, ray status shows what is missing"

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

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.header: SearchHeader | None = None  # of the search, once it has started
        self._expected = SearchForecast(None)
        self._round = 1
        self._best = ""
        # all costs are in layer-forwards
        self._cost_done = 0.0  # of all units that are finished
        self._reported_cost = 0.0  # of the current round or stage, at the last call
        self._cost_before_round = 0.0  # of all finished rounds
        self._cost_share = 1.0  # the real cost of a round as a share of the expected one; screening makes it smaller
        self._seconds_computing = 0.0  # of an average replica, without its start

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        self.header = header
        self._expected = expected or self._expected
        remove = header.settings.remove
        layers = f"{remove} of {header.n_layers} layers"
        if remove == AUTO:
            layers = f"as many of {header.n_layers} layers as the budget allows"
        calibration = f"{header.choices['objective']} on {header.choices['data']}"
        dtype = f", in {header.dtype}" if header.dtype else ""
        self._say(f"[bold]{escape(header.search_id)}[/]: remove {layers} (0-based) by {escape(calibration)}{dtype}")
        self._say(forecast_line(self._expected))

    @override
    def progress(self, progress: Progress) -> None:
        if progress.waiting:
            return self._show(escape(progress.waiting), progress.loading)
        if not progress.n_replicas:
            return self._show(self._waiting())
        self._waiting_since = None
        head_cost = self._expected.head_cost
        cost = progress.layer_forwards + head_cost * progress.head_forwards
        planned = progress.layer_forwards_planned + head_cost * progress.head_forwards_planned
        if cost:  # 0 at the beginning of a round
            self._cost_done += cost - self._reported_cost
        self._reported_cost = cost
        self._seconds_computing = progress.computing_s / max(1, progress.n_replicas)
        n_expected = len(self._expected.rounds or [])
        most = " at most" if self._expected.by_budget else ""
        rounds = f"/{n_expected}{most}" if self._round <= n_expected else ""
        seconds_left = self._seconds_left(max(planned - cost, self._cost_of_later_stages(progress)))
        stage = f"  stage {progress.stage}/{progress.stages}" if progress.stage else ""
        self._show(
            f"round {self._round}{rounds}{stage}  {cost / max(1.0, planned):.0%} of "
            f"{count(progress.masks_planned, 'mask')}  {self._best}left {duration(seconds_left)}{most}  "
            f"replicas {progress.n_replicas}{written(progress.tokens_per_s)}"
        )

    @override
    def round_done(self, summary: RoundSummary) -> None:
        best = summary.best_of_round
        self._best = f"best of round {summary.round}: {best}  " if best else ""  # shown in the next round's line
        seconds_left = self._seconds_left(0.0)
        about = "at most " if self._expected.by_budget else "about "
        self._say(
            f"round {summary.round} done  {f'best of the round {best}  ' if best else ''}"
            f"{summary.n_computed} computed, {summary.n_cached} cached  {duration(summary.seconds)}"
            + (f"  left {about}{duration(seconds_left)}" if seconds_left and seconds_left >= 1 else "")
        )
        if not summary.n_cached and (expected_cost := self._expected_cost(self._round)):
            self._cost_share = min(1.0, (self._cost_done - self._cost_before_round) / expected_cost)
        self._cost_before_round = self._cost_done
        self._round = summary.round + 1

    def _expected_cost(self, number: int) -> float:
        """Return the cost of a round without screening, in layer-forwards; 0 if unknown."""
        rounds = self._expected.rounds or []
        if number > len(rounds):
            return 0.0
        return rounds[number - 1].layer_forwards + self._expected.head_cost * rounds[number - 1].head_forwards

    def _cost_of_later_stages(self, progress: Progress) -> float:
        """Return the remaining cost of a screened round, assuming that screening saves as much as in the last round."""
        if not progress.stage or progress.stage == progress.stages:
            return 0.0
        return self._cost_share * self._expected_cost(self._round) - (self._cost_done - self._cost_before_round)

    def _seconds_left(self, round_cost_left: float) -> float | None:
        """Return the remaining seconds of the search, from the remaining cost of this round; None without a speed."""
        if not self._cost_done:
            return None
        later_rounds = range(self._round + 1, len(self._expected.rounds or []) + 1)
        cost_left = round_cost_left + self._cost_share * sum(map(self._expected_cost, later_rounds))
        return cost_left * self._seconds_computing / self._cost_done


class StudyDisplay(Display):
    """Shows the progress of a study: a live table on a terminal; elsewhere, a line when a search ends."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._cells: Sequence[str] = ()
        self._running: dict[int, str] = {}  # the progress of each running search
        self._done: set[int] = set()
        self._failed: dict[int, str] = {}
        self._started = time.monotonic()
        self._n_done_before = 0  # the number of searches that were done at the start
        self.in_ledger = ""  # the option that names the study's ledger for a later command

    @override
    def study_started(self, header: StudyHeader) -> None:
        self._cells = header.cells
        self._done = set(header.done)
        self._started = time.monotonic()
        self._n_done_before = len(self._done)
        self.in_ledger = header.places.ledger_option
        done = f", of which {count(len(header.done), 'search', 'searches')} done already" if header.done else ""
        self._say(f"[bold]{escape(header.study_id)}[/]: {count(len(header.cells), 'search', 'searches')}{done}")

    @override
    def replicas_awaited(self, awaited: bool) -> None:
        if awaited:
            self._show_all(self._waiting())
        elif self._waiting_since is not None:
            self._waiting_since = None
            self._show_all()

    @override
    def cell_started(self, cell: int) -> None:
        self._running[cell] = "starts"
        self._failed.pop(cell, None)
        self._show_all()

    @override
    def cell_updated(self, cell: int, n_rounds: int, n_requested: int, best_loss: float | None) -> None:
        best = "" if best_loss is None else f", best {best_loss:.4f}"
        self._running[cell] = f"round {n_rounds}, {count(n_requested, 'mask')}{best}"
        self._show_all()

    @override
    def cell_ended(self, cell: int, failure: str | None) -> None:
        progress = self._running.pop(cell, "starts")
        if failure is not None:
            self._failed[cell] = failure
            self._say(f"[red]failed[/] {escape(self._cells[cell])}: {escape(failure)}")
        else:
            self._done.add(cell)
            self._say(f"{self._tally()}  {escape(self._cells[cell])}  {escape(progress)}")
        self._show_all()

    @override
    def assessing(self, line: str) -> None:
        self._show_all(line)

    def _tally(self) -> str:
        failed = f", {len(self._failed)} failed" if self._failed else ""
        elapsed_s = time.monotonic() - self._started
        n_ended = len(self._done | self._failed.keys()) - self._n_done_before
        n_to_run = len(self._cells) - self._n_done_before
        time_left = ""
        if elapsed_s >= 1 and 0 < n_ended < n_to_run:
            time_left = f"  left about {remaining(elapsed_s, n_ended, n_to_run)}"
        return f"{len(self._done)} of {len(self._cells)} done{failed}  {duration(elapsed_s)}{time_left}"

    def _show_all(self, line: str = "") -> None:
        running = listed([f"{self._cells[cell]} ({progress})" for cell, progress in self._running.items()], most=3)
        plain_line = escape(f"{self._tally()}  {line or f'running: {running}'}")
        self._update(self._view(line), plain_line, line.partition(":")[0] or "running")

    def _view(self, line: str) -> RenderableType:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for cell, progress in sorted(self._running.items()):
            table.add_row("[cyan]running[/]", escape(self._cells[cell]), escape(progress))
        return Group(f"[bold]{self._tally()}[/]", table, escape(line))


def forecast_line(expected: SearchForecast) -> str:
    """Return the expected cost of a search, in one sentence. Screening saves an unknown part of it."""
    then = ""
    if expected.trainings:
        then = f"; then {count(expected.trainings, 'training')} of {count(expected.training_steps, 'step')}"
    if expected.rounds is None:
        return f"its cost cannot be predicted{then}"
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
        f"calibration{comparison}, and {about}{count(heads, 'head-forward')}{limit}{then}"
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
