"""The display of a running search or study: a live view on a terminal, a line now and then elsewhere.

It goes to standard error, so that standard output holds only results.
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
from raysearch.core.paths import option_of
from raysearch.core.problem import AUTO
from raysearch.searching.forecast import SearchForecast
from raysearch.searching.observer import Observer, StudyHeader

if TYPE_CHECKING:  # heavy; a command that stops early does not need them
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.result import RoundSummary, SearchHeader

_SECONDS_BETWEEN_LINES, _SECONDS_IF_UNCHANGED = 15, 120
#: After this time without a replica, the display says where to look.
_LONG_S = 60.0


class Display(Observer):
    """Shows how far an assessment is, and warnings, on the console of standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last_line, self._line, self._stage = time.monotonic(), "", ""
        self._alone_since: float | None = None  # without any replica

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
        self._last_line = time.monotonic()
        say(self._console, "[yellow]warning:[/]", message)

    def _waiting(self) -> str:
        """Return that there is no replica yet and, after a while, where to look."""
        self._alone_since = self._alone_since or time.monotonic()
        waited = time.monotonic() - self._alone_since
        if waited < _LONG_S:
            return "waiting for replicas to load"
        return f"no replica is ready after {duration(waited)}; on a cluster, ray status tells what it lacks"

    def _show(self, line: str, stage: str = "") -> None:
        """Show the current line."""
        self._update(f"[cyan]{line}[/]", line, stage)

    def _update(self, view: RenderableType, line: str, stage: str = "") -> None:
        """Show a view on a terminal; elsewhere print the line, unless one of the stage was printed not long ago.

        A stage may be told once, and take minutes.
        """
        begins, self._stage = stage not in ("", self._stage), stage or self._stage
        wait = _SECONDS_IF_UNCHANGED if line == self._line else _SECONDS_BETWEEN_LINES
        if self._live:
            self._live.update(view)
        elif begins or time.monotonic() - self._last_line > wait:
            self._say(line)

    def _say(self, line: str) -> None:
        self._last_line, self._line = time.monotonic(), line
        self._console.print(line, highlight=False, soft_wrap=True)


class SearchDisplay(Display):
    """Follows a search: one live line on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.header: SearchHeader | None = None  # of the search, once it has started
        self._expected = SearchForecast(None)
        self._round = 1
        self._best = ""
        self._cost_done = 0.0  # of finished rounds' units, in layer-forwards
        self._cost_before = 0.0  # of the current round or stage, at the last call
        self._cost_of_rounds = 0.0  # when the current one began
        self._share = 1.0  # of what rounds were expected to cost, as far as it is known: screening saves the rest
        self._seconds_computing = 0.0  # as if replicas were always busy: without their start

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        self.header, self._expected = header, expected or self._expected
        asked, of = header.config["remove"], f"{header.choices['objective']} on {header.choices['data']}"
        layers = f"{asked} of {header.n_layers} layers"
        if asked == AUTO:
            layers = f"as many of {header.n_layers} layers as the budget allows"
        dtype = f", in {header.dtype}" if header.dtype else ""
        self._say(f"[bold]{escape(header.search_id)}[/]: remove {layers} (0-based) by {escape(of)}{dtype}")
        self._say(forecast_line(self._expected))

    @override
    def progress(self, progress: Progress) -> None:
        if progress.waiting:
            return self._show(escape(progress.waiting), progress.loading)
        if not progress.n_replicas:
            return self._show(self._waiting())
        self._alone_since = None
        head_cost = self._expected.head_cost
        cost = progress.layer_forwards + head_cost * progress.head_forwards
        planned = progress.layer_forwards_planned + head_cost * progress.head_forwards_planned
        if cost:  # else a round begins
            self._cost_done += cost - self._cost_before
        self._cost_before = cost
        self._seconds_computing = progress.computing_s / max(1, progress.n_replicas)
        n_expected = len(self._expected.rounds or [])
        most = " at most" if self._expected.by_budget else ""
        rounds = f"/{n_expected}{most}" if self._round <= n_expected else ""
        left = self._seconds_left(max(planned - cost, self._later_stages(progress)))
        stage = f"  stage {progress.stage}/{progress.stages}" if progress.stage else ""
        self._show(
            f"round {self._round}{rounds}{stage}  {cost / max(1.0, planned):.0%} of "
            f"{count(progress.masks_planned, 'mask')}  {self._best}left {duration(left)}{most}  "
            f"replicas {progress.n_replicas}{written(progress.tokens_per_s)}"
        )

    @override
    def round_done(self, summary: RoundSummary) -> None:
        best = summary.best_of_round
        self._best = f"best of round {summary.round}: {best}  " if best else ""  # the next round's line shows it
        left = self._seconds_left(0.0)
        about = "at most " if self._expected.by_budget else "about "
        self._say(
            f"round {summary.round} done  {f'best of the round {best}  ' if best else ''}"
            f"{summary.n_computed} computed, {summary.n_cached} cached  {duration(summary.seconds)}"
            + (f"  left {about}{duration(left)}" if left and left >= 1 else "")
        )
        if not summary.n_cached and (expected := self._expected_cost(self._round)):
            self._share = min(1.0, (self._cost_done - self._cost_of_rounds) / expected)
        self._cost_of_rounds = self._cost_done
        self._round = summary.round + 1

    def _expected_cost(self, number: int) -> float:
        """Return what a round costs unscreened, in layer-forwards; 0 where that is not known."""
        rounds = self._expected.rounds or []
        if number > len(rounds):
            return 0.0
        return rounds[number - 1].layer_forwards + self._expected.head_cost * rounds[number - 1].head_forwards

    def _later_stages(self, progress: Progress) -> float:
        """Return what is left of a screened round if it costs as much of what was expected as the one before."""
        if not progress.stage or progress.stage == progress.stages:
            return 0.0
        return self._share * self._expected_cost(self._round) - (self._cost_done - self._cost_of_rounds)

    def _seconds_left(self, left: float) -> float | None:
        """Return the seconds left of the search, given the layer-forwards left of this round; None without a speed."""
        if not self._cost_done:
            return None
        later = range(self._round + 1, len(self._expected.rounds or []) + 1)
        left += self._share * sum(map(self._expected_cost, later))
        return left * self._seconds_computing / self._cost_done


class StudyDisplay(Display):
    """Follows a study: a live table on a terminal, a line for each search that ends elsewhere."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._cells: Sequence[str] = ()
        self._running: dict[int, str] = {}  # where each stands
        self._done: set[int] = set()
        self._failed: dict[int, str] = {}
        self._started = time.monotonic()
        self._n_before = 0  # searches that were done when it started
        self.in_ledger = ""  # the option that leads a later command to the study's ledger

    @override
    def study_started(self, header: StudyHeader) -> None:
        self._cells, self._done, self._started = header.cells, set(header.done), time.monotonic()
        self._n_before = len(self._done)
        self.in_ledger = option_of(header.config)
        known = f", of which {count(len(header.done), 'search', 'searches')} done already" if header.done else ""
        self._say(f"[bold]{escape(header.study_id)}[/]: {count(len(header.cells), 'search', 'searches')}{known}")

    @override
    def replicas_awaited(self, awaited: bool) -> None:
        if awaited:
            self._show_all(self._waiting())
        elif self._alone_since is not None:
            self._alone_since = None
            self._show_all()

    @override
    def cell_started(self, cell: int) -> None:
        self._running[cell] = "starts"
        self._failed.pop(cell, None)
        self._show_all()

    @override
    def cell_updated(self, cell: int, n_rounds: int, n_requested: int, best_loss: float | None) -> None:
        found = "" if best_loss is None else f", best {best_loss:.4f}"
        self._running[cell] = f"round {n_rounds}, {count(n_requested, 'mask')}{found}"
        self._show_all()

    @override
    def cell_ended(self, cell: int, failure: str | None) -> None:
        standing = self._running.pop(cell, "starts")
        if failure is not None:
            self._failed[cell] = failure
            self._say(f"[red]failed[/] {escape(self._cells[cell])}: {escape(failure)}")
        else:
            self._done.add(cell)
            self._say(f"{self._tally()}  {escape(self._cells[cell])}  {escape(standing)}")
        self._show_all()

    @override
    def assessing(self, line: str) -> None:
        self._show_all(line)

    def _tally(self) -> str:
        failed = f", {len(self._failed)} failed" if self._failed else ""
        elapsed = time.monotonic() - self._started
        ended, all_now = len(self._done | self._failed.keys()) - self._n_before, len(self._cells) - self._n_before
        left = f"  left about {remaining(elapsed, ended, all_now)}" if elapsed >= 1 and 0 < ended < all_now else ""
        return f"{len(self._done)} of {len(self._cells)} done{failed}  {duration(elapsed)}{left}"

    def _show_all(self, line: str = "") -> None:
        running = listed([f"{self._cells[cell]} ({standing})" for cell, standing in self._running.items()], most=3)
        said = escape(f"{self._tally()}  {line or f'running: {running}'}")
        self._update(self._view(line), said, line.partition(":")[0] or "running")

    def _view(self, line: str) -> RenderableType:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for cell, standing in sorted(self._running.items()):
            table.add_row("[cyan]running[/]", escape(self._cells[cell]), escape(standing))
        return Group(f"[bold]{self._tally()}[/]", table, escape(line))


def forecast_line(expected: SearchForecast) -> str:
    """Return what a search is expected to cost, in one sentence; screening saves an unknown part of that."""
    trainings, steps = count(expected.trainings, "training"), count(expected.training_steps, "step")
    then = f"; then {trainings} of {steps}" if expected.trainings else ""
    if expected.rounds is None:
        return f"its cost cannot be told beforehand{then}"
    masks = sum(cost.masks for cost in expected.rounds)
    layers = sum(cost.layer_forwards for cost in expected.rounds)
    heads = sum(cost.head_forwards for cost in expected.rounds)
    naive = sum(cost.naive_layer_forwards for cost in expected.rounds)
    by_budget, open_ended = expected.by_budget, expected.open_ended
    # Replicas that share a round each run the layers that begin their part of it: some more than are counted here.
    some = "about " if open_ended else ""
    instead = f" instead of {naive:,}" if layers < naive else ""
    if expected.screened and not by_budget:
        instead += ", fewer with screening"
    most, ends = ("at most ", ", as far as the budget allows") if by_budget else ("", "")
    limit = "" if open_ended else " at most"
    rounds = count(len(expected.rounds), "round")
    return (
        f"{most}{some}{count(masks, 'mask')} in {rounds}{ends}: about {layers:,} layer-forwards over the calibration"
        f"{instead}, and {some}{count(heads, 'head-forward')}{limit}{then}"
    )


def resource_lines(expected: SearchForecast) -> list[str]:
    """Return the seconds and the memory that a search is expected to take, a line each."""
    pool = expected.pool
    assert pool is not None, "a forecast on its own has read the data"
    replicas = count(pool.n_replicas, "replica")
    if expected.seconds is None:
        time_line = f"Time: no estimate, {expected.time_source}"
    else:
        most = "at most " if expected.by_budget else ""
        time_line = f"Time: {most}about {short_duration(expected.seconds)} on {replicas}, {expected.time_source}"
        apart = ["loading the model"]
        apart += ["the measurement of speeds"] if expected.by_budget else []
        apart += ["the trainings"] if expected.trainings else []
        time_line += f"; {listed(apart)} {'comes' if len(apart) == 1 else 'come'} on top"
    weights = f"{size(pool.shared_bytes)} of shared weights and " if pool.shared_bytes else ""
    each = size(pool.replica_bytes)
    return [time_line, f"Memory: about {size(pool.total_bytes)}: {weights}{each} for each of {replicas}"]
