"""What a study found, as plain values: all that a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysearch.measure import Measure

Group = Literal["perplexity", "accuracy", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number, and its standard error where one is known, in the same unit."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Metric:
    """Something that a checkpoint was assessed by.

    Args:
        name: Its key: ``hellaswag``.
        title: For people: ``HellaSwag``.
        group: What it belongs to; a group of perplexities, and one of accuracies, is averaged.
        unit: ``perplexity``, ``%``, ``tokens/s``, ``MB``, ``× dense``.
        higher_is_better: Whether more is better.
    """

    name: str
    title: str
    group: Group
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class Outcome:
    """What one search of the study found.

    Args:
        removed: The removed layers, 0-based, ascending.
        measure: What losses are counted in.
        dense_loss: The loss on the calibration with nothing removed.
        loss: The same with the layers removed.
        delta_error: Standard error of the difference of the two, by the choice of samples; None where there is none.
        evaluations: Masks that the searcher asked for.
        layer_forwards_alone: What the search would have run by itself, on an empty ledger, in layer-forwards.
        layer_forwards_naive: What a full forward per mask would have run.
        layer_forwards_shared: What it added to the study: its masks that no search before it, in the study's order,
            had asked for.
        seconds: Wall-clock of the process that finished it.
        path: The lowest loss by number of layers removed, from 1 up.
        best_so_far: The lowest loss of a mask with M layers after so many evaluations: ``(evaluations, loss)``.
        assessed: By the name of a metric.
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
        run_id: The search's name; None before it has one.
        link: Where its MLflow run is to be seen; None if it was not recorded.
        outcome: What it found; None if it has not.
    """

    model: str
    calibration: str
    searcher: str
    remove: int
    seed: int
    state: Literal["finished", "stopped", "failed", "waiting"]
    failure: str | None
    run_id: str | None
    link: str | None
    outcome: Outcome | None


@dataclass(frozen=True)
class StudyResults:
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
