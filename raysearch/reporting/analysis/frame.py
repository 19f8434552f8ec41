"""The searches of a study as one table, a row each, from which statistics, tables and figures are made."""

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
from raysearch.core.space import LAYERS
from raysearch.studies.result import CellResult, Outcome, StudyResult
from raysearch.text import numbers

#: The contributions of items to a number, which is their sum: an array for each text or task.
Items = Sequence[npt.NDArray[np.float64]]

_AVERAGED: tuple[Group, ...] = ("perplexity", "accuracy", "generation")
#: The columns that come from the cell itself: its labels, then what its searcher declares about itself.
_LABELS = ("model", "calibration", "searcher", "remove", "seed", "draw", "state", "failure", "search_id", "link")
_DECLARED = ("uses_objective", "stochastic")

#: The columns that come from the outcome of a search: those that are not numbers, then the numbers.
_OUTCOME_COLUMNS = ("comparable", "removed", "measure", "unit", "items", "held_out_by_draw", "source", "space")
_NUMBERS = (
    "dense_loss", "loss", "loss_error", "delta", "error_to_best", "held_out", "held_out_error", "evaluations",
    "n_free", "group", "n_samples", "layer_forwards_alone", "layer_forwards_naive", "layer_forwards_shared", "seconds",
)  # fmt: skip


class Setting(NamedTuple):
    """The labels of the searches of one model, calibration and M: searchers have the same task and unit of loss.

    Args:
        model: The model.
        calibration: The calibration.
        remove: M, the size of the masks.
    """

    model: str
    calibration: str
    remove: int


class Panel(NamedTuple):
    """The labels of the searches of one model and M, of all calibrations; averages are compared within a panel.

    Args:
        model: The model.
        remove: M, the size of the masks.
    """

    model: str
    remove: int


@dataclass(frozen=True)
class Quantity:
    """A number by which searches are compared.

    Args:
        key: Its column. The column of its standard error is ``key + "_error"``.
        title: Its name in tables and sentences.
        unit: Its unit; empty for losses, whose unit depends on the setting.
        higher_is_better: Whether a higher number is better.
        ratio: Whether it is compared by ratios rather than by differences, as perplexities are.
        metrics: The names of the metrics of which it is the mean; empty for a metric itself.
        group: The group of its metric or metrics; None for a loss.
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
        """The factor by which the number is multiplied so that more is better: 1 or -1."""
        return 1 if self.higher_is_better else -1

    @property
    def difference_unit(self) -> str:
        """The unit of differences, of logarithms for ratios; empty for losses, whose unit depends on the setting."""
        if self.ratio:
            return "nats"
        return "points" if self.unit == "%" else self.unit

    @property
    def unit_text(self) -> str:
        """The unit in which `text` shows a number."""
        return numbers.assessed_unit(self.unit)

    def text(self, number: float | None) -> str:
        """Return a number as papers print it, without its unit."""
        return numbers.assessed(number, self.group, self.unit)

    def difference_text(self, number: float) -> str:
        """Return a difference, or a ratio if the quantity is compared by ratios: ``2.10 points``, ``1.40 times``."""
        return f"{numbers.ratio_text(number)} times" if self.ratio else numbers.difference(number, self.unit)

    def values_of(self, cells: pd.DataFrame) -> pd.Series:
        """Return the numbers of some searches; their logarithms if the quantity is compared by ratios."""
        return np.log(cells[self.key]) if self.ratio else cells[self.key]


#: The loss on the samples of the other draws of the calibration. The search has not seen them.
HELD_OUT_LOSS = Quantity("held_out", "held-out calibration loss", "", higher_is_better=False)

#: The loss on the calibration itself. Its unit depends on the calibration, so it is compared only within a setting.
CALIBRATION_LOSS = Quantity("loss", "calibration loss", "", higher_is_better=False)


def column_of(metric: str) -> str:
    """Return the column of a metric by its name; the prefix avoids clashes with the other columns of a search."""
    return f"assessed.{metric}"


def quantity_of(metric: Metric) -> Quantity:
    """Return a metric as a quantity."""
    return Quantity(
        column_of(metric.name),
        metric.title,
        metric.unit,
        metric.higher_is_better,
        ratio=metric.group == "perplexity",
        group=metric.group,
    )


def averages(results: StudyResult) -> list[Quantity]:
    """Return the averages of the groups that were assessed.

    An average is over those metrics of its group that have the most frequent unit and direction.
    """
    quantities = []
    for group in _AVERAGED:
        if members := [metric for metric in results.metrics if metric.group == group]:
            unit, higher_is_better = mode((metric.unit, metric.higher_is_better) for metric in members)
            averaged = [
                metric for metric in members if (metric.unit, metric.higher_is_better) == (unit, higher_is_better)
            ]
            title = f"average {group}" if len(averaged) > 1 else f"{group} on {averaged[0].title}"
            names = tuple(metric.name for metric in averaged)
            quantities.append(
                Quantity(f"{group}_average", title, unit, higher_is_better, group == "perplexity", names, group)
            )
    return quantities


def cells_frame(results: StudyResult) -> pd.DataFrame:
    """Return a table of one row per search, in the study's order; an unknown number is NaN.

    Returns:
        Columns of labels (``model`` … ``link``), ``comparable`` (its mask has the requested size), ``removed`` (a
        tuple), ``measure``, ``held_out_by_draw`` (a mapping), numbers of the search (``loss``, ``delta`` over dense,
        ``layer_forwards_alone`` …), every metric as ``assessed.<name>`` and the averages, each with its standard error
        as ``…_error``. Models, calibrations and searchers are categories, so groups are in the study's order.
    """
    quantities = [*map(quantity_of, results.metrics), *averages(results)]
    numbers = [*_NUMBERS, *(name for quantity in quantities for name in (quantity.key, quantity.error))]
    rows = [_row(cell, results) for cell in results.cells]
    frame = pd.DataFrame(rows, columns=[*_LABELS, *_DECLARED, *_OUTCOME_COLUMNS, *numbers], dtype=object)
    types = {
        **{name: pd.CategoricalDtype(frame[name].unique()) for name in ("model", "calibration", "searcher")},
        **dict.fromkeys(("remove", "seed"), int),
        **dict.fromkeys(("comparable", *_DECLARED), bool),
        **dict.fromkeys(numbers, float),
    }
    return frame.astype(types)


def settings(frame: pd.DataFrame) -> Iterator[tuple[Setting, pd.DataFrame]]:
    """Yield the comparable searches of each setting; models and calibrations in the study's order, M ascending."""
    for labels, cells in _comparable(frame).groupby([*Setting._fields], observed=True):
        yield Setting(*labels), cells


def panels(frame: pd.DataFrame) -> Iterator[tuple[Panel, pd.DataFrame]]:
    """Yield the comparable searches of each model and M, of all calibrations; models in the study's order."""
    for labels, cells in _comparable(frame).groupby([*Panel._fields], observed=True):
        yield Panel(*labels), cells


def searcher_means(frame: pd.DataFrame, *quantities: Quantity) -> pd.DataFrame:
    """Return the mean over draws and seeds of every number, by model, calibration, M and searcher.

    Args:
        frame: The searches, see `cells_frame`.
        quantities: The quantities whose mean is that of `mean_of`. All other numbers have the arithmetic mean.

    Returns:
        A row for each model, calibration, M and searcher.
    """
    groups = _comparable(frame).groupby([*Setting._fields, "searcher"], observed=True)
    named_means = {quantity.key: groups[quantity.key].agg(partial(mean_of, quantity)) for quantity in quantities}
    return groups.mean(numeric_only=True).assign(**named_means)


def mean_of(quantity: Quantity, values: pd.Series) -> float:
    """Return the mean of a quantity's values; the geometric mean if it is compared by ratios.

    Args:
        quantity: The quantity.
        values: Its values.

    Returns:
        The mean.
    """
    return float(np.exp(np.log(values).mean()) if quantity.ratio else values.mean())


def without_rounding_errors(values: Any) -> Any:
    """Round numbers, or tables of them, to 12 decimals, so that the order of additions does not matter."""
    return round(values, 12)


def fresh_loss(frame: pd.DataFrame) -> Quantity:
    """Return the held-out loss if all comparable searches have one, since it flatters none; else the calibration's."""
    return HELD_OUT_LOSS if _comparable(frame)["held_out"].notna().all() else CALIBRATION_LOSS


def has_quantity(frame: pd.DataFrame, quantity: Quantity) -> bool:
    """Return whether any comparable search has a quantity.

    Args:
        frame: The searches, see `cells_frame`.
        quantity: The quantity.

    Returns:
        Whether there is such a search.
    """
    return bool(_comparable(frame)[quantity.key].notna().any())


def headline(results: StudyResult, frame: pd.DataFrame) -> Quantity:
    """Return the number with which a report opens: the first average; `fresh_loss` if nothing was assessed.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.

    Returns:
        The quantity.
    """
    return next((average for average in averages(results) if has_quantity(frame, average)), None) or fresh_loss(frame)


def by_column(values: Mapping[str, Estimate], results: StudyResult) -> dict[str, Estimate]:
    """Return the metrics and averages of a checkpoint by their columns, with standard errors where these are known.

    Metrics are measured on different data, so their errors are independent in an average. An average is given only if
    every one of its metrics is: averages over different sets of tasks are not comparable.

    Args:
        values: The metrics of the checkpoint, by name.
        results: The study, which defines the averages.

    Returns:
        The estimates by the names of the frame's columns.
    """
    estimates = {column_of(name): estimate for name, estimate in values.items()}
    for quantity in averages(results):
        members = [values[name] for name in quantity.metrics if name in values and math.isfinite(values[name].value)]
        if len(members) == len(quantity.metrics):
            errors = [estimate.error for estimate in members if estimate.error is not None]
            error = math.hypot(*errors) / len(errors) if len(errors) == len(members) else None
            estimates[quantity.key] = Estimate(fmean(estimate.value for estimate in members), error)
    return estimates


def is_ruined(outcome: Outcome, results: StudyResult) -> bool:
    """Return whether a number that would be part of an average is not finite.

    Args:
        outcome: The outcome of a search.
        results: The study, which defines the averages.

    Returns:
        Whether there is such a number.
    """
    averaged = {name for quantity in averages(results) for name in quantity.metrics}
    return any(name in averaged and not math.isfinite(estimate.value) for name, estimate in outcome.assessed.items())


def searchers_with_shared_seeds(frame: pd.DataFrame) -> list[str]:
    """Return the searchers that had the same random numbers in several draws of a calibration.

    Their luck is the same in each draw, so a test over draws would take it for an effect of the searcher.
    """
    by_seed = _comparable(frame[frame["stochastic"]]).groupby([*Setting._fields, "searcher", "seed"], observed=True)
    n_draws = by_seed["draw"].nunique()
    return list(n_draws[n_draws > 1].index.unique("searcher"))


def with_own_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the searches of the searchers that use the objective, without those of `searchers_with_shared_seeds`."""
    return frame[frame["uses_objective"] & ~frame["searcher"].isin(searchers_with_shared_seeds(frame))]


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["comparable"]]


def _row(cell: CellResult, results: StudyResult) -> dict[str, Any]:
    outcome = cell.outcome
    if outcome is None:
        labels = {name: vars(cell)[name] for name in (*_LABELS, *_DECLARED)}
        return {
            **labels,
            "comparable": False,
            "removed": (),
            "items": {},
            "held_out_by_draw": {},
            "source": "",
            "space": LAYERS,
        }
    derived = {
        # nothing removed: the mask is unknown, but its numbers are known
        "comparable": outcome.n_removed in (0, cell.remove),
        "removed": tuple(outcome.mask.parts),
        "unit": outcome.measure.unit,
        "items": _items(outcome, results),
        "loss_error": outcome.delta_error,
        "delta": outcome.loss - outcome.dense_loss,
    }
    estimates = by_column(outcome.assessed, results)
    values = {key: estimate.value for key, estimate in estimates.items()}
    errors = {f"{key}_error": estimate.error for key, estimate in estimates.items()}
    return vars(cell) | vars(outcome) | derived | values | errors


def _items(outcome: Outcome, results: StudyResult) -> dict[str, Items]:
    """Return the contributions of items to each number of a search, by its column; for an average, task by task.

    They add up to the number, or to its logarithm if it is compared by ratios. So the differences of the contributions
    of two searches have the error of the difference of their numbers.
    """
    contributions = {name: np.asarray(parts) for name, parts in outcome.items.items() if len(parts)}
    items: dict[str, Items] = {column_of(name): (parts,) for name, parts in contributions.items()}
    for quantity in averages(results):
        if {*quantity.metrics} <= contributions.keys() & outcome.assessed.keys():
            values = [outcome.assessed[name].value for name in quantity.metrics]
            # the derivative of the logarithm of a mean by the logarithm of one perplexity is its share of the sum
            weights = [value / sum(values) if quantity.ratio else 1 / len(values) for value in values]
            items[quantity.key] = tuple(
                weight * contributions[name] for weight, name in zip(weights, quantity.metrics, strict=True)
            )
    return items
