"""What a person sees of a search before its end: its forecast, and a live view of it.

Everything live goes to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from raysearch.cli.live import LiveConsole
from raysearch.core.formatting import count, duration
from raysearch.search.result import RoundSummary, SearchHeader

if TYPE_CHECKING:  # a command that stops early needs none of what these bring along
    from raysearch.evaluation.progress import Progress
    from raysearch.search.forecast import RoundCost


#: A replica that is not ready after so long may never be.
_LONG_S = 60.0


class SearchDisplay(LiveConsole):
    """Follows a search: one live line on a terminal, plain lines elsewhere.

    Args:
        console: Where to write; standard error.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.search_id: str | None = None  # once it has started
        self._expected: Sequence[RoundCost] | None = None
        self._head_cost = 0.0
        self._round = 1
        self._alone_since: float | None = None  # with no replica to be asked
        self._best = ""
        self._cost_done = 0.0  # of finished rounds' units, in layer-forwards
        self._cost_before = 0.0  # of the round in hand, when it was last heard of
        self._seconds_computing = 0.0  # as if replicas were always busy: without their start

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """See `Observer`."""
        self.search_id = header.search_id
        self._expected, self._head_cost = expected, head_cost
        asked = header.config["remove"]
        self._say(f"[bold]{escape(header.search_id)}[/]: remove {asked} of {header.n_layers} layers (0-based)")
        self._say(forecast_line(expected))

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""
        if not progress.n_replicas and not progress.masks_elsewhere:
            return self._show(self._waiting())
        if progress.masks_elsewhere:
            return self._show(f"waiting for {progress.masks_elsewhere} masks that another search is computing")
        self._alone_since = None
        cost = self._cost(progress)
        if cost:  # else a round begins
            self._cost_done += cost - self._cost_before
        self._cost_before = cost
        self._seconds_computing = progress.computing_s / max(1, progress.n_replicas)
        rounds = f"/{len(self._expected)}" if self._expected else ""
        planned = self._planned(progress)
        left = self._seconds_left(planned - cost)
        self._show(
            f"round {self._round}{rounds}  {cost / max(1.0, planned):.0%} of "
            f"{count(progress.masks_planned, 'mask')}  {self._best}left {duration(left)}  "
            f"replicas {progress.n_replicas}"
        )

    def round_done(self, summary: RoundSummary) -> None:
        """See `Observer`."""
        if summary.round_best is not None and summary.round_best_loss is not None:
            self._best = f"best {summary.round_best} {summary.round_best_loss:.4f}  "
        left = self._seconds_left(0.0)
        self._say(
            f"round {summary.round} done  {self._best}"
            f"{summary.run} run, {summary.asked - summary.run} answered by the ledger  {duration(summary.seconds)}"
            + (f"  left about {duration(left)}" if left and left >= 1 else "")
        )
        self._round = summary.round + 1

    def _waiting(self) -> str:
        """That there is no replica yet; after a while, where to look."""
        self._alone_since = self._alone_since or time.monotonic()
        waited = time.monotonic() - self._alone_since
        if waited < _LONG_S:
            return "waiting for replicas to load"
        return f"no replica is ready after {duration(waited)}; on a cluster, ray status tells what it lacks"

    def line(self, line: str) -> None:
        """How far something else than a search is."""
        self._show(escape(line))

    def _show(self, line: str) -> None:
        """The line that changes all the time: live on a terminal, now and then elsewhere."""
        self._update(f"[cyan]{line}[/]", line)

    def _cost(self, progress: Progress) -> float:
        """What is done of a round, in layer-forwards."""
        return progress.layer_forwards + self._head_cost * progress.head_forwards

    def _planned(self, progress: Progress) -> float:
        """What a round takes in all, in layer-forwards."""
        return progress.layer_forwards_planned + self._head_cost * progress.head_forwards_planned

    def _seconds_left(self, left: float) -> float | None:
        """Of the whole search, with so much left of this round; None while the speed is unknown."""
        if not self._cost_done:
            return None
        for later in (self._expected or [])[self._round :]:
            left += later.layer_forwards + self._head_cost * later.head_forwards
        return left * self._seconds_computing / self._cost_done


def forecast_line(expected: Sequence[RoundCost] | None) -> str:
    """What a search is expected to cost, in one sentence."""
    if expected is None:
        return "its cost cannot be told beforehand"
    masks = sum(cost.masks for cost in expected)
    layers = sum(cost.layer_forwards for cost in expected)
    heads = sum(cost.head_forwards for cost in expected)
    naive = sum(cost.naive_layer_forwards for cost in expected)
    about = "about " if any(cost.estimated for cost in expected) else ""
    return (
        f"{count(masks, 'mask')} in {count(len(expected), 'round')}: {about}{layers:,} layer-forwards over the "
        f"calibration instead of {naive:,}, and {count(heads, 'head-forward')} at most"
    )
