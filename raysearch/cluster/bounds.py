"""How many replicas there may be."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.errors import UserError


@dataclass(frozen=True)
class Bounds:
    """Between which replicas come and go with the work.

    Args:
        min: That stay even when there is nothing to do.
        max: While there is.
    """

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max or self.max < 1:
            raise UserError(f"cluster.replicas={self} is no range; use 0 <= min <= max, and a max of 1 or more")

    def __str__(self) -> str:
        return f"{{min:{self.min},max:{self.max}}}"
