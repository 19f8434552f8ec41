"""The exact loss of masks that a user already has: a paper's, a colleague's, one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.evaluator import Progress
from raysearch.mask import Mask
from raysearch.models.loading import describe
from raysearch.study.judge import open_judge
from raysearch.study.spec import ScoreSpec


@dataclass(frozen=True)
class Score:
    """A mask's loss.

    Args:
        mask: The removed layers.
        loss: Nats per token.
        n_tokens: Scored tokens.
        answered: Whether the ledger knew it.
    """

    mask: Mask
    loss: float
    n_tokens: int
    answered: bool

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "removed": list(self.mask),
            "loss": self.loss,
            "n_tokens": self.n_tokens,
            "answered": self.answered,
        }


def score_masks(spec: ScoreSpec, on_progress: Callable[[Progress], None]) -> list[Score]:
    """Evaluates the masks, in the order given.

    Raises:
        UserError: A mask names a layer that the model does not have, or removes all.
        EvaluationError: A mask has no finite loss.
    """
    info = describe(spec.judge.model)
    last = info.n_layers - 1
    for mask in spec.masks:
        if any(layer > last for layer in mask):
            raise UserError(
                f"masks=[…,{list(mask)},…] names layer {max(mask)}, but {spec.judge.model.name} has layers 0 … {last}; "
                "name only those"
            )
        if len(mask) > last:
            raise UserError(
                f"masks=[…,{list(mask)},…] removes every layer of {spec.judge.model.name}; keep at least one"
            )
    judge = open_judge(spec.judge, info, on_progress)
    try:
        evaluations = judge.evaluator.evaluate(dict.fromkeys(spec.masks))
        scores = []
        for mask in spec.masks:
            evaluation = evaluations[mask]
            if evaluation.loss is None:
                raise EvaluationError(f"mask {mask}: {evaluation.failure}")
            scores.append(Score(mask, evaluation.loss, judge.calibration.n_tokens, evaluation.answered))
        return scores
    finally:
        judge.close()
