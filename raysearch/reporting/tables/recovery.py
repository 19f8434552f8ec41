"""The tables of recoveries: what was regained, its cost, and whether the best mask before is still the best after."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.json import finite
from raysearch.recovery.recovery_record import RecoveryRecord, ThreeNumbers
from raysearch.reporting.tables.table import Column, Table, TableCell, labels, number, present, tabulate, words
from raysearch.stats.rank import rank_correlation
from raysearch.studies.result import RecoveredMask, StudyResult
from raysearch.text import numbers
from raysearch.text.numbers import plus_minus, rounded

_LARGE_RATIO = 10  # ratios from here on are written as "12 ×" rather than in percent
_FEWEST = 3  # masks that a rank correlation needs


class _Number(NamedTuple):
    """A number of a recovered mask."""

    mask: RecoveredMask
    numbers: ThreeNumbers


class _Ranks(NamedTuple):
    """The values of one number before and after the recovery, for masks of one size and one method."""

    model: str
    remove: int
    method: str
    metric: Metric
    before: list[float]
    after: list[float]


def recovery_tables(results: StudyResult) -> list[Table]:
    """Return the tables of a study's recoveries; none if it has none."""
    return present(_numbers_table(results), _ranks_table(results), _costs_table(results))


def _numbers_table(results: StudyResult) -> Table | None:
    columns = [
        *_labels("mask."),
        words("Number", lambda row: f"{row.numbers.metric.title} ({row.numbers.metric.unit})"),
        Column("Dense", lambda row: _cell(row.numbers.dense)),
        Column("Pruned", lambda row: _cell(row.numbers.pruned)),
        Column("Recovered", lambda row: _cell(row.numbers.recovered)),
        Column("Pruned / dense", lambda row: _share(row.numbers.kept)),
        Column("Recovered / dense", lambda row: _share(row.numbers.regained)),
    ]
    note = (
        "Small print: one standard error, which is due to the choice of windows, documents or items. For a ratio, "
        "both models have the same items. The dense model, trained in the same way, shows the effect of the data "
        "alone."
    )
    records = [_Number(mask, three) for mask in results.recovered for three in mask.record.numbers]
    return tabulate("recovery", "What training gave back", columns, records, note)


def _ranks_table(results: StudyResult) -> Table | None:
    columns = [
        *labels(calibration=False),
        words("Way", "method"),
        words("Number", "metric.title"),
        number("Masks", lambda ranks: len(ranks.before)),
        number("ρ", lambda ranks: rank_correlation(ranks.before, ranks.after), numbers.rho),
        words("Best before is best after", lambda ranks: "yes" if _best_stays_best(ranks) else "no"),
    ]
    note = "ρ: the rank correlation of the results of masks of the same size before and after the same training."
    return tabulate("recovery_ranks", "Is the best mask still the best?", columns, _ranks(results), note)


def _costs_table(results: StudyResult) -> Table | None:
    columns = [
        *_labels(),
        number("Rows", "record.rows", numbers.amount),
        number("Steps", "record.training.steps", numbers.amount),
        number("Tokens", "record.training.tokens", numbers.amount),
        number("Parameters", "record.training.parameters", numbers.amount),
        Column("Held-out loss", lambda mask: _held_out_cell(mask.record)),
        number("Training", lambda mask: mask.record.seconds.get("training"), numbers.time),
        number("All", lambda mask: sum(mask.record.seconds.values()), numbers.time),
    ]
    note = (
        "Held-out loss: the first and the lowest loss, in nats per token. For distillation, it is the distance from "
        "the dense model. Times are wall-clock times of the process in which the stage took longest."
    )
    return tabulate("recovery_costs", "What training cost", columns, results.recovered, note)


def _labels(path: str = "") -> list[Column]:
    """Return the columns of model, mask, M and method, which are attributes of the record named by `path`."""
    return [
        words("Model", f"{path}model", groups=True, may_hide=True),
        words("Mask of", f"{path}searchers", groups=True),
        number("M", f"{path}remove", groups=True),
        words("Way", f"{path}record.way", groups=True),
    ]


def _ranks(results: StudyResult) -> Iterator[_Ranks]:
    masks_by_group: dict[tuple[str, int, str], list[RecoveredMask]] = defaultdict(list)
    for mask in results.recovered:
        if mask.remove:
            masks_by_group[mask.model, mask.remove, mask.record.way].append(mask)
    for (model, remove, method), masks in masks_by_group.items():
        if len(masks) < _FEWEST:
            continue
        for metric in [three.metric for three in masks[0].record.numbers]:
            of_masks = [three for mask in masks for three in mask.record.numbers if three.metric.name == metric.name]
            is_description = metric.group in ("degeneration", "failures")  # of which no value is the best
            if len(of_masks) == len(masks) and not is_description:
                before = [three.pruned.value for three in of_masks]
                after = [three.recovered.value for three in of_masks]
                yield _Ranks(model, remove, method, metric, before, after)


def _best_stays_best(ranks: _Ranks) -> bool:
    """Return whether a mask is the best both before and after; it may share that place with equal masks."""
    best = max if ranks.metric.higher_is_better else min
    best_before = best(ranks.before)
    best_after = best(ranks.after)
    pairs = zip(ranks.before, ranks.after, strict=True)
    return any(before == best_before and after == best_after for before, after in pairs)


def _cell(estimate: Estimate) -> TableCell:
    text = numbers.UNKNOWN if math.isnan(estimate.value) else rounded(estimate.value)
    return TableCell(text, finite(estimate.value), estimate.error, plus_minus(estimate.error))


def _share(estimate: Estimate | None) -> TableCell:
    if estimate is None:
        return TableCell(numbers.UNKNOWN)
    if estimate.value >= _LARGE_RATIO:
        return TableCell(f"{estimate.value:,.0f} ×", finite(estimate.value), estimate.error, plus_minus(estimate.error))
    error_percent = None if estimate.error is None else 100 * estimate.error
    text = f"{100 * estimate.value:.1f} %"
    return TableCell(text, finite(estimate.value), estimate.error, plus_minus(error_percent))


def _held_out_cell(record: RecoveryRecord) -> TableCell:
    losses = [loss for _, loss in record.training.held_out]
    if not losses:
        return TableCell(numbers.UNKNOWN)
    return TableCell(f"{losses[0]:.4f} → {min(losses):.4f}", min(losses))
