"""The record of a stage in the ledger: its search and its recovery, so that no stage is run twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysearch.core.mask import Mask
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.recovery.recovery_record import Training, recoveries_of
from raysearch.searching.events import MaskRecovered, RecoveryHeader
from raysearch.searching.result import SearchResult
from raysearch.searching.search_record import SearchRecord


@dataclass(frozen=True)
class StageRecord:
    """A finished stage of a search with ``heal=recover``.

    Args:
        search: The result of its search, in the numbering of the model that it searched.
        mask: The layers removed so far, in the numbering of the original model.
        recovery_id: The id of its recovery.
        losses: The loss of the recovered model on each calibration of the search.
        rows: The number of rows for training and for the held-out loss.
        left_out: The number of rows that were left out, by reason.
        training: The training.
        seconds: The time of each step of the recovery.
        settings: The configuration of data and training, by dotted key.
    """

    search: SearchResult
    mask: Mask
    recovery_id: str
    losses: tuple[float, ...]
    rows: int
    left_out: Mapping[str, int]
    training: Training
    seconds: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_stage(ledger: Ledger, model: str, recovery_id: str, number: int) -> StageRecord | None:
    """Read the record of a stage.

    Args:
        ledger: The ledger.
        model: The fingerprint of the original model.
        recovery_id: The id of the recovery as a whole.
        number: The number of the stage, 1-based.

    Returns:
        The record; None if the stage has not finished.
    """
    return read_assessments(ledger, model, _name(recovery_id, number), [Mask()], StageRecord).get(Mask())


def write_stage(ledger: Ledger, model: str, recovery_id: str, number: int, stage: StageRecord) -> None:
    """Record a finished stage.

    Args:
        ledger: The ledger.
        model: The fingerprint of the original model.
        recovery_id: The id of the recovery as a whole.
        number: The number of the stage, 1-based.
        stage: The stage.
    """
    write_assessment(ledger, model, _name(recovery_id, number), {Mask(): stage}, StageRecord)


def recorded_stages(ledger: Ledger, record: SearchRecord) -> list[StageRecord]:
    """Read the stages of a finished search.

    Args:
        ledger: The ledger.
        record: The search.

    Returns:
        The stages, in order; none if the search has none.
    """
    result = record.finished_result
    if result.staged is None:
        return []
    numbers = range(1, len(result.staged.stages) + 1)
    model = result.fingerprints["model"]
    stages = [read_stage(ledger, model, result.staged.recovery_id, number) for number in numbers]
    return [stage for stage in stages if stage is not None]


def stage_events(ledger: Ledger, record: SearchRecord) -> Iterator[MaskRecovered]:
    """Yield the event of each recovery of a search in stages, and that of the recovery as a whole.

    Args:
        ledger: The ledger.
        record: The search.

    Yields:
        The event of a recovery.
    """
    result = record.finished_result
    if (staged := result.staged) is None:
        return
    for number, stage in enumerate(recorded_stages(ledger, record), start=1):
        label = f"stage {number}"
        header = RecoveryHeader(stage.recovery_id, stage.mask, label, stage.settings, len(stage.mask))
        numbers = {
            "recovery/rows": float(stage.rows),
            "recovery/steps": float(stage.training.steps),
            "recovery/tokens": float(stage.training.tokens),
            "loss": staged.stages[number - 1].recovered_loss,
        }
        yield MaskRecovered(record, header, stage.training.points, numbers)
    for recovery in recoveries_of(ledger, result.fingerprints["model"], [result.mask]):
        if recovery.recovery_id == staged.recovery_id:
            yield recovery.event(record)


def _name(recovery_id: str, number: int) -> str:
    return f"{recovery_id}, stage {number}"
