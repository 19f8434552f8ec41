"""What a loss is counted in, and how people like to read it: plain data that goes on every record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: What the losses of samples, added up, are divided by: scored tokens, samples, or nothing.
Per = Literal["token", "sample", "set"]

_READOUTS: dict[str, Callable[[float], float]] = {
    "perplexity": lambda loss: math.exp(loss) if loss < 709 else math.inf,
    "accuracy": lambda loss: 1 - loss,
    "margin": lambda loss: 0.0 - loss,
    "cosine": lambda loss: 1 - loss,
}


@dataclass(frozen=True)
class Measure:
    """How an objective's loss reads.

    Args:
        unit: What one of it is, in the singular: ``nats per token``.
        per: What the samples' losses, added up, are divided by.
        readout: A name for what people would rather read, ``perplexity``; None where the loss itself is best.
    """

    unit: str
    per: Per
    readout: str | None = None

    def read(self, loss: float) -> float:
        """The readout of a loss, e.g. exp(loss) for perplexity; the loss itself where there is none."""
        return loss if self.readout is None else _READOUTS[self.readout](loss)

    def divisor(self, n_tokens: int, n_samples: int) -> int:
        """What the samples' losses, added up, are divided by."""
        return {"token": n_tokens, "sample": n_samples, "set": 1}[self.per]


PERPLEXITY = Measure("nats per token", "token", "perplexity")
