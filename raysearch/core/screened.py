"""The record of a mask whose evaluation was stopped before it was complete."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Screened:
    """An estimate of a mask's loss, never a loss: beyond doubt, the mask is among the best of its round or is not."""

    loss: float  #: by the difference from the round's best mask on the samples that both have seen
    low: float  #: the lower end of its confidence interval, at the confidence of the screening
    high: float
    share: float  #: of the shards that it was evaluated on, 0 … 1
    accepted: bool = False  #: whether it is among the best
