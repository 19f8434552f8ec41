"""The results of a recovery: the numbers of the dense, the pruned and the recovered model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.assessment.results import Result
from raysearch.core.estimate import estimate_text
from raysearch.core.mask import Mask
from raysearch.recovery.budget import Budget
from raysearch.recovery.recovery_record import RecoveryRecord, ThreeNumbers, Training, side_by_side
from raysearch.text.numbers import count


@dataclass(frozen=True)
class RecoveryResult:
    """A recovered model.

    Args:
        recovery_id: Its id.
        search_id: The id of the search that found the mask.
        model: The dense model, as the user named it.
        mask: The removed layers.
        out: The folder of the checkpoint.
        rows: The number of rows for training and for the held-out loss.
        left_out: The number of rows that were left out, by the reason.
        answers_written: The number of answers that the dense model wrote now.
        training: The training.
        stages: The seconds of each stage of this call.
        dense: The assessed numbers of the dense model, by metric.
        pruned: Those of the pruned model.
        recovered: Those of the recovered model.
        seconds: The time of this call, including the assessment.
        is_gguf: Whether the dense model is a GGUF file.
        left: The size in bytes of each folder that remains on the disk.
    """

    recovery_id: str
    search_id: str
    model: str
    mask: Mask
    out: Path
    rows: int
    left_out: Mapping[str, int]
    answers_written: int
    training: Training
    stages: Mapping[str, float]
    dense: Mapping[str, Result]
    pruned: Mapping[str, Result]
    recovered: Mapping[str, Result]
    seconds: float
    is_gguf: bool = False
    left: Mapping[Path, int] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[ThreeNumbers, ...]:
        """The three models' numbers."""
        return side_by_side(self.dense, self.pruned, self.recovered)

    def record(self, method_label: str) -> RecoveryRecord:
        """Return the record for the ledger; `method_label` is the study's label of the training method, or empty."""
        return RecoveryRecord(
            recovery_id=self.recovery_id,
            search_id=self.search_id,
            mask=self.mask,
            way=method_label,
            rows=self.rows,
            left_out=self.left_out,
            training=self.training,
            seconds=self.stages,
            numbers=self.numbers,
            out="" if method_label else str(self.out),
        )

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the three models' numbers, ± one standard error."""
        head = "".join(f"<th>{name}</th>" for name in ("", "dense", "pruned", "recovered", "recovered / dense"))
        rows = []
        for numbers in self.numbers:
            estimates = (numbers.dense, numbers.pruned, numbers.recovered, numbers.regained)
            cells = [numbers.metric.heading, *map(estimate_text, estimates)]
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
        cuts = self.training.cuts
        work = f"repaired at {count(len(cuts), 'cut')}" if cuts else f"trained for {count(self.training.steps, 'step')}"
        caption = f"<b>{escape(self.recovery_id)}</b>: {escape(self.model)} without layers {self.mask}, {work} on "
        caption += count(self.training.tokens, "token")
        return f"<p>{caption}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the mask under the key ``removed``, as in other results."""
        return {"removed" if name == "mask" else name: value for name, value in write(self).items()}


@dataclass(frozen=True)
class RecoveryCost:
    """The expected cost of a recovery.

    Args:
        rows: The number of rows, including held-out rows.
        answers: The maximum number of answers that the dense model will write.
        answer_tokens: The maximum number of their tokens.
        tokens: The number of tokens to train on; a maximum if answers are not written yet.
        steps: The number of training steps.
        step_s: The seconds of one step, measured.
        seconds: The seconds of all steps.
        memory_bytes: The peak memory of the measured step.
        left_out: The number of rows that are left out, by the reason.
        forwards: Without training, the number of forwards of the dense model over all rows, about; None for a training.
        budget: What fits into the given time; None if no time was given.
    """

    rows: int
    answers: int
    answer_tokens: int
    tokens: int
    steps: int
    step_s: float
    seconds: float
    memory_bytes: int
    left_out: Mapping[str, int]
    forwards: float | None = None
    budget: Budget | None = None
