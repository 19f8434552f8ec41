"""The studies of a ledger: the searches of each study. The results are recorded with the searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import RecordTable, now
from raysearch.searching.settings import PlaceSettings


@dataclass(frozen=True)
class CellRecord:
    """A search's place in a study.

    Args:
        model: The label of its model.
        calibration: The label of its objective and data.
        searcher: The label of its searcher and options.
        remove: M, how many layers, pairs or halves are removed.
        seed: The seed of its searcher.
        search_id: Its id.
        layer_forwards_shared: The layer-forwards that it adds to the study, for masks that no search before it, in the
            study's order, has evaluated; see `raysearch.studies.study_recorder.shared_layer_forwards`. None until the
            searches of its model ended.
        error_to_best: Standard error of the difference to the lowest loss that any search found for the same model,
            calibration and M, on the same samples. It is 0 for the search with the lowest loss, and None if there is no
            estimate. It is much smaller than the error of the difference to the dense loss, so it separates more
            searches.
        draw: The label of the draw of the calibration's samples; empty if the study has only one draw.
        uses_objective: Whether its searcher depends on the objective; if not, it is a baseline.
        stochastic: Whether another seed may give its searcher another mask.
        held_out: The mean loss of its mask on the other draws, on samples that its own draw does not contain; None if
            there are none.
        held_out_by_draw: The same loss on each other draw, by its label; empty in older records.
        n_free: How many layers, pairs or halves are not protected, so that they may be removed; None if unknown.
        group: The number of layers that its target allows to remove only together.
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
    group: int = 1

    @property
    def named(self) -> dict[str, float]:
        """The loss of its mask that only the study measures, by the name of the metric in MLflow."""
        return {} if self.held_out is None else {"loss/held_out": self.held_out}


@dataclass(frozen=True)
class AssessedMasks:
    """The assessed numbers of a model's masks.

    Args:
        metrics: The metrics, in the order of the tables' columns.
        by_mask: The numbers by the text of a mask, then by the name of a metric.
        items: The contribution of each window, document or item to the numbers, by the same keys, if known.
    """

    metrics: tuple[Metric, ...] = ()
    by_mask: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    items: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)

    def of(self, mask: Mask) -> Mapping[str, Estimate]:
        """Return a mask's numbers by the name of a metric."""
        return self.by_mask.get(str(mask), {})

    def updated(self, new_numbers: AssessedMasks) -> AssessedMasks:
        """Return these numbers together with new ones; a new number replaces the old one."""
        names = {metric.name for metric in new_numbers.metrics}
        metrics = (*(metric for metric in self.metrics if metric.name not in names), *new_numbers.metrics)
        masks = {**self.by_mask, **new_numbers.by_mask}
        return AssessedMasks(
            metrics,
            {mask: {**self.by_mask.get(mask, {}), **new_numbers.by_mask.get(mask, {})} for mask in masks},
            {
                mask: {**self.items.get(mask, {}), **new_numbers.items.get(mask, {})}
                for mask in {**self.items, **new_numbers.items}
            },
        )


@dataclass(frozen=True)
class StudyRecord:
    """A recorded study.

    Args:
        study_id: Its id.
        config: Its resolved configuration.
        cells: Its searches.
        facts: How and where it ran, by subject, so that a reader can judge it.
        assessed: The assessed numbers of masks, by the label of their model.
        updated: When the record last changed, ISO 8601, UTC.
        mlflow_run_id: The id of its MLflow run; None if it was not written to MLflow.
    """

    study_id: str
    config: Mapping[str, Any]
    cells: tuple[CellRecord, ...]
    facts: Mapping[str, str]
    assessed: Mapping[str, AssessedMasks]
    updated: str
    mlflow_run_id: str | None = None

    @property
    def places(self) -> PlaceSettings:
        """Where the study is recorded."""
        return PlaceSettings(self.config)

    def with_assessed(self, new_numbers: Mapping[str, AssessedMasks]) -> Mapping[str, AssessedMasks]:
        """Return the earlier and the new assessed numbers, by the label of their model."""
        return {**self.assessed} | {
            model: self.assessed.get(model, AssessedMasks()).updated(assessed)
            for model, assessed in new_numbers.items()
        }


def _merged(ours: StudyRecord, theirs: StudyRecord) -> StudyRecord:
    """Merge the records of one study in two ledgers: the newer record, with the assessed numbers of both."""
    older, newer = sorted((theirs, ours), key=lambda record: record.updated)
    return replace(newer, assessed=older.with_assessed(newer.assessed))


#: All studies of a ledger.
STUDIES = RecordTable(StudyRecord, "studies", "study", _merged)


def add_assessed(ledger: Ledger, study: StudyRecord, new_numbers: Mapping[str, AssessedMasks]) -> None:
    """Add assessed numbers to a study's record; changes that another process has made meanwhile are kept.

    Args:
        ledger: The ledger with the study.
        study: The study's record, for a ledger that has none.
        new_numbers: The assessed numbers of masks, by the label of their model.
    """

    def change(before: StudyRecord | None) -> StudyRecord:
        record = before or study
        return replace(record, assessed=record.with_assessed(new_numbers), updated=now())

    STUDIES.change(ledger, study.study_id, change)


def cells_by_search(ledger: Ledger) -> dict[str, tuple[str, CellRecord]]:
    """Return, by search id, the id of the newest study that contains the search, and its place there.

    Damaged studies are ignored.
    """
    damaged = STUDIES.damaged(ledger)
    studies = STUDIES.by_ids(ledger, [study_id for study_id in STUDIES.ids(ledger) if study_id not in damaged])
    by_age = sorted(studies.values(), key=lambda study: study.updated)
    return {cell.search_id: (study.study_id, cell) for study in by_age for cell in study.cells}
