"""The record of a mask whose evaluation was stopped before it was complete."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Screened:
    """An estimate of a mask's loss, never a loss: it is beyond doubt whether the mask is among the best of its round.

    Args:
        loss: By the difference from the round's best mask on the samples that both have seen.
        low: The lower end of its confidence interval, at the confidence of the screening.
        high: The upper end.
        share: The share of the shards that it was evaluated on, 0 … 1.
        accepted: Whether it is among the best.
    """

    loss: float
    low: float
    high: float
    share: float
    accepted: bool = False
