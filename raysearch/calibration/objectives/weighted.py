"""A weighted sum of several objectives, each on its own data and scaled to be comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from raysearch.calibration.objectives.base import check_words
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import EvaluationError, UserError

_LEAST, _MOST = 1e-9, 1e9


@dataclass(frozen=True)
class WeightedObjective:
    """sum_p w_p L_p / s_p over the parts p, with a loss L_p, a weight w_p and a scale s_p each.

    Every part is evaluated as a calibration of its own and stored in the ledger as such, so it is shared with searches
    on that part alone.

    Args:
        weights: w_p, positive, 1e-9 … 1e9.
        normalise: What s_p is. ``dense``: |L_p| of the dense model. ``spread``: the standard deviation of L_p over the
            N masks that remove a single layer, so that all parts separate layers alike. ``accuracy``: 1 - L_p of the
            dense model, its accuracy, so that with equal weights the mean of pruned / dense accuracy is maximised.
            ``none``: 1.
    """

    weights: tuple[float, ...]
    normalise: Literal["dense", "spread", "accuracy", "none"] = "spread"

    measure: ClassVar[Measure] = Measure("weighted sum", "set")

    def __post_init__(self) -> None:
        check_words(self)
        if not self.weights:
            raise UserError("objective.parts=[] has nothing to weigh; name at least one part")
        for weight in self.weights:
            if not _LEAST <= weight <= _MOST:
                raise UserError(
                    f"objective.parts has weight={weight}; use a positive number, {_LEAST:g} … {_MOST:g} (their ratios "
                    "are what counts), or leave the part out"
                )

    def references(self, n_layers: int) -> Sequence[Mask]:
        """Return the masks whose losses the scales are computed from."""
        if self.normalise == "spread":
            return [Mask.of(layer) for layer in range(n_layers)]
        return [Mask()] if self.normalise in ("dense", "accuracy") else []

    def combine(self, losses: Sequence[float], references: Mapping[Mask, Sequence[float]]) -> float:
        """Return the weighted sum of a mask's L_p, by those of each mask of `references`; a scale of 0 is an error."""
        parts = zip(self.weights, losses, self._scales(references), strict=True)
        return sum(weight * loss / scale for weight, loss, scale in parts)

    def factors(self, references: Mapping[Mask, Sequence[float]]) -> list[float]:
        """Return w_p / s_p of each part; as `combine`."""
        return [weight / scale for weight, scale in zip(self.weights, self._scales(references), strict=True)]

    def _scales(self, references: Mapping[Mask, Sequence[float]]) -> list[float]:
        """Return s_p of each part."""
        if self.normalise == "none":
            return [1.0] * len(self.weights)
        of_part, why_none = _SCALES[self.normalise]
        scales = [of_part(part) for part in zip(*references.values(), strict=True)]
        if not all(scales):
            raise EvaluationError(
                f"part {scales.index(0) + 1} of objective=weighted {why_none}, so it cannot be scaled by that; use "
                "another objective.normalise"
            )
        return scales


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


#: The scale of a part by its losses of `WeightedObjective.references`, and why it may be 0.
_SCALES: dict[str, tuple[Callable[[Sequence[float]], float], str]] = {
    "spread": (_spread, "does not tell single layers apart"),
    "dense": (lambda losses: abs(losses[0]), "is 0 for the dense model"),
    "accuracy": (lambda losses: 1 - losses[0], "has no right answer of the dense model"),
}
