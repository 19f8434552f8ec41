"""A study's searches as one tidy table, a row each, from which statistics, tables and figures are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, mode
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.mask import Mask
from raysearch.studies.result import CellResult, Outcome, StudyResult

#: Contributions of items to a number, whose sum it is, by text or task.
Items = Sequence[npt.NDArray[np.float64]]

_AVERAGED: tuple[Group, ...] = ("perplexity", "accuracy", "generation")
_LABELS = ("model", "calibration", "searcher", "remove", "seed", "draw", "state", "failure", "search_id", "link")
_DECLARED = ("uses_objective", "stochastic")
_FOUND = ("comparable", "removed", "measure", "unit", "items", "held_out_by_draw", "source")
_NUMBERS = (
    "dense_loss", "loss", "loss_error", "delta", "error_to_best", "held_out", "held_out_error", "evaluations",
    "n_free", "n_samples", "layer_forwards_alone", "layer_forwards_naive", "layer_forwards_shared", "seconds",
)  # fmt: skip


class Setting(NamedTuple):
    """The searches of one model, calibration and M, in which searchers have the same task and unit of loss."""

    model: str
    calibration: str
    remove: int


class Panel(NamedTuple):
    """The searches of one model and M, by whatever calibration: what averages are compared in."""

    model: str
    remove: int


@dataclass(frozen=True)
class Quantity:
    """A number that every search has, by which searches are compared.

    Args:
        key: Its column; that of its standard error is ``key + "_error"``.
        ratio: Whether it is compared by ratios rather than by differences, as perplexities are.
        metrics: The names of the metrics that it is the mean of; none for a metric itself.
    """

    key: str
    title: str
    unit: str
    higher_is_better: bool
    ratio: bool = False
    metrics: tuple[str, ...] = ()
    group: Group | None = None

    @property
    def error(self) -> str:
        """The column of its standard error."""
        return f"{self.key}_error"

    @property
    def sign(self) -> int:
        """Times this, more is better."""
        return 1 if self.higher_is_better else -1

    @property
    def difference_unit(self) -> str:
        """The unit of differences, of logarithms where it is compared by ratios; empty where the setting decides."""
        return "nats" if self.ratio else "points" if self.unit == "%" else self.unit

    def of(self, cells: pd.DataFrame) -> pd.Series:
        """Return the numbers of some searches; their logarithms where it is compared by ratios."""
        return np.log(cells[self.key]) if self.ratio else cells[self.key]


#: The loss on the samples of the other draws of the calibration, which the search has not seen.
HELD_OUT_LOSS = Quantity("held_out", "held-out calibration loss", "", higher_is_better=False)

#: The loss on the calibration itself; its unit is the calibration's, so it is compared within a setting alone.
CALIBRATION_LOSS = Quantity("loss", "calibration loss", "", higher_is_better=False)


def column_of(metric: str) -> str:
    """The column of a metric by its name; the prefix keeps it apart from a search's own columns."""
    return f"assessed.{metric}"


def quantity_of(metric: Metric) -> Quantity:
    """A metric as a quantity."""
    key, ratio = column_of(metric.name), metric.group == "perplexity"
    return Quantity(key, metric.title, metric.unit, metric.higher_is_better, ratio, group=metric.group)


def averages(results: StudyResult) -> list[Quantity]:
    """The averages of the groups that were assessed, over the metrics of the unit and direction that most have."""
    found = []
    for group in _AVERAGED:
        if members := [one for one in results.metrics if one.group == group]:
            unit, higher_is_better = mode((one.unit, one.higher_is_better) for one in members)
            alike = [one for one in members if (one.unit, one.higher_is_better) == (unit, higher_is_better)]
            title = f"average {group}" if len(alike) > 1 else f"{group} on {alike[0].title}"
            names = tuple(one.name for one in alike)
            found.append(
                Quantity(f"{group}_average", title, unit, higher_is_better, group == "perplexity", names, group)
            )
    return found


def cells_frame(results: StudyResult) -> pd.DataFrame:
    """One row a search, in the study's order; a number that is not known is NaN.

    Returns:
        Columns of labels (``model`` … ``link``), ``comparable`` (it found a mask of the size asked for), ``removed`` (a
        tuple), ``measure``, ``held_out_by_draw`` (a mapping), numbers of the search (``loss``, ``delta`` over dense,
        ``layer_forwards_alone`` …), every metric as ``assessed.<name>`` and the averages, each with its standard error
        as ``…_error``. Models, calibrations and searchers are categories, so groups come out in the study's order.
    """
    quantities = [*map(quantity_of, results.metrics), *averages(results)]
    numbers = [*_NUMBERS, *(name for one in quantities for name in (one.key, one.error))]
    rows = [_row(cell, results) for cell in results.cells]
    frame = pd.DataFrame(rows, columns=[*_LABELS, *_DECLARED, *_FOUND, *numbers], dtype=object)
    types = {
        **{name: pd.CategoricalDtype(frame[name].unique()) for name in ("model", "calibration", "searcher")},
        **dict.fromkeys(("remove", "seed"), int),
        **dict.fromkeys(("comparable", *_DECLARED), bool),
        **dict.fromkeys(numbers, float),
    }
    return frame.astype(types)


def settings(frame: pd.DataFrame) -> Iterator[tuple[Setting, pd.DataFrame]]:
    """The comparable searches of each setting; models and calibrations in the study's order, M ascending."""
    for labels, cells in _comparable(frame).groupby([*Setting._fields], observed=True):
        yield Setting(*labels), cells


def panels(frame: pd.DataFrame) -> Iterator[tuple[Panel, pd.DataFrame]]:
    """The comparable searches of each model and M, of all calibrations together; models in the study's order."""
    for labels, cells in _comparable(frame).groupby([*Panel._fields], observed=True):
        yield Panel(*labels), cells


def searcher_means(frame: pd.DataFrame, *quantities: Quantity) -> pd.DataFrame:
    """Return the mean over draws and seeds of every number, by model, calibration, M and searcher.

    That of a quantity named is its `mean_of`, of all others the arithmetic one.
    """
    groups = _comparable(frame).groupby([*Setting._fields, "searcher"], observed=True)
    own = {one.key: groups[one.key].agg(partial(mean_of, one)) for one in quantities}
    return groups.mean(numeric_only=True).assign(**own)


def mean_of(quantity: Quantity, values: pd.Series) -> float:
    """Return the mean; the geometric one of quantities that are compared by ratios."""
    return float(np.exp(np.log(values).mean()) if quantity.ratio else values.mean())


def tidy(values: Any) -> Any:
    """Round numbers, or tables of them, to where only the order of additions parts them: 12 digits after the point."""
    return round(values, 12)


def fresh_loss(frame: pd.DataFrame) -> Quantity:
    """Return the held-out loss if all comparable searches have one, which flatters nobody; else the calibration's."""
    return HELD_OUT_LOSS if _comparable(frame)["held_out"].notna().all() else CALIBRATION_LOSS


def has(frame: pd.DataFrame, quantity: Quantity) -> bool:
    """Return whether any comparable search has this quantity."""
    return bool(_comparable(frame)[quantity.key].notna().any())


def headline(results: StudyResult, frame: pd.DataFrame) -> Quantity:
    """Return the number that a report opens with: the first average; where nothing was assessed, a loss of a setting.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
    """
    return next((average for average in averages(results) if has(frame, average)), None) or fresh_loss(frame)


def by_column(values: Mapping[str, Estimate], results: StudyResult) -> dict[str, Estimate]:
    """A checkpoint's metrics and averages by their columns, with standard errors where those are known.

    Metrics are of different data, so the errors of an average's are independent. An average is there only if every
    metric is: those over different sets of tasks do not compare.
    """
    found = {column_of(name): one for name, one in values.items()}
    for quantity in averages(results):
        members = [values[name] for name in quantity.metrics if name in values and math.isfinite(values[name].value)]
        if len(members) == len(quantity.metrics):
            errors = [one.error for one in members if one.error is not None]
            error = math.hypot(*errors) / len(errors) if len(errors) == len(members) else None
            found[quantity.key] = Estimate(fmean(one.value for one in members), error)
    return found


def is_ruined(found: Outcome, results: StudyResult) -> bool:
    """Whether a number that would be part of an average is not finite."""
    averaged = {name for one in averages(results) for name in one.metrics}
    return any(name in averaged and not math.isfinite(one.value) for name, one in found.assessed.items())


def of_shared_luck(frame: pd.DataFrame) -> list[str]:
    """The searchers that had the same random numbers in several draws of a calibration.

    A test over draws would take their luck, which is the same in each, for the searcher's doing.
    """
    by_seed = _comparable(frame[frame["stochastic"]]).groupby([*Setting._fields, "searcher", "seed"], observed=True)
    n_draws = by_seed["draw"].nunique()
    return list(n_draws[n_draws > 1].index.unique("searcher"))


def by_own_luck(frame: pd.DataFrame) -> pd.DataFrame:
    """The searches by searchers that use the objective and that had other luck, if any, in each draw."""
    return frame[frame["uses_objective"] & ~frame["searcher"].isin(of_shared_luck(frame))]


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["comparable"]]


def _row(cell: CellResult, results: StudyResult) -> dict[str, Any]:
    found = cell.outcome
    if found is None:
        labels = {name: vars(cell)[name] for name in (*_LABELS, *_DECLARED)}
        return {**labels, "comparable": False, "removed": (), "items": {}, "held_out_by_draw": {}, "source": ""}
    of_size = len(found.removed) in (0, cell.remove)  # nothing removed: the mask is not known, its numbers are
    derived = {
        "comparable": of_size,
        "removed": Mask.of(*found.removed).layers,
        "unit": found.measure.unit,
        "items": _items(found, results),
        "loss_error": found.delta_error,
        "delta": found.loss - found.dense_loss,
    }
    estimates = by_column(found.assessed, results)
    values = {key: one.value for key, one in estimates.items()}
    errors = {f"{key}_error": one.error for key, one in estimates.items()}
    return vars(cell) | vars(found) | derived | values | errors


def _items(found: Outcome, results: StudyResult) -> dict[str, Items]:
    """The contributions of items to each number of a search, by its column; those of an average, task by task.

    They add up to the number, or to its logarithm where it is compared by ratios, so the differences of two searches'
    contributions have the error of the difference of their numbers.
    """
    own = {name: np.asarray(parts) for name, parts in found.items.items() if len(parts)}
    items: dict[str, Items] = {column_of(name): (parts,) for name, parts in own.items()}
    for quantity in averages(results):
        if {*quantity.metrics} <= own.keys() & found.assessed.keys():
            values = [found.assessed[name].value for name in quantity.metrics]
            # the logarithm of a mean of perplexities moves with each as its share of their sum
            weights = [value / sum(values) if quantity.ratio else 1 / len(values) for value in values]
            items[quantity.key] = tuple(
                weight * own[name] for weight, name in zip(weights, quantity.metrics, strict=True)
            )
    return items
