"""How long a replica may take before it is taken for hung."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

from raysearch.evaluation.unit import Job, Survey, Task, Unit

#: For loading the model, maybe over a network, and before anything of a kind has been answered.
_UNKNOWN_S = 3600.0
#: For a whole task of lm-eval, before anything of the kind has been answered.
_JOB_S = 86400.0
#: A replica is hung when it takes so many times as long as anything of the kind has, and this long at least.
_TIMES, _LEAST_S = 10.0, 60.0


class TimeoutPolicy:
    """Learns from answers how long others may take.

    Args:
        unit_timeout_s: A fixed limit for units, or ``auto``: ten times the longest that anything of the kind has taken
            by its size, a minute at least, and an hour while nothing of the kind has been answered; for other jobs a
            day then, and ``auto`` in any case.
    """

    def __init__(self, unit_timeout_s: float | Literal["auto"] = "auto") -> None:
        self._fixed = None if unit_timeout_s == "auto" else unit_timeout_s
        self._longest: dict[Hashable, float] = {}

    def limit_s(self, asked: Task | Job | None) -> float:
        """Seconds that a replica may take for it; for None, which is loading the model, an hour whatever was given."""
        if asked is None:
            return _UNKNOWN_S
        is_unit = isinstance(asked, Unit | Survey) or asked.is_unit
        if is_unit and self._fixed is not None:
            return self._fixed
        longest = self._longest.get(asked.kind)
        if longest is None:
            return _UNKNOWN_S if is_unit else _JOB_S
        return max(_LEAST_S, _TIMES * longest * asked.size)

    def learn(self, asked: Task | Job, seconds: float) -> None:
        """Takes note of how long one took."""
        self._longest[asked.kind] = max(self._longest.get(asked.kind, 0.0), seconds / asked.size)
