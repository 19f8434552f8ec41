"""The record of a mask whose evaluation was stopped before it was complete."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Screened:
    """An estimate of a mask's loss. It shows whether the mask is among the best of its round; it is never a loss."""

    loss: float  #: the estimate, by the difference from the round's best mask on the samples that both were run on
    low: float  #: the lower end of the confidence interval, at the confidence of the screening
    high: float  #: the upper end of the confidence interval
    share: float  #: the share of the shards that the mask was evaluated on, 0 … 1
    accepted: bool = False  #: whether the mask is among the best
