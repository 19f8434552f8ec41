"""The tables of recoveries: what came back, what it cost, and whether the best mask before is still the best after."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from raysearch.core.estimate import Estimate, Metric, plus_minus, rank_correlation
from raysearch.core.formatting import figure
from raysearch.core.json import finite
from raysearch.recovery.record import RecoveryRecord, ThreeNumbers
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, number, present, tabulate, words
from raysearch.studies.result import RecoveredMask, StudyResult

_MANY = 10  # times as much, from which on no share is written in percent
_FEW = 3  # masks, below which there is no rank correlation


class _Number(NamedTuple):
    of: RecoveredMask
    numbers: ThreeNumbers


class _Ranks(NamedTuple):
    """The masks of one size, recovered in one way, by one number."""

    model: str
    remove: int
    way: str
    metric: Metric
    before: list[float]
    after: list[float]


def recovery_tables(results: StudyResult) -> list[Table]:
    """Return the tables of a study's recoveries; none if it has none."""
    return present(_numbers_table(results), _ranks_table(results), _costs_table(results))


def _numbers_table(results: StudyResult) -> Table | None:
    columns = [
        *_whose(),
        words("Number", lambda one: f"{one.numbers.metric.title} ({one.numbers.metric.unit})"),
        Column("Dense", lambda one: _cell(one.numbers.dense)),
        Column("Pruned", lambda one: _cell(one.numbers.pruned)),
        Column("Recovered", lambda one: _cell(one.numbers.recovered)),
        Column("Pruned / dense", lambda one: _share(one.numbers.kept)),
        Column("Recovered / dense", lambda one: _share(one.numbers.regained)),
    ]
    note = (
        "Small: one standard error, by the choice of windows, documents or items; of a ratio by the same ones of both "
        "models. The dense model, trained in the same way, tells what the data alone do."
    )
    records = [_Number(one, of) for one in results.recovered for of in one.record.numbers]
    return tabulate("recovery", "What training gave back", columns, records, note)


def _ranks_table(results: StudyResult) -> Table | None:
    columns = [
        *labels(calibration=False),
        words("Way", "way"),
        words("Number", "metric.title"),
        number("Masks", lambda one: len(one.before)),
        number("ρ", lambda one: rank_correlation(one.before, one.after), numbers.rho),
        words("Best before is best after", lambda one: "yes" if _is_best_before_and_after(one) else "no"),
    ]
    note = "ρ: the rank correlation of what masks of one size do before and after the same training."
    return tabulate("recovery_ranks", "Is the best mask still the best?", columns, _ranks(results), note)


def _costs_table(results: StudyResult) -> Table | None:
    columns = [
        *_whose(""),
        number("Rows", "record.rows", numbers.amount),
        number("Steps", "record.training.steps", numbers.amount),
        number("Tokens", "record.training.tokens", numbers.amount),
        number("Parameters", "record.training.parameters", numbers.amount),
        Column("Held-out loss", lambda one: _course(one.record)),
        number("Training", lambda one: one.record.seconds.get("training"), numbers.time),
        number("All", lambda one: sum(one.record.seconds.values()), numbers.time),
    ]
    note = (
        "Held-out loss: the first and the lowest, in nats per token; of distillation it is the distance from the dense "
        "model. Times are wall-clock, of the process in which each stage took longest."
    )
    return tabulate("recovery_costs", "What training cost", columns, results.recovered, note)


def _whose(path: str = "of.") -> list[Column]:
    return [
        words("Model", f"{path}model", groups=True, may_hide=True),
        words("Mask of", f"{path}searchers", groups=True),
        number("M", f"{path}remove", groups=True),
        words("Way", f"{path}record.way", groups=True),
    ]


def _ranks(results: StudyResult) -> Iterator[_Ranks]:
    found: dict[tuple[str, int, str], list[dict[str, ThreeNumbers]]] = defaultdict(list)
    for one in results.recovered:
        if one.remove:
            found[one.model, one.remove, one.record.way].append({of.metric.name: of for of in one.record.numbers})
    for place, masks in found.items():
        for name, first in masks[0].items():
            of_masks = [mask[name] for mask in masks if name in mask]
            described = first.metric.group in ("degeneration", "failures")
            if len(of_masks) == len(masks) >= _FEW and not described:
                before, after = [one.pruned.value for one in of_masks], [one.recovered.value for one in of_masks]
                yield _Ranks(*place, first.metric, before, after)


def _is_best_before_and_after(one: _Ranks) -> bool:
    """Return whether a mask is the best before and after, alone or of several that are as good."""
    best = max if one.metric.higher_is_better else min
    return (best(one.before), best(one.after)) in zip(one.before, one.after, strict=True)


def _cell(one: Estimate) -> Cell:
    text = numbers.UNKNOWN if math.isnan(one.value) else figure(one.value)
    return Cell(text, finite(one.value), one.error, plus_minus(one.error))


def _share(one: Estimate | None) -> Cell:
    if one is None:
        return Cell(numbers.UNKNOWN)
    if one.value >= _MANY:
        return Cell(f"{one.value:,.0f} ×", finite(one.value), one.error, plus_minus(one.error))
    return Cell(f"{100 * one.value:.1f} %", finite(one.value), one.error, plus_minus(one.error and 100 * one.error))


def _course(record: RecoveryRecord) -> Cell:
    losses = [loss for _, loss in record.training.held_out]
    if not losses:
        return Cell(numbers.UNKNOWN)
    return Cell(f"{losses[0]:.4f} → {min(losses):.4f}", min(losses))
