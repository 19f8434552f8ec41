"""The studies that a ledger knows: which searches each is made of. What those found stands with the searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import Table, now


@dataclass(frozen=True)
class CellRecord:
    """A search's place in a study.

    Args:
        model: The label of its model.
        calibration: That of its objective and data.
        searcher: That of its searcher and options.
        remove: M, how many layers go.
        layer_forwards_shared: What it adds to the study: its masks that no search before it, in the study's order, has
            asked for, see `raysearch.studies.recorder.shared_layer_forwards`; None until the searches of its model
            ended.
        error_to_best: Standard error of the difference to the lowest loss that any search found for the same model,
            calibration and M, on the same samples; 0 for that search itself, None where there is none. It tells ties
            far more sharply than the error of the loss over the dense model's.
        draw: Which draw of the calibration's samples; empty where the study has one.
        uses_objective: Whether its searcher does; one that does not is a baseline.
        stochastic: Whether another seed may give its searcher another mask.
        held_out: The loss of its mask on the samples of the other draws that its own draw has not, the mean over draws;
            None where there are none.
        held_out_by_draw: The same on each of them, by its label; empty on records from before that was kept.
        n_free: How many layers may be removed, that is, are not protected; None where it is not known.
    """

    model: str
    calibration: str
    searcher: str
    remove: int
    seed: int
    search_id: str
    layer_forwards_shared: float | None = None
    error_to_best: float | None = None
    draw: str = ""
    uses_objective: bool = True
    stochastic: bool = False
    held_out: float | None = None
    held_out_by_draw: Mapping[str, float] = field(default_factory=dict)
    n_free: int | None = None

    @property
    def named(self) -> dict[str, float]:
        """What the study knows of the search's loss, by the names that MLflow shows."""
        return {} if self.held_out is None else {"loss/held_out": self.held_out}


@dataclass(frozen=True)
class AssessedMasks:
    """The assessed numbers of a model's masks.

    Args:
        by_mask: The numbers by the text of a mask, by the name of a metric.
        items: What each window, document or item adds to them, in the same way, where that is known.
    """

    metrics: tuple[Metric, ...] = ()
    by_mask: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    items: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)

    def of(self, mask: Mask) -> Mapping[str, Estimate]:
        """Return a mask's numbers by the name of a metric."""
        return self.by_mask.get(str(mask), {})

    def updated(self, new: AssessedMasks) -> AssessedMasks:
        """Return these and new ones; a number anew stands for the one before."""
        names = {metric.name for metric in new.metrics}
        metrics = (*(one for one in self.metrics if one.name not in names), *new.metrics)
        masks = {**self.by_mask, **new.by_mask}
        return AssessedMasks(
            metrics,
            {mask: {**self.by_mask.get(mask, {}), **new.by_mask.get(mask, {})} for mask in masks},
            {mask: {**self.items.get(mask, {}), **new.items.get(mask, {})} for mask in {**self.items, **new.items}},
        )


@dataclass(frozen=True)
class StudyRecord:
    """A study on record.

    Args:
        facts: What a reader must know to trust it, by subject, as it was when it ran.
        assessed: The assessed numbers of masks, by the label of their model.
        updated: When the record last changed, ISO 8601, UTC.
    """

    study_id: str
    config: Mapping[str, Any]
    cells: tuple[CellRecord, ...]
    facts: Mapping[str, str]
    assessed: Mapping[str, AssessedMasks]
    updated: str
    mlflow_run_id: str | None = None

    def with_assessed(self, new: Mapping[str, AssessedMasks]) -> Mapping[str, AssessedMasks]:
        """Return what was assessed, earlier and now, by the label of a model."""
        return {**self.assessed} | {
            model: self.assessed.get(model, AssessedMasks()).updated(found) for model, found in new.items()
        }


def _merged(ours: StudyRecord, theirs: StudyRecord) -> StudyRecord:
    """Return the record of a study that two ledgers have: the newer, with the assessed numbers of both."""
    older, newer = sorted((theirs, ours), key=lambda one: one.updated)
    return replace(newer, assessed=older.with_assessed(newer.assessed))


#: All studies of a ledger.
STUDIES = Table(StudyRecord, "studies", "study", _merged)


def add_assessed(ledger: Ledger, study: StudyRecord, new: Mapping[str, AssessedMasks]) -> None:
    """Add assessed numbers of masks to a study's record, to which others may have written meanwhile."""

    def changed(before: StudyRecord | None) -> StudyRecord:
        record = before or study
        return replace(record, assessed=record.with_assessed(new), updated=now())

    STUDIES.change(ledger, study.study_id, changed)


def cells_by_search(ledger: Ledger) -> dict[str, tuple[str, CellRecord]]:
    """Return by search id the newest study that a search is part of, and its place there; damaged studies have none."""
    damaged = STUDIES.damaged(ledger)
    studies = STUDIES.some(ledger, [study_id for study_id in STUDIES.ids(ledger) if study_id not in damaged])
    by_age = sorted(studies.values(), key=lambda study: study.updated)
    return {cell.search_id: (study.study_id, cell) for study in by_age for cell in study.cells}
