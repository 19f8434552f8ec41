"""The state of a running search or study, which all displays of progress share: it follows from the events alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from typing_extensions import override

from raysearch.core.formatting import duration, remaining
from raysearch.searching.events import (
    CellEnded,
    CellProgressed,
    CellStarted,
    Event,
    ReplicasPolled,
    RoundEnded,
    RoundProgressed,
    SearchStarted,
    StudyStarted,
)
from raysearch.searching.observer import Observer

if TYPE_CHECKING:  # imports that an observer does not need
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.result import RoundSummary, SearchHeader

#: After this time without a replica, displays suggest a command for diagnosis.
_LONG_WAIT_S = 60.0


class ReplicaWait:
    """Measures how long there has been no replica."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def update(self, awaited: bool) -> None:
        """Note whether a replica is awaited now."""
        if not awaited:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = time.monotonic()

    def __str__(self) -> str:
        """Return a line about the wait; after a while, with a command for diagnosis."""
        waited_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
        if waited_s < _LONG_WAIT_S:
            return "waiting for replicas to load"
        return f"no replica is ready after {duration(waited_s)}; on a cluster, ray status shows what is missing"


class SearchProgress:
    """The state of a running search.

    Attributes:
        header: The facts of the search; None before its start.
        expected: The forecast of its cost; None if there is none.
        round: The number of the current round, 1-based.
        share: The share of the round's cost that is done, 0 … 1.
        seconds_left: The estimated seconds until the end of the search; None if the speed is not known.
        last_round: The summary of the last round that has ended.
        wait: How long there has been no replica.
    """

    def __init__(self) -> None:
        self.header: SearchHeader | None = None
        self.expected: SearchForecast | None = None
        self.round = 1
        self.share = 0.0
        self.seconds_left: float | None = None
        self.last_round: RoundSummary | None = None
        self.wait = ReplicaWait()
        # all costs are in layer-forwards
        self._cost_done = 0.0  # of all units that are finished
        self._reported_cost = 0.0  # of the current round or stage, at the last event
        self._cost_before_round = 0.0  # of all finished rounds
        self._cost_share = 1.0  # the real cost of a round as a share of the expected one; screening makes it smaller
        self._seconds_computing = 0.0  # of an average replica, without its start

    @property
    def name(self) -> str:
        """The id of the search; empty before its start."""
        return "" if self.header is None else self.header.search_id

    @property
    def n_expected(self) -> int:
        """The expected number of rounds; 0 if it is not known."""
        return 0 if self.expected is None else len(self.expected.rounds or [])

    @property
    def by_budget(self) -> bool:
        """Whether the search may end before its expected last round."""
        return self.expected is not None and self.expected.by_budget

    @property
    def of_rounds(self) -> str:
        """The expected number of rounds as a part of a sentence: `` of at most 5``; empty if it is not known."""
        at_most = "at most " if self.by_budget else ""
        return f" of {at_most}{self.n_expected}" if self.n_expected else ""

    @property
    def best(self) -> str:
        """The best mask of the last round as a part of a sentence: ``, best {17} 3.7726``; empty if there is none."""
        best = "" if self.last_round is None else self.last_round.best_of_round
        return f", best {best}" if best else ""

    def update(self, event: Event) -> None:
        """Change the state by an event."""
        match event:
            case SearchStarted(header, expected):
                self.header = header
                self.expected = expected or self.expected
            case RoundProgressed(progress) if not progress.waiting:
                self.wait.update(not progress.n_replicas)
                if progress.n_replicas:
                    self._update_costs(progress)
            case RoundEnded(summary):
                self._end_round(summary)

    def _update_costs(self, progress: Progress) -> None:
        head_cost = 0.0 if self.expected is None else self.expected.head_cost
        cost = progress.layer_forwards + head_cost * progress.head_forwards
        planned_cost = progress.layer_forwards_planned + head_cost * progress.head_forwards_planned
        if cost:  # 0 at the beginning of a round
            self._cost_done += cost - self._reported_cost
        self._reported_cost = cost
        self._seconds_computing = progress.computing_s / max(1, progress.n_replicas)
        self.share = cost / max(1.0, planned_cost)
        self.seconds_left = self._seconds_for(max(planned_cost - cost, self._cost_of_later_stages(progress)))

    def _end_round(self, summary: RoundSummary) -> None:
        self.seconds_left = self._seconds_for(0.0)
        if not summary.n_cached and (expected_cost := self._expected_cost(self.round)):
            self._cost_share = min(1.0, (self._cost_done - self._cost_before_round) / expected_cost)
        self._cost_before_round = self._cost_done
        self.last_round = summary
        self.round = summary.round + 1
        self.share = 0.0

    def _expected_cost(self, number: int) -> float:
        """Return the cost of a round without screening, in layer-forwards; 0 if unknown."""
        if self.expected is None or number > self.n_expected:
            return 0.0
        cost = (self.expected.rounds or [])[number - 1]
        return cost.layer_forwards + self.expected.head_cost * cost.head_forwards

    def _cost_of_later_stages(self, progress: Progress) -> float:
        """Return the remaining cost of a screened round, assuming that screening saves as much as in the last round."""
        if not progress.stage or progress.stage == progress.stages:
            return 0.0
        return self._cost_share * self._expected_cost(self.round) - (self._cost_done - self._cost_before_round)

    def _seconds_for(self, round_cost_left: float) -> float | None:
        """Return the remaining seconds of the search, from the remaining cost of this round; None without a speed."""
        if not self._cost_done:
            return None
        later_rounds = range(self.round + 1, self.n_expected + 1)
        cost_left = round_cost_left + self._cost_share * sum(map(self._expected_cost, later_rounds))
        return cost_left * self._seconds_computing / self._cost_done


class StudyProgress:
    """The state of a running study.

    Attributes:
        study_id: The id of the study; empty before its start.
        cells: A description of each search, in order.
        done: The numbers of the searches that are done.
        failed: Why searches failed, by their numbers.
        running: The numbers of the running searches, the first that started first.
        last_rounds: The last round of each search that has finished one since its start.
        wait: How long there has been no replica.
    """

    def __init__(self) -> None:
        self.study_id = ""
        self.cells: list[str] = []
        self.done: set[int] = set()
        self.failed: dict[int, str] = {}
        self.running: list[int] = []
        self.last_rounds: dict[int, CellProgressed] = {}
        self.wait = ReplicaWait()
        self._started_s = time.monotonic()
        self._n_done_before = 0  # the number of searches that were done at the start

    @property
    def n_ended(self) -> int:
        """The number of searches that are done or have failed."""
        return len(self.done | self.failed.keys())

    @property
    def elapsed_s(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def time_left(self) -> str:
        """The estimated time until the end of the searches, as text; empty if it is not known."""
        n_ended = self.n_ended - self._n_done_before
        n_to_run = len(self.cells) - self._n_done_before
        elapsed_s = self.elapsed_s
        return remaining(elapsed_s, n_ended, n_to_run) if elapsed_s >= 1 and 0 < n_ended < n_to_run else ""

    def update(self, event: Event) -> None:
        """Change the state by an event."""
        match event:
            case StudyStarted(header):
                self.study_id = header.study_id
                self.cells = list(header.cells)
                self.done = set(header.done)
                self._n_done_before = len(self.done)
                self._started_s = time.monotonic()
            case CellStarted(cell):
                self._stop_running(cell)
                self.running.append(cell)
                self.failed.pop(cell, None)
                self.last_rounds.pop(cell, None)
            case CellProgressed(cell):
                self.last_rounds[cell] = event
            case CellEnded(cell, failure):
                self._stop_running(cell)
                if failure is None:
                    self.done.add(cell)
                else:
                    self.failed[cell] = failure
            case ReplicasPolled(awaited):
                self.wait.update(awaited)

    def _stop_running(self, cell: int) -> None:
        if cell in self.running:
            self.running.remove(cell)


class ProgressObserver(Observer):
    """The base class of displays: an event changes the state before its method shows the state.

    Attributes:
        search: The state of the search, if there is one.
        study: The state of the study, if there is one.
    """

    def __init__(self) -> None:
        self.search = SearchProgress()
        self.study = StudyProgress()

    @override
    def on_event(self, event: Event) -> None:
        self.search.update(event)
        self.study.update(event)
        super().on_event(event)
