"""The tables of results, in the shape of the papers': losses on the calibration, and what checkpoints were assessed by.

Source: Kim et al. 2026 (arXiv 2604.24938), Tables 1 to 3, 6 and 7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from raysearch.core.estimate import Estimate
from raysearch.core.formatting import count
from raysearch.core.measure import Measure
from raysearch.reporting.stats.comparison import Comparison, Rival, compare
from raysearch.reporting.stats.frame import (
    CALIBRATION_LOSS,
    Quantity,
    Setting,
    averages,
    averages_of,
    column_of,
    has,
    quantity_of,
    searchers_of,
    settings,
)
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Row, Table
from raysearch.study.result import StudyResult

LOSS_NOTE = (
    "Bold: the lowest loss of its M. Shaded: within noise of it. ± is one standard error by the choice of samples; sd "
    "is the standard deviation over seeds. Layers are counted from 0; of several seeds the best one's are shown."
)
RESULT_NOTE = (
    "Bold: the best of its M. Shaded: within noise of it. Small print: ± one standard error; sd, the standard "
    "deviation over seeds; the percentage of the dense model's accuracy that is kept; × the dense model's."
)
_Labels = tuple[str, str]


def result_tables(results: StudyResult, frame: pd.DataFrame) -> list[Table]:
    """For each model and calibration the losses on it, then what the checkpoints were assessed by; M below M."""
    quantities = _quantities(results, frame)
    by_calibration = itertools.groupby(settings(frame), key=lambda pair: (pair[0].model, pair[0].calibration))
    found = []
    for number, (labels, parts) in enumerate(by_calibration, 1):
        panels = list(parts)
        tables = (
            _loss_table(f"losses_{number}", labels, panels, results),
            _assessed_table(f"results_{number}", labels, panels, quantities, results) if quantities else None,
        )
        found += [table for table in tables if table is not None]
    return found


def _quantities(results: StudyResult, frame: pd.DataFrame) -> list[Quantity]:
    """The metrics that some search has, each group followed by its average."""
    found: list[Quantity] = []
    for group, metrics in itertools.groupby(results.metrics, key=lambda metric: metric.group):
        found += map(quantity_of, metrics)
        found += [one for one in averages(results) if one.group == group and one.averaged > 1 and one not in found]
    return [one for one in dict.fromkeys(found) if has(frame, one)]


def _loss_table(
    name: str, labels: _Labels, panels: Sequence[tuple[Setting, pd.DataFrame]], results: StudyResult
) -> Table | None:
    outcomes = [c.outcome for c in results.cells if (c.model, c.calibration) == labels and c.outcome is not None]
    measure, dense = outcomes[0].measure, outcomes[0].dense_loss
    rows = []
    for setting, cells in panels:
        comparison = compare(setting, cells, CALIBRATION_LOSS)
        for place, rival in enumerate(comparison.rivals if comparison else ()):
            mine = cells[cells["searcher"] == rival.summary.searcher]
            rows.append(Row(_loss_row(setting, rival, mine, measure), "plain" if place else "first"))
    if not rows:
        return None
    columns = [
        *(Column("M"), Column("Searcher", numeric=False), Column("Seeds")),
        *(Column("Loss", measure.unit), Column("Over dense"), Column("Behind the best")),
        Column("Removed layers", numeric=False),
    ]
    blank = [Cell("")] * 3
    top = [Cell("0", 0), Cell("Dense"), Cell(""), Cell(numbers.loss(dense), dense, small=_reading(measure, dense))]
    title = f"{labels[0]}, calibrated by {labels[1]}: losses"
    return Table(name, title, columns, [Row([*top, *blank], "dense"), *rows], LOSS_NOTE)


def _assessed_table(
    name: str,
    labels: _Labels,
    panels: Sequence[tuple[Setting, pd.DataFrame]],
    quantities: Sequence[Quantity],
    results: StudyResult,
) -> Table | None:
    rows = [row for setting, cells in panels for row in _assessed_rows(setting, cells, quantities, results)]
    if not rows:
        return None
    title = f"{labels[0]}, calibrated by {labels[1]}: assessed checkpoints"
    return Table(name, title, _heads(quantities), [*_dense_row(results, labels[0], quantities), *rows], RESULT_NOTE)


def _loss_row(setting: Setting, rival: Rival, cells: pd.DataFrame, measure: Measure) -> list[Cell]:
    summary = rival.summary
    best_seed = cells.loc[cells["loss"].idxmin()]
    delta = float(cells["delta"].mean())
    spread = "" if summary.spread is None else f"sd {summary.spread:.4f}"
    behind = "best" if rival.behind == 0 else numbers.change(rival.behind).removeprefix("+")
    noise = "noise not known" if rival.noise is None else f"noise {rival.noise:.4f}" if rival.noise else ""
    return [
        *_labels(setting, cells),
        Cell(
            numbers.loss(summary.mean),
            summary.mean,
            small="\n".join(line for line in (_reading(measure, summary.mean), spread) if line),
            best=rival.behind == 0,
            tied=bool(rival.tied),
            link=_only_link(cells),
        ),
        Cell(numbers.change(delta), delta, summary.error, small=_error(summary.error, 4), link=_only_link(cells)),
        Cell(behind, rival.behind, small=noise, tied=bool(rival.tied)),
        Cell(
            numbers.join_layers(best_seed["removed"]) or numbers.UNKNOWN,
            str(list(best_seed["removed"])),
            link=best_seed["link"],
            small=f"seeds found {count(len(summary.masks), 'mask')}" if len(summary.masks) > 1 else "",
        ),
    ]


def _labels(setting: Setting, cells: pd.DataFrame) -> list[Cell]:
    """M, the searcher, and its seeds, each of several linked to its run."""
    stopped = " †" if (cells["state"] == "stopped").any() else ""
    links = [(str(seed), link) for seed, link in zip(cells["seed"], cells["link"], strict=True) if link]
    return [
        Cell(str(setting.remove), setting.remove),
        Cell(cells["searcher"].iloc[0] + stopped),
        Cell(str(len(cells)), len(cells), links=links if len(cells) > 1 else ()),
    ]


def _only_link(cells: pd.DataFrame) -> str | None:
    return cells["link"].iloc[0] if len(cells) == 1 else None


def _reading(measure: Measure, loss: float) -> str:
    """The readout of a loss: ``perplexity 11.35``."""
    if measure.readout is None or not math.isfinite(loss):
        return ""
    value = measure.read(loss)
    text = f"{value:.3f}" if abs(value) < 10 else f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{measure.readout} {text}"


def _error(error: float | None, digits: int) -> str:
    return "" if error is None else f"±{error:.{digits}f}"


def _heads(quantities: Sequence[Quantity]) -> list[Column]:
    arrows = ["↑" if one.higher_is_better else "↓" for one in quantities]
    heads = [Column("M"), Column("Searcher", numeric=False), Column("Seeds")]
    titles = [one.title[0].upper() + one.title[1:] for one in quantities]
    units = map(numbers.unit, quantities)
    return heads + [Column(f"{t}\u00a0{a}", unit) for t, unit, a in zip(titles, units, arrows, strict=True)]


def _dense_row(results: StudyResult, model: str, quantities: Sequence[Quantity]) -> list[Row]:
    values = _dense(results, model)
    if not values:
        return []
    cells = [
        Cell(numbers.value(one.value, quantity), one.value, one.error, small=_error(one.error, 2))
        if (one := values.get(quantity.key)) is not None
        else Cell(numbers.UNKNOWN)
        for quantity in quantities
    ]
    return [Row([Cell("0", 0), Cell("Dense"), Cell(""), *cells], "dense")]


def _dense(results: StudyResult, model: str) -> Mapping[str, Estimate]:
    values = results.dense.get(model, {})
    return {column_of(name): one for name, one in values.items()} | averages_of(values, results)


def _assessed_rows(
    setting: Setting, cells: pd.DataFrame, quantities: Sequence[Quantity], results: StudyResult
) -> list[Row]:
    found = {quantity.key: compare(setting, cells, quantity) for quantity in quantities}
    dense = _dense(results, setting.model)
    rows: list[Row] = []
    for searcher in searchers_of(cells):
        mine = cells[cells["searcher"] == searcher]
        link = _only_link(mine)
        columns = [_assessed(found[one.key], searcher, one, dense.get(one.key), link) for one in quantities]
        if any(cell.value is not None for cell in columns):
            rows.append(Row([*_labels(setting, mine), *columns], "plain" if rows else "first"))
    return rows


def _assessed(
    comparison: Comparison | None, searcher: str, quantity: Quantity, dense: Estimate | None, link: str | None
) -> Cell:
    rivals = comparison.rivals if comparison else ()
    rival = next((one for one in rivals if one.summary.searcher == searcher), None)
    if rival is None:
        return Cell(numbers.UNKNOWN)
    summary = rival.summary
    spread = "" if summary.spread is None else f"sd {summary.spread:.2f}"
    lines = [_error(summary.error, 2), spread, _kept(summary.mean, quantity, dense)]
    alike = quantity.group == "speed" and all(one.behind == 0 for one in rivals)  # measured once for every M
    return Cell(
        numbers.value(summary.mean, quantity),
        summary.mean,
        summary.error,
        small="\n".join(filter(None, lines)),
        best=rival.behind == 0 and not alike,
        tied=bool(rival.tied) and not alike,
        link=link,
    )


def _kept(mean: float, quantity: Quantity, dense: Estimate | None) -> str:
    """The share of the dense model's accuracy that is kept, or the ratio to its speed or perplexity."""
    if dense is None or dense.value <= 0:
        return ""
    if quantity.group == "accuracy":
        return numbers.percent(mean / dense.value)
    alone = quantity.averaged == 1 and "average" not in quantity.key
    return "" if quantity.group == "perplexity" and alone else f"× {numbers.ratio_text(mean / dense.value)}"
