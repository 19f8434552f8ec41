"""The state of a search at a moment: all that a tracker publishes of it."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.core.trial import Trial
from raysearch.searching.events import SearchEnded
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult


@dataclass(frozen=True)
class SearchState:
    """The state of a search. A later state of the same search contains all parts of an earlier one.

    Times are in seconds since the epoch.

    Args:
        header: The facts of the search.
        began: When its process began it.
        trials: Its trials so far, in order.
        rounds: Its finished rounds, in order.
        round_ends: When each of these rounds ended.
        end: Its end; None while it runs.
        ended: When it ended; None while it runs.
    """

    header: SearchHeader
    began: float
    trials: tuple[Trial, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
    round_ends: tuple[float, ...] = ()
    end: SearchEnded | None = None
    ended: float | None = None

    @classmethod
    def of(cls, result: SearchResult) -> SearchState:
        """Return the final state of a search from its result."""
        round_ends = tuple(result.work.began + summary.seconds for summary in result.rounds)
        end = SearchEnded(result)
        return cls(result, result.work.began, result.trials, result.rounds, round_ends, end, result.work.ended)

    @property
    def result(self) -> SearchResult | None:
        """The result, if the search has ended with one."""
        return None if self.end is None else self.end.result

    def round_begin(self, trial: Trial) -> float:
        """When the round of a trial began."""
        place = max(trial.round, 1) - 2  # of the round before; the dense model has round 0 and belongs to the first
        return self.round_ends[place] if 0 <= place < len(self.round_ends) else self.began

    def round_end(self, trial: Trial) -> float:
        """When the round of a trial ended; if it has not ended, the end of the search or of the last round."""
        place = max(trial.round, 1) - 1
        if place < len(self.round_ends):
            return self.round_ends[place]
        return self.ended or max(self.round_ends, default=self.began)
