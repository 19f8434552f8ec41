"""How long something will take, by how long it has taken so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Pace:
    """The time since something began."""

    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds that have passed."""
        return time.monotonic() - self.started

    def left(self, done: float, whole: float) -> float | None:
        """Return the seconds that are left, given how much of a whole is done; None where nothing is."""
        return self.seconds / done * (whole - done) if done else None


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time within the context to the seconds of a stage."""
    pace = Pace()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + pace.seconds
