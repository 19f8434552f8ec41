"""The tables of searches: what each cost, and every one with its run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import Quantity, searcher_means
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, layers, number, tabulate, words


def cost_table(frame: pd.DataFrame, quality: Quantity | None) -> Table | None:
    """The cost and the loss of each searcher, mean over draws and seeds."""
    columns = [
        *labels(),
        words("Searcher", "searcher", kind="who"),
        number("Evaluations", "evaluations", numbers.amount),
        number("Layer-forwards", "layer_forwards_alone", numbers.amount),
        Column("Full forwards", _full_forwards),
        number("Shared", "layer_forwards_shared", numbers.amount),
        number("Time", "seconds", numbers.time),
        number("Loss over dense", "delta", numbers.change),
    ]
    if quality is not None:
        columns.append(number(numbers.capital(quality.title), quality.key, lambda mean: numbers.value(mean, quality)))
    note = (
        "Means over draws and seeds. Layer-forwards: runs of one layer over the whole calibration that the search "
        "needs by itself. Full forwards: the same with a full forward per mask, and × how many times as many. Shared: "
        "what it added to the study, as masks that an earlier search had asked for are not run again. Time: "
        "wall-clock of the process that finished the search, to which the ledger may have answered; it does not "
        "compare searchers."
    )
    records = searcher_means(frame).reset_index().itertuples()
    return tabulate("costs", "What searches cost, and what came of it", columns, records, note)


def _full_forwards(one: Any) -> Cell:
    naive, alone = one.layer_forwards_naive, one.layer_forwards_alone
    times = f"× {numbers.ratio_text(naive / alone)}" if alone > 0 else ""
    return Cell(numbers.amount(naive), finite(naive), small=times)


def searches_table(frame: pd.DataFrame) -> Table | None:
    """Every search, one a row, linked to its run."""
    return _searches("searches", "Every search", frame)


def unfinished_table(frame: pd.DataFrame) -> Table | None:
    """The searches that failed, with the cause, were stopped or have not run; None if all finished."""
    return _searches("unfinished", "Failed, stopped or waiting", frame[frame["state"] != "finished"])


def _searches(name: str, title: str, frame: pd.DataFrame) -> Table | None:
    columns = [
        *labels(),
        words("Searcher", "searcher", kind="who"),
        number("Seed", "seed"),
        words("Draw", "draw", may_hide=True),
        Column("State", lambda one: Cell(one.state, small=one.failure or ""), kind="w"),
        Column("Loss", lambda one: Cell(numbers.loss(one.loss), finite(one.loss), link=one.link)),
        Column("Over dense", _over_dense),
        number("Evaluations", "evaluations", numbers.amount),
        Column("Removed layers", lambda one: layers(one.removed), kind="layers"),
        Column("Run", lambda one: Cell(one.search_id or "", link=one.link), kind="w"),
    ]
    return tabulate(name, title, columns, frame.itertuples())


def _over_dense(one: Any) -> Cell:
    error = finite(one.loss_error)
    return Cell(numbers.change(one.delta), finite(one.delta), error, small=numbers.error(error, 4))


def totals_table(frame: pd.DataFrame) -> Table | None:
    """The layer-forwards of the whole study, with and without sharing."""
    ways = {
        "layer_forwards_shared": "Shared: the study as it ran",
        "layer_forwards_alone": "Separate: each search by itself",
        "layer_forwards_naive": "Naive: a full forward per mask",
    }
    totals = frame[list(ways)].sum().rename(ways).rename("total").rename_axis("way").reset_index()
    totals["ratio"] = totals["total"] / totals["total"].iloc[0]
    columns = [
        words("Way", "way"),
        number("Layer-forwards", "total", numbers.amount),
        number("Beside the study", "ratio", lambda ratio: f"× {numbers.ratio_text(ratio)}"),
    ]
    records: Iterable[Any] = totals.itertuples() if totals["total"].iloc[0] > 0 else ()
    return tabulate("totals", "What the whole study ran", columns, records, "Sums over all searches that found a mask.")
