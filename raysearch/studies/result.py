"""The result of a study: plain values from which its report is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, computed_field, model_serializer

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.recovery.record import RecoveryRecord
from raysearch.searching.trial import JointRemoval
from raysearch.studies.record import CellRecord
from raysearch.studies.spec import Margin

State = Literal["finished", "stopped", "failed", "waiting"]
_NOT_WRITTEN = Field(exclude=True)  # for reports alone


@dataclass(frozen=True)
class Outcome:
    """The result of one search of the study.

    Args:
        removed: The removed layers, 0-based, ascending.
        delta_error: Standard error of the loss over the dense one, by the choice of samples; None where there is none.
        evaluations: Masks that the searcher asked for.
        layer_forwards_alone: Those on an empty ledger; `layer_forwards_naive` those of a full forward per mask.
        seconds: Wall-clock of the process that finished it.
        path: The lowest loss by number of layers removed, from 1 up.
        best_so_far: The lowest loss of a mask with M layers after so many evaluations: ``(evaluations, loss)``.
        assessed: By the name of a metric.
        items: What each window, document or item adds to a number of `assessed`, or to the logarithm of a perplexity.
        n_samples: Samples of its calibration; None in tables from before that was kept.
        source: Equal for calibrations that differ by their number of samples and their draw alone.
    """

    removed: tuple[int, ...]
    measure: Measure
    dense_loss: float
    loss: float
    delta_error: float | None
    evaluations: int
    layer_forwards_alone: float
    layer_forwards_naive: float
    seconds: float
    path: Annotated[Mapping[int, float], _NOT_WRITTEN] = field(default_factory=dict)
    best_so_far: Annotated[Sequence[tuple[int, float]], _NOT_WRITTEN] = ()
    assessed: Mapping[str, Estimate] = field(default_factory=dict)
    joint_removals: Annotated[Sequence[JointRemoval], _NOT_WRITTEN] = ()
    items: Annotated[Mapping[str, Sequence[float]], _NOT_WRITTEN] = field(default_factory=dict)
    n_samples: int | None = None
    source: Annotated[str, _NOT_WRITTEN] = ""


@dataclass(frozen=True)
class CellResult(CellRecord):
    """One search of the study, by the labels it has there, with what it found.

    Args:
        state: How it ended; ``waiting`` if it has not run, ``stopped`` if its budget ended it.
        link: Where its MLflow run is to be seen; None if it was not recorded.
    """

    state: State = "waiting"
    failure: str | None = None
    link: str | None = None
    outcome: Outcome | None = None

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write what was found, if anything, beside what was searched, and its costs together."""
        fields: dict[str, Any] = write(self)
        found = fields.pop("outcome")
        beside = {name: fields.pop(name) for name in ("error_to_best", "layer_forwards_shared")}
        if found is None:
            return fields
        whole = {**fields, **found, **beside}
        forwards = {kind: whole.pop(f"layer_forwards_{kind}") for kind in ("shared", "alone", "naive")}
        return {**whole, "layer_forwards": forwards}


@dataclass(frozen=True)
class RecoveredMask:
    """A recovery of a mask of the study, by the study or by hand.

    Args:
        model: The label of its model.
        found_by: The searchers that found the mask, or that it is the dense model.
        remove: M, how many layers are gone.
        alone: Whether these searchers found no other mask of this size that was recovered, as by other draws.
    """

    model: str
    found_by: Sequence[str]
    remove: int
    record: RecoveryRecord
    alone: Annotated[bool, _NOT_WRITTEN] = True

    @property
    def searchers(self) -> str:
        """Those that found it, in words; with the mask where they found several."""
        return ", ".join(self.found_by) + ("" if self.alone else f" {self.record.mask}")


@dataclass(frozen=True)
class StudyResult:
    """A study.

    Args:
        cells: Its searches, in the study's order.
        n_layers: N by model.
        metrics: What checkpoints were assessed by, in the order of the tables' columns.
        dense: By model, the assessed numbers of the dense model, by the name of a metric.
        facts: What a reader must know to trust it, by subject: command, data, versions, machine, date.
        link: Where the study's MLflow run is to be seen; None if it was not recorded.
        searchers: The options of each searcher, by its label; those that differ between its searches are left out.
        refused: By model the masks that `export --gguf` refuses, each with the reason.
        option: What a later command needs to find the study's ledger, as in `` --store other``; empty for the default.
    """

    study_id: str
    name: str
    cells: Sequence[CellResult]
    n_layers: Annotated[Mapping[str, int], _NOT_WRITTEN]
    metrics: Sequence[Metric]
    dense: Mapping[str, Mapping[str, Estimate]]
    facts: Annotated[Mapping[str, str], _NOT_WRITTEN]
    link: Annotated[str | None, _NOT_WRITTEN] = None
    searchers: Annotated[Mapping[str, Mapping[str, Any]], _NOT_WRITTEN] = field(default_factory=dict)
    margin: Margin = field(default_factory=Margin)
    contrasts: Sequence[str] = ()
    recovered: Sequence[RecoveredMask] = ()
    refused: Annotated[Mapping[str, Mapping[Mask, str]], _NOT_WRITTEN] = field(default_factory=dict)
    option: Annotated[str, _NOT_WRITTEN] = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def layer_forwards(self) -> dict[str, float]:
        """The total cost of the searches: ``shared`` in this study, ``separate`` one by one, ``naive``.

        Those of a model count once all of them have ended.
        """
        found = [
            (cell.layer_forwards_shared, cell.outcome.layer_forwards_alone, cell.outcome.layer_forwards_naive)
            for cell in self.cells
            if cell.outcome is not None and cell.layer_forwards_shared is not None
        ]
        shared, separate, naive = map(sum, zip(*found, strict=True)) if found else (0.0, 0.0, 0.0)
        return {"shared": shared, "separate": separate, "naive": naive}

    @property
    def totals(self) -> dict[str, float]:
        """The numbers of the study as a whole, by the names that MLflow shows."""
        return {
            **{f"layer_forwards/{kind}": value for kind, value in self.layer_forwards.items()},
            "searches/all": len(self.cells),
            "searches/done": sum(cell.outcome is not None for cell in self.cells),
        }
