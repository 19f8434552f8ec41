"""The unit of a loss, and the number that people read it as: plain data that goes on every record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raysearch.core.formatting import figure
from raysearch.errors import UserError

#: What the sum of the samples' losses is divided by: scored tokens, samples, or nothing.
Per = Literal["token", "sample", "set"]

_READOUTS: dict[str, Callable[[float], float]] = {
    "perplexity": lambda loss: math.exp(loss) if loss < 709 else math.inf,
    "accuracy": lambda loss: 1 - loss,
    "margin": lambda loss: 0.0 - loss,
    "cosine": lambda loss: 1 - loss,
}


@dataclass(frozen=True)
class Measure:
    """The unit of an objective's loss, and how to read it.

    Args:
        unit: ``nats per token``.
        per: What the sum of the samples' losses is divided by.
        readout: The number shown beside the loss: ``perplexity``, ``accuracy``, ``margin`` or ``cosine``; or None.

    Raises:
        UserError: The readout is unknown.
    """

    unit: str
    per: Per
    readout: str | None = None

    def __post_init__(self) -> None:
        if self.readout is not None and self.readout not in _READOUTS:
            raise UserError(
                f"readout={self.readout} of the measure in {self.unit} is unknown; use one of: "
                f"{', '.join(_READOUTS)}, or None to show the loss alone"
            )

    def read(self, loss: float) -> float:
        """Return the readout of a loss, e.g. exp(loss) for perplexity; the loss itself where there is none."""
        return loss if self.readout is None else _READOUTS[self.readout](loss)

    def divisor(self, n_tokens: int, n_samples: int) -> int:
        """Return what the sum of the samples' losses is divided by."""
        return {"token": n_tokens, "sample": n_samples, "set": 1}[self.per]


def readout_text(measure: Measure, readout: float) -> str:
    """Format a readout for people: a perplexity with two decimals, and none from 10,000 on."""
    if measure.readout != "perplexity":
        return f"{readout:.4f}"
    return f"{readout:.2f}" if readout < 10_000 else figure(readout)


PERPLEXITY = Measure("nats per token", "token", "perplexity")
