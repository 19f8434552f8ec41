"""The unit of a loss and its readout, a number that is easier to read. Plain data, which every record contains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raysearch.errors import UserError
from raysearch.text.numbers import rounded

#: The divisor of the sum of the samples' losses: the number of scored tokens, of samples, or 1.
Per = Literal["token", "sample", "set"]

_READOUTS: dict[str, Callable[[float], float]] = {
    "perplexity": lambda loss: math.exp(loss) if loss < 709 else math.inf,
    "accuracy": lambda loss: 1 - loss,
    "margin": lambda loss: 0.0 - loss,
    "cosine": lambda loss: 1 - loss,
}


@dataclass(frozen=True)
class Measure:
    """The unit of an objective's loss, and its readout.

    Args:
        unit: The unit, such as ``nats per token``.
        per: The divisor of the sum of the samples' losses: ``token``, ``sample``, or ``set`` for 1.
        readout: The number shown next to the loss: ``perplexity``, ``accuracy``, ``margin`` or ``cosine``; None for no
            such number.

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
        """Return the readout of a loss, such as exp(loss) for perplexity; the loss itself if there is no readout."""
        return loss if self.readout is None else _READOUTS[self.readout](loss)

    def divisor(self, n_tokens: int, n_samples: int) -> int:
        """Return the divisor of the sum of the samples' losses.

        Args:
            n_tokens: The number of scored tokens.
            n_samples: The number of samples.

        Returns:
            The number of tokens or of samples; 1 for a loss of the whole set.
        """
        return {"token": n_tokens, "sample": n_samples, "set": 1}[self.per]


def readout_text(measure: Measure, readout: float) -> str:
    """Format a readout: four decimals; two for a perplexity, none from 10,000 on.

    Args:
        measure: The measure of the loss.
        readout: The readout of the loss.

    Returns:
        The readout as text, without its name.
    """
    if measure.readout != "perplexity":
        return f"{readout:.4f}"
    return f"{readout:.2f}" if readout < 10_000 else rounded(readout)


PERPLEXITY = Measure("nats per token", "token", "perplexity")
