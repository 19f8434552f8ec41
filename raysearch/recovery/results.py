"""The results of a recovery: dense, pruned and recovered side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.assessment.results import Result
from raysearch.core.estimate import shown
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.recovery.record import RecoveryRecord, ThreeNumbers, Training, side_by_side


@dataclass(frozen=True)
class Recovered:
    """A recovered model.

    Args:
        model: The dense model as the user named it.
        out: The checkpoint.
        rows: Rows it was trained and followed on.
        left_out: Rows that were left out, by the reason.
        answers_written: Answers that the dense model wrote now.
        stages: Seconds of each stage of this call.
        dense: The assessed numbers of the dense model, by metric; `pruned` and `recovered` likewise.
        seconds: Of this call, assessment included.
        is_gguf: Whether the dense model is a GGUF file.
        left: The folders that are left, and their sizes in bytes.
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

    def record(self, way: str) -> RecoveryRecord:
        """Return what the ledger keeps of it; `way` says in a few words how it was trained."""
        return RecoveryRecord(
            recovery_id=self.recovery_id,
            search_id=self.search_id,
            mask=self.mask,
            way=way,
            rows=self.rows,
            left_out=self.left_out,
            training=self.training,
            seconds=self.stages,
            numbers=self.numbers,
            out="" if way else str(self.out),
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the three models' numbers side by side, ± one standard error."""
        head = "".join(f"<th>{name}</th>" for name in ("", "dense", "pruned", "recovered", "recovered / dense"))
        rows = []
        for one in self.numbers:
            better = "higher" if one.metric.higher_is_better else "lower"
            metric = f"{one.metric.title} ({one.metric.unit}, {better} is better)"
            cells = [metric, *map(shown, (one.dense, one.pruned, one.recovered, one.regained))]
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
        said = f"<b>{escape(self.recovery_id)}</b>: {escape(self.model)} without layers {self.mask}, trained for "
        said += f"{count(self.training.steps, 'step')} on {count(self.training.tokens, 'token')}"
        return f"<p>{said}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Call the mask what it removes, as in other results."""
        return {"removed" if name == "mask" else name: value for name, value in write(self).items()}


@dataclass(frozen=True)
class RecoveryCost:
    """The expected cost of a recovery.

    Args:
        rows: Rows of the training, held-out ones included.
        answers: Answers that the dense model will write, at most.
        answer_tokens: Their tokens, at most.
        tokens: Tokens that are trained on, at most where answers are yet to be written.
        steps: Steps of the training.
        step_s: Seconds of one step, timed.
        seconds: Of all steps.
        memory_bytes: The most memory of the timed step.
        left_out: Rows that are left out, by the reason.
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
