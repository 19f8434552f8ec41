"""A weighted sum of several objectives, each with its own data and scaled to be comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from raysearch.calibration.objectives.base import check_words
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.site import Sites
from raysearch.errors import EvaluationError, UserError

_LEAST_WEIGHT = 1e-9
_LARGEST_WEIGHT = 1e9


@dataclass(frozen=True)
class WeightedObjective:
    """sum_p w_p L_p / s_p over the parts p, each with a loss L_p, a weight w_p and a scale s_p.

    Every part is evaluated and stored in the ledger as a separate calibration, so its evaluations are shared with
    searches on that part alone.

    Args:
        weights: w_p, positive, 1e-9 … 1e9.
        normalise: The scale s_p. ``dense``: |L_p| of the dense model. ``spread``: the standard deviation of L_p over
            the N masks that remove a single layer, so that the parts differ between layers by similar amounts.
            ``accuracy``: 1 - L_p of the dense model, its accuracy, so that equal weights maximise the mean of
            pruned / dense accuracy. ``none``: 1.

    Raises:
        UserError: There is no weight, or a weight is out of range.
    """

    weights: tuple[float, ...]
    normalise: Literal["dense", "spread", "accuracy", "none"] = "spread"

    measure: ClassVar[Measure] = Measure("weighted sum", "set")

    def __post_init__(self) -> None:
        check_words(self)
        if not self.weights:
            raise UserError("objective.parts=[] has nothing to weigh; name at least one part")
        for weight in self.weights:
            if not _LEAST_WEIGHT <= weight <= _LARGEST_WEIGHT:
                raise UserError(
                    f"objective.parts has weight={weight}; use a positive number, {_LEAST_WEIGHT:g} … "
                    f"{_LARGEST_WEIGHT:g} (their ratios are what counts), or leave the part out"
                )

    def references(self, sites: Sites) -> Sequence[Mask]:
        """Return the masks whose losses the scales are computed from, of a model with these sites."""
        if self.normalise == "spread":
            return sites.singles
        return [Mask()] if self.normalise in ("dense", "accuracy") else []

    def combine(self, losses: Sequence[float], references: Mapping[Mask, Sequence[float]]) -> float:
        """Return the weighted sum of a mask's losses.

        Args:
            losses: L_p of the mask, one for each part.
            references: L_p of each mask that the method `references` returns.

        Returns:
            The sum over the parts of weight x loss / scale, without unit.

        Raises:
            EvaluationError: The scale of a part is 0.
        """
        parts = zip(self.weights, losses, self._scales(references), strict=True)
        return sum(weight * loss / scale for weight, loss, scale in parts)

    def factors(self, references: Mapping[Mask, Sequence[float]]) -> list[float]:
        """Return w_p / s_p of each part. The argument and the error are those of `combine`."""
        return [weight / scale for weight, scale in zip(self.weights, self._scales(references), strict=True)]

    def _scales(self, references: Mapping[Mask, Sequence[float]]) -> list[float]:
        """Return s_p of each part."""
        if self.normalise == "none":
            return [1.0] * len(self.weights)
        scale_of, reason_for_zero = _SCALES[self.normalise]
        scales = [scale_of(part_losses) for part_losses in zip(*references.values(), strict=True)]
        if not all(scales):
            raise EvaluationError(
                f"part {scales.index(0) + 1} of objective=weighted {reason_for_zero}, so it cannot be scaled by that; "
                "use another objective.normalise"
            )
        return scales


def _spread(values: Sequence[float]) -> float:
    """Return the population standard deviation."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


#: The scale of a part, computed from its losses of `WeightedObjective.references`, and the reason if it is 0.
_SCALES: dict[str, tuple[Callable[[Sequence[float]], float], str]] = {
    "spread": (_spread, "has the same loss for all single layers"),
    "dense": (lambda losses: abs(losses[0]), "is 0 for the dense model"),
    "accuracy": (lambda losses: 1 - losses[0], "has no right answer of the dense model"),
}
