"""Who watches a search while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

from raysearch.evaluation.progress import Progress
from raysearch.search.forecast import RoundCost
from raysearch.search.result import RoundSummary, SearchHeader


class Observer(Protocol):
    """Watches a search while it runs: the terminal, or nobody."""

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """The search begins; `head_cost` is the cost of a head-forward in layer-forwards, by parameters."""
        ...

    def progress(self, progress: Progress) -> None:
        """A unit of the round in hand is done."""
        ...

    def round_done(self, summary: RoundSummary) -> None:
        """A round is complete."""
        ...

    def warn(self, message: str) -> None:
        """Something went wrong that does not stop the search."""
        ...


class SilentObserver:
    """Watches, and says nothing but warnings, as Python warnings."""

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """See `Observer`."""

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""

    def round_done(self, summary: RoundSummary) -> None:
        """See `Observer`."""

    def warn(self, message: str) -> None:
        """See `Observer`."""
        warnings.warn(message, stacklevel=2)
