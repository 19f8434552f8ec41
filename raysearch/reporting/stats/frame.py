"""A study's searches as one tidy table, a row each, from which statistics, tables and figures are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.mask import Mask
from raysearch.study.result import CellResult, StudyResult

LOSS = "loss"
_AVERAGED: tuple[Group, ...] = ("perplexity", "accuracy")


class Setting(NamedTuple):
    """The searches of one model, calibration and M, in which searchers have the same task and unit of loss."""

    model: str
    calibration: str
    remove: int


@dataclass(frozen=True)
class Quantity:
    """A number that every search has, by which searches are compared.

    Args:
        key: Its column; that of its standard error is ``key + "_error"``.
        title: For people.
        unit: What it is counted in.
        higher_is_better: Whether more is better.
        ratio: Whether it is compared by ratios rather than by differences, as perplexities are.
        averaged: How many metrics it is the mean of; 1 for a metric itself.
        group: What it belongs to.
    """

    key: str
    title: str
    unit: str
    higher_is_better: bool
    ratio: bool = False
    averaged: int = 1
    group: Group | None = None

    @property
    def error(self) -> str:
        """The column of its standard error."""
        return f"{self.key}_error"

    @property
    def sign(self) -> int:
        """Times this, more is better."""
        return 1 if self.higher_is_better else -1


#: The loss on the calibration itself; its unit is the calibration's, so it is compared within a setting alone.
CALIBRATION_LOSS = Quantity(LOSS, "calibration loss", "", higher_is_better=False)


def column_of(metric: str) -> str:
    """The column of a metric by its name; the prefix keeps it apart from a search's own columns."""
    return f"assessed.{metric}"


def quantity_of(metric: Metric) -> Quantity:
    """A metric as a quantity."""
    key, ratio = column_of(metric.name), metric.group == "perplexity"
    return Quantity(key, metric.title, metric.unit, metric.higher_is_better, ratio, group=metric.group)


def averages(results: StudyResult) -> list[Quantity]:
    """The averages that the study has: of its perplexities and of its accuracies, whichever were assessed.

    Where only one metric was assessed, the average is that metric.
    """
    found = []
    for group in _AVERAGED:
        members = [metric for metric in results.metrics if metric.group == group]
        if members:
            title = f"average {group}" if len(members) > 1 else f"{group} on {members[0].title}"
            better, ratio = group == "accuracy", group == "perplexity"
            unit = members[0].unit
            found.append(Quantity(f"{group}_average", title, unit, better, ratio, len(members), group))
    return found


def cells_frame(results: StudyResult) -> pd.DataFrame:
    """One row a search, in the study's order; a number that is not known is NaN.

    Args:
        results: The study.

    Returns:
        Columns of labels (``model`` … ``link``), ``comparable`` (it found a mask of the size asked for), ``removed`` (a
        tuple), numbers of the search (``loss``, ``delta`` over dense, ``layer_forwards_alone`` …), every metric as
        ``assessed.<name>`` and the averages, each with its standard error beside it as ``…_error``.
    """
    rows = [_row(cell, results) for cell in results.cells]
    frame = pd.DataFrame(rows, columns=_columns(results), dtype=object)
    numeric = frame.columns[frame.columns.get_loc("dense_loss") :]
    return frame.astype(dict.fromkeys(numeric, float))


def settings(frame: pd.DataFrame) -> Iterator[tuple[Setting, pd.DataFrame]]:
    """The comparable searches of each setting; models and calibrations in the study's order, M ascending."""
    done = frame[frame["comparable"].astype(bool)]
    for model in _in_order(done, "model"):
        of_model = done[done["model"] == model]
        for calibration in _in_order(of_model, "calibration"):
            both = of_model[of_model["calibration"] == calibration]
            for remove in sorted(set(both["remove"])):
                yield Setting(model, calibration, int(remove)), both[both["remove"] == remove]


def searchers_of(cells: pd.DataFrame) -> list[str]:
    """The searchers of some searches, in the study's order."""
    return _in_order(cells, "searcher")


def calibrations_of(cells: pd.DataFrame) -> list[str]:
    """The calibrations of some searches, in the study's order."""
    return _in_order(cells, "calibration")


def has(frame: pd.DataFrame, quantity: Quantity) -> bool:
    """Whether any comparable search has this quantity."""
    return bool(frame.loc[frame["comparable"].astype(bool), quantity.key].notna().any())


def average(values: Mapping[str, Estimate], metrics: Sequence[Metric]) -> Estimate | None:
    """The arithmetic mean of metrics, and its standard error if each metric's is known.

    Metrics are of different data, so their errors are independent. None unless every metric is there: averages over
    different sets of tasks do not compare.
    """
    known = [values[metric.name] for metric in metrics if metric.name in values]
    if not metrics or len(known) < len(metrics) or any(not math.isfinite(one.value) for one in known):
        return None
    errors = [one.error for one in known if one.error is not None]
    error = math.sqrt(sum(e * e for e in errors)) / len(known) if len(errors) == len(known) else None
    return Estimate(math.fsum(one.value for one in known) / len(known), error)


def averages_of(values: Mapping[str, Estimate], results: StudyResult) -> dict[str, Estimate]:
    """The averages of a checkpoint's metrics, by the key of `averages`."""
    found = {}
    for quantity in averages(results):
        members = [metric for metric in results.metrics if metric.group == quantity.group]
        estimate = average(values, members)
        if estimate is not None:
            found[quantity.key] = estimate
    return found


def _in_order(cells: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(cells[column]))


def _columns(results: StudyResult) -> list[str]:
    labels = ["model", "calibration", "searcher", "remove", "seed", "state", "failure", "search_id", "link"]
    numbers = ["comparable", "removed", "unit", "dense_loss", "loss", "loss_error", "delta", "error_to_best"]
    costs = ["evaluations", "layer_forwards_alone", "layer_forwards_naive", "layer_forwards_shared", "seconds"]
    quantities = [*map(quantity_of, results.metrics), *averages(results)]
    return [*labels, *numbers, *costs, *(name for one in quantities for name in (one.key, one.error))]


def _row(cell: CellResult, results: StudyResult) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": cell.model,
        "calibration": cell.calibration,
        "searcher": cell.searcher,
        "remove": cell.remove,
        "seed": cell.seed,
        "state": cell.state,
        "failure": cell.failure,
        "search_id": cell.search_id,
        "link": cell.link,
        "comparable": False,
        "removed": (),
    }
    found = cell.outcome
    if found is None:
        return row
    of_size = len(found.removed) in (0, cell.remove)  # nothing removed: the mask is not known, its numbers are
    numbers = {
        "comparable": cell.state in ("finished", "stopped") and of_size,
        "removed": Mask.of(*found.removed).layers,
        "unit": found.measure.unit,
        "dense_loss": found.dense_loss,
        "loss": found.loss,
        "loss_error": found.delta_error,
        "delta": found.loss - found.dense_loss,
        "error_to_best": found.error_to_best,
        "evaluations": found.evaluations,
        "layer_forwards_alone": found.layer_forwards_alone,
        "layer_forwards_naive": found.layer_forwards_naive,
        "layer_forwards_shared": found.layer_forwards_shared,
        "seconds": found.seconds,
    }
    known = {name: one for name, one in found.assessed.items() if any(name == m.name for m in results.metrics)}
    estimates = {column_of(name): one for name, one in known.items()} | averages_of(found.assessed, results)
    assessed = {key: one.value for key, one in estimates.items()}
    errors = {f"{key}_error": one.error for key, one in estimates.items()}
    return row | numbers | assessed | errors
