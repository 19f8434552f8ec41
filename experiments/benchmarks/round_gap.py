"""How long do replicas wait between two rounds, and for what?

    python experiments/benchmarks/round_gap.py
    python experiments/benchmarks/round_gap.py data.samples=64 tracking=none        overrides of raysearch search

runs a search on two replicas in a new store, with all that a command does: ledger, MLflow, display. Its samples are
short, so that it is quick; what happens between rounds does not depend on them. A gap is from the moment when the
driver has the last answer of a round, or of a stage of screening, to the moment when the first replica computes for the
next. It prints medians, and what the driver did in that time. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import raysearch
from raysearch.cli.console import SafeConsole
from raysearch.cli.displays import SearchDisplay
from raysearch.cluster.fleet import Fleet
from raysearch.cluster.pool import RayPool
from raysearch.evaluation import evaluator
from raysearch.evaluation.screening import Contest, Screener
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger
from raysearch.tracking.mlflow.tracker import MlflowTracker

OVERRIDES = ["cluster.replicas=2", "remove=5", "data.samples=8", "data.seq_len=32"]
#: The functions that are timed, by their purpose. None of them calls another.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "ledger, commits": [(Ledger, "record"), (Claims, "take"), (Claims, "release")],
    "ledger, reads": [(Ledger, "known")],
    "plans": [(evaluator, "planned_passes"), (evaluator, "units_of")],
    "screening": [(Screener, name) for name in ("contest", "see", "screened")] + [(Contest, "decide")],
    "display": [(SearchDisplay, "on_round_ended"), (SearchDisplay, "on_round_progressed")],
    "tracking": [(MlflowTracker, "on_trial_scored"), (MlflowTracker, "on_round_ended")],
    "fleet": [(Fleet, "sync")],
}
REST = "searcher, messages and the rest"


@dataclass
class Clock:
    """What happens between the last answer of a round and the first answer of the next.

    Args:
        gaps_s: Of each pair of rounds, the time without any unit.
        parts_s: Of each gap, what was timed in it.
    """

    gaps_s: list[float] = field(default_factory=list)
    parts_s: list[Counter[str]] = field(default_factory=list)
    _now_s: Counter[str] | None = None  # between rounds
    _ended: float | None = None

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed between rounds."""

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            began, parts = time.perf_counter(), self._now_s
            try:
                return function(*args, **options)
            finally:
                if parts is not None and parts is self._now_s:
                    parts[part] += time.perf_counter() - began

        return run

    def watched(self, run: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return `RayPool.run`, watched."""

        @functools.wraps(run)
        def watch(*args: Any, **options: Any) -> Iterator[Any]:
            starts: list[float] = []
            last = 0.0
            parts = self._now_s
            for answer in run(*args, **options):
                self._now_s = None
                if answer is not None:
                    last = time.perf_counter()
                    starts.append(last - answer[1].seconds)
                    self._now_s = Counter()  # this answer may be the last one
                yield answer
            if self._ended is not None and starts and parts is not None:
                self.gaps_s.append(min(starts) - self._ended)
                self.parts_s.append(parts)
            self._ended = last or self._ended

        return watch


def main() -> None:
    """Run the search, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="overrides of raysearch search")
    options = parser.parse_args()
    clock = Clock()
    RayPool.run = clock.watched(RayPool.run)
    for part, functions in PARTS.items():
        for owner, name in functions:
            setattr(owner, name, clock.timed(part, getattr(owner, name)))
    with tempfile.TemporaryDirectory() as store, SearchDisplay(SafeConsole(file=sys.stderr)) as display:
        raysearch.search(*OVERRIDES, *options.overrides, f"store={store}", observer=display)
    print("| between rounds | median, ms |\n|---|---:|")
    for part in PARTS:
        print(f"| {part} | {1e3 * statistics.median(parts[part] for parts in clock.parts_s):.1f} |")
    gaps = list(zip(clock.gaps_s, clock.parts_s, strict=True))
    print(f"| {REST} | {1e3 * statistics.median(gap - parts.total() for gap, parts in gaps):.1f} |")
    median, most = 1e3 * statistics.median(clock.gaps_s), 1e3 * max(clock.gaps_s)
    print(f"| the gap, n = {len(gaps)}, most {most:.1f} | {median:.1f} |")


if __name__ == "__main__":
    main()
