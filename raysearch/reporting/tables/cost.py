"""The tables of searches: what each cost, and every one with its run."""

from __future__ import annotations

import math

import pandas as pd

from raysearch.core.formatting import short_duration
from raysearch.reporting.stats.comparison import summarise
from raysearch.reporting.stats.frame import Quantity, settings
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Row, Table, heads


def cost_table(frame: pd.DataFrame, quality: Quantity | None) -> Table | None:
    """The cost and the loss of each searcher, mean over seeds."""
    titles = [
        "Model",
        "Calibration",
        "M",
        "Searcher",
        "Evaluations",
        "Layer-forwards",
        "Full forwards",
        "Shared",
        "Time",
    ]
    titles += ["Loss over dense"] + ([quality.title[0].upper() + quality.title[1:]] if quality else [])
    rows = []
    for setting, cells in settings(frame):
        scores = {one.searcher: one for one in (summarise(cells, quality) if quality else ())}
        for place, searcher in enumerate(dict.fromkeys(cells["searcher"])):
            mine = cells[cells["searcher"] == searcher]
            means = mine[
                [
                    "evaluations",
                    "layer_forwards_alone",
                    "layer_forwards_naive",
                    "layer_forwards_shared",
                    "seconds",
                    "delta",
                ]
            ].mean()
            alone, naive = float(means["layer_forwards_alone"]), float(means["layer_forwards_naive"])
            score = scores.get(searcher)
            row = [
                Cell(setting.model),
                Cell(setting.calibration),
                Cell(str(setting.remove), setting.remove),
                Cell(searcher),
                *(_amount(float(means[name])) for name in ("evaluations", "layer_forwards_alone")),
                Cell(
                    numbers.amount(naive),
                    _value(naive),
                    small=f"× {numbers.ratio_text(naive / alone)}" if alone > 0 else "",
                ),
                _amount(float(means["layer_forwards_shared"])),
                _time(float(means["seconds"])),
                Cell(numbers.change(float(means["delta"])), _value(float(means["delta"]))),
            ]
            if quality is not None:
                mean = None if score is None else score.mean
                row.append(Cell(numbers.value(mean, quality), mean))
            rows.append(Row(row, "plain" if place else "first"))
    note = (
        "Means over seeds. Layer-forwards: runs of one layer over the whole calibration that the search needs by "
        "itself. Full forwards: the same with a full forward per mask, and × how many times as many. Shared: what it "
        "added to the study, as masks that an earlier search had asked for are not run again. Time: wall-clock of the "
        "process that finished the search, to which the ledger may have answered; it does not compare searchers."
    )
    return Table("costs", "What searches cost, and what came of it", heads(*titles), rows, note) if rows else None


def _time(seconds: float) -> Cell:
    return Cell(short_duration(seconds), seconds) if math.isfinite(seconds) else Cell(numbers.UNKNOWN)


def _amount(number: float) -> Cell:
    return Cell(numbers.amount(number), _value(number))


def _value(number: float) -> float | None:
    return number if math.isfinite(number) else None


def searches_table(frame: pd.DataFrame) -> Table:
    """Every search, one a row, linked to its run."""
    return _searches("searches", "Every search", frame)


def unfinished_table(frame: pd.DataFrame) -> Table | None:
    """The searches that failed, with the cause, were stopped or have not run; None if all finished."""
    rest = frame[frame["state"] != "finished"]
    return _searches("unfinished", "Failed, stopped or waiting", rest) if len(rest) else None


def _searches(name: str, title: str, frame: pd.DataFrame) -> Table:
    columns = heads(
        "Model",
        "Calibration",
        "M",
        "Searcher",
        "Seed",
        "State",
        "Loss",
        "Over dense",
        "Evaluations",
        "Removed layers",
        "Run",
        words=("State", "Removed layers", "Run"),
    )
    rows = []
    for cell in frame.to_dict("records"):
        link = cell["link"]
        rows.append(
            Row(
                [
                    Cell(cell["model"]),
                    Cell(cell["calibration"]),
                    Cell(str(cell["remove"]), cell["remove"]),
                    Cell(cell["searcher"]),
                    Cell(str(cell["seed"]), cell["seed"]),
                    Cell(cell["state"], small=cell["failure"] or ""),
                    Cell(numbers.loss(cell["loss"]), _value(cell["loss"]), link=link),
                    Cell(
                        numbers.change(cell["delta"]),
                        _value(cell["delta"]),
                        _known(cell["loss_error"]),
                        small=_plus_minus(cell["loss_error"]),
                    ),
                    _amount(cell["evaluations"]),
                    Cell(numbers.join_layers(cell["removed"]) or numbers.UNKNOWN, str(list(cell["removed"]))),
                    Cell(cell["search_id"] or "", link=link),
                ]
            )
        )
    return Table(name, title, columns, rows)


def _known(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _plus_minus(error: float | None) -> str:
    return "" if _known(error) is None else f"± {error:.4f}"


def totals_table(frame: pd.DataFrame) -> Table | None:
    """The layer-forwards of the whole study, with and without sharing."""
    ways = (
        ("Shared: the study as it ran", "layer_forwards_shared"),
        ("Separate: each search by itself", "layer_forwards_alone"),
        ("Naive: a full forward per mask", "layer_forwards_naive"),
    )
    totals = {title: float(frame[column].sum()) for title, column in ways}
    shared = next(iter(totals.values()))
    if not shared > 0:
        return None
    rows = [
        Row([Cell(title), _amount(total), Cell(f"× {numbers.ratio_text(total / shared)}", total / shared)])
        for title, total in totals.items()
    ]
    columns = heads("Way", "Layer-forwards", "Beside the study", words=("Way",))
    return Table("totals", "What the whole study ran", columns, rows, "Sums over all searches that found a mask.")
