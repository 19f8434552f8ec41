"""The result of a study: plain values from which its report is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.measure import Measure

State = Literal["finished", "stopped", "failed", "waiting"]


@dataclass(frozen=True)
class Outcome:
    """The result of one search of the study.

    Args:
        removed: The removed layers, 0-based, ascending.
        measure: What losses are counted in.
        dense_loss: The loss on the calibration with nothing removed.
        loss: The same with the layers removed.
        delta_error: Standard error of the difference of the two, by the choice of samples; None where there is none.
        evaluations: Masks that the searcher asked for.
        layer_forwards_alone: Layer-forwards of the search on an empty ledger.
        layer_forwards_naive: What a full forward per mask would have run.
        layer_forwards_shared: What it added to the study: its masks that no search before it, in the study's order,
            had asked for.
        seconds: Wall-clock of the process that finished it.
        path: The lowest loss by number of layers removed, from 1 up.
        best_so_far: The lowest loss of a mask with M layers after so many evaluations: ``(evaluations, loss)``.
        assessed: By the name of a metric.
        error_to_best: Standard error of the difference to the lowest loss that any search found for the same model,
            calibration and M, on the same samples; 0 for that search itself, None where there is none. With it,
            it tells ties far more sharply than `delta_error`.
    """

    removed: tuple[int, ...]
    measure: Measure
    dense_loss: float
    loss: float
    delta_error: float | None
    evaluations: int
    layer_forwards_alone: float
    layer_forwards_naive: float
    layer_forwards_shared: float
    seconds: float
    path: Mapping[int, float]
    best_so_far: Sequence[tuple[int, float]]
    assessed: Mapping[str, Estimate] = field(default_factory=dict)
    error_to_best: float | None = None


@dataclass(frozen=True)
class CellResult:
    """One search of the study, by the labels it has there.

    Args:
        model: Of the model.
        calibration: Of objective and data.
        searcher: Of the searcher and its options.
        remove: M, how many layers go.
        seed: Of the searcher's random numbers.
        state: How it ended; ``waiting`` if it has not run, ``stopped`` if its budget ended it.
        failure: Why, if it failed.
        search_id: The search's name; None before it has one.
        link: Where its MLflow run is to be seen; None if it was not recorded.
        outcome: What it found; None if it has not.
    """

    model: str
    calibration: str
    searcher: str
    remove: int
    seed: int
    state: State
    failure: str | None
    search_id: str | None
    link: str | None
    outcome: Outcome | None

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Add what was found to what was searched, without curves."""
        fields: dict[str, Any] = write(self)
        found = fields.pop("outcome")
        if found is None:
            return fields
        forwards = {kind: found.pop(f"layer_forwards_{kind}") for kind in ("shared", "alone", "naive")}
        del found["path"], found["best_so_far"]
        return {**fields, **found, "layer_forwards": forwards}


@dataclass(frozen=True)
class StudyResult:
    """A study.

    Args:
        study_id: Names it.
        name: For people.
        cells: Its searches, in the study's order.
        n_layers: N by model.
        metrics: What checkpoints were assessed by, in the order of the tables' columns.
        dense: By model, what the dense model was assessed at, by the name of a metric.
        facts: What a reader must know to trust it, by subject: command, data, versions, machine, date.
        link: Where the study's MLflow run is to be seen; None if it was not recorded.
    """

    study_id: str
    name: str
    cells: Sequence[CellResult]
    n_layers: Mapping[str, int]
    metrics: Sequence[Metric]
    dense: Mapping[str, Mapping[str, Estimate]]
    facts: Mapping[str, str]
    link: str | None = None

    @property
    def layer_forwards(self) -> dict[str, float]:
        """The total cost of the searches: ``shared`` in this study, ``separate`` one by one, ``naive``."""
        found = [cell.outcome for cell in self.cells if cell.outcome is not None]
        return {
            "shared": sum(outcome.layer_forwards_shared for outcome in found),
            "separate": sum(outcome.layer_forwards_alone for outcome in found),
            "naive": sum(outcome.layer_forwards_naive for outcome in found),
        }

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Add the sums, and leave out what only reports show."""
        fields: dict[str, Any] = write(self)
        shown = ("study_id", "name", "metrics", "dense", "cells")
        return {**{name: fields[name] for name in shown}, "layer_forwards": self.layer_forwards}
