"""The result of a study: plain values from which its report is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, computed_field, model_serializer

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import JointRemoval
from raysearch.recovery.recovery_record import RecoveryRecord
from raysearch.studies.spec import Margin
from raysearch.studies.study_record import CellRecord

State = Literal["finished", "stopped", "failed", "waiting"]
_NOT_WRITTEN = Field(exclude=True)  # not in JSON: only reports use the field


@dataclass(frozen=True)
class Outcome:
    """The result of one search of the study.

    Args:
        removed: The removed layers, 0-based, ascending, and the removed halves of others, such as ``17a``.
        measure: The measure of the losses.
        dense_loss: The loss of the dense model.
        loss: The loss of the mask.
        delta_error: Standard error of the difference between the loss and the dense loss, due to the choice of samples;
            None if there is no estimate.
        evaluations: How many masks the searcher proposed.
        layer_forwards_alone: Layer-forwards with an empty ledger.
        layer_forwards_naive: Layer-forwards with a full forward for each mask.
        seconds: Wall-clock time of the process that finished the search.
        path: The lowest loss, by the size of the mask, from 1.
        best_so_far: Each new lowest loss of a mask of the size M, as ``(evaluations, loss)``.
        assessed: The assessed numbers, by the name of a metric.
        joint_removals: The cost of several sites together, and the sum of their single costs.
        items: The contribution of each window, document or item to a number of `assessed`, or to the logarithm of a
            perplexity.
        n_samples: Samples of its calibration; None in older records.
        source: The same text for calibrations that differ only in their number of samples and their draw.
        space: What the mask removes.
    """

    removed: tuple[int | str, ...]
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
    space: Space = LAYERS

    @property
    def mask(self) -> Mask:
        """The removed layers and halves as a mask; empty if they are not known."""
        return Mask.of(*self.removed)

    @property
    def n_removed(self) -> int:
        """The size of the mask, as ``remove=`` counts it."""
        return self.space.size_of(self.mask)


@dataclass(frozen=True)
class CellResult(CellRecord):
    """One search of the study: its labels and its result.

    Args:
        state: How it ended; ``waiting`` if it has not run, ``stopped`` if its budget ended it.
        failure: Why it failed; None if it did not fail.
        link: The address of its MLflow run; None if there is none.
        outcome: Its result; None if it has none.
    """

    state: State = "waiting"
    failure: str | None = None
    link: str | None = None
    outcome: Outcome | None = None

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the fields of the outcome, if any, next to those of the search, and the layer-forwards in one place."""
        fields: dict[str, Any] = write(self)
        outcome = fields.pop("outcome")
        comparison = {name: fields.pop(name) for name in ("error_to_best", "layer_forwards_shared")}
        if outcome is None:
            return fields
        row = {**fields, **outcome, **comparison}
        forwards = {kind: row.pop(f"layer_forwards_{kind}") for kind in ("shared", "alone", "naive")}
        return {**row, "layer_forwards": forwards}


@dataclass(frozen=True)
class RecoveredMask:
    """A recovery of a mask of the study; the study or a separate command ran it.

    Args:
        model: The label of its model.
        found_by: The searchers that found the mask, or ``dense`` for the dense model.
        remove: M, the size of the mask.
        record: The recorded recovery.
        is_only_mask: Whether this is the only recovered mask of its size that these searchers found.
    """

    model: str
    found_by: Sequence[str]
    remove: int
    record: RecoveryRecord
    is_only_mask: Annotated[bool, _NOT_WRITTEN] = True

    @property
    def searchers(self) -> str:
        """The names of the searchers that found the mask, followed by the mask if they found several."""
        return ", ".join(self.found_by) + ("" if self.is_only_mask else f" {self.record.mask}")


@dataclass(frozen=True)
class StudyResult:
    """A study.

    Args:
        study_id: Its id.
        name: Its name.
        cells: Its searches, in the study's order.
        sites: The layers of each dense model.
        metrics: The metrics of the assessment, in the order of the tables' columns.
        dense: The assessed numbers of the dense model, by model, then by the name of a metric.
        facts: How and where the study was run, by subject: command, data, versions, machine, date.
        link: The address of the study's MLflow run; None if there is none.
        searchers: The options of each searcher, by its label; options that differ between its searches are left out.
        margin: The differences that count as equal.
        contrasts: Pairs of searchers that the report compares.
        recovered: The recoveries of its masks.
        refused: The masks that `export --gguf` refuses, each with the reason, by model.
        option: The option with which later commands find the study's ledger, such as `` --store other``; empty for the
            default.
    """

    study_id: str
    name: str
    cells: Sequence[CellResult]
    sites: Annotated[Mapping[str, Sites], _NOT_WRITTEN]
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
        """The total layer-forwards of the searches: ``shared`` in this study, ``separate`` one by one, ``naive``.

        The searches of a model are counted once all of them have ended.
        """
        costs = [
            (cell.layer_forwards_shared, cell.outcome.layer_forwards_alone, cell.outcome.layer_forwards_naive)
            for cell in self.cells
            if cell.outcome is not None and cell.layer_forwards_shared is not None
        ]
        shared, separate, naive = map(sum, zip(*costs, strict=True)) if costs else (0.0, 0.0, 0.0)
        return {"shared": shared, "separate": separate, "naive": naive}

    @property
    def plural(self) -> str:
        """What M counts, for labels: ``layers``, or ``layers or pairs``."""
        plurals = dict.fromkeys(cell.outcome.space.plural for cell in self.cells if cell.outcome is not None)
        return " or ".join(plurals) or LAYERS.plural

    @property
    def totals(self) -> dict[str, float]:
        """The numbers of the whole study, by the names of their metrics in MLflow."""
        return {
            **{f"layer_forwards/{kind}": value for kind, value in self.layer_forwards.items()},
            "searches/all": len(self.cells),
            "searches/done": sum(cell.outcome is not None for cell in self.cells),
        }
