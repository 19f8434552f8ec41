"""The tables of searches: what each cost, what others had found at that cost, and every one with its run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from raysearch.core.estimate import plus_minus
from raysearch.core.json import finite
from raysearch.reporting.stats.frame import Quantity, Setting, searcher_means
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, layers, number, tabulate, words
from raysearch.studies.result import Outcome, StudyResult

_BUDGET_NOTE = (
    "A line a searcher, with the masks that it asked for and the loss of the one it found. Beside it, the lowest loss "
    "that random ones (random subsets, genetic, Bayesian) had found after as many masks; means over draws and seeds. "
    "Bold: the lowest of the line. All losses are those that the searchers chose by, so they flatter whoever tried "
    "most. A mask of a greedy or beam search costs less than one of a random search, as it shares a prefix with others."
)


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
        "Means over draws and seeds, of perplexities the geometric one. Layer-forwards: runs of one layer over the "
        "whole calibration that the search needs by itself, the dense model's among them. Full forwards: those of its "
        "masks with a full forward each, and × how many times as many. Shared: what it added to the study, as masks "
        "that an earlier search had asked for are not run again. Time: wall-clock of the process that finished the "
        "search, to which the ledger may have answered; it does not compare searchers."
    )
    records = searcher_means(frame, *([quality] if quality else [])).reset_index().itertuples()
    return tabulate("costs", "What searches cost, and what came of it", columns, records, note)


def _full_forwards(one: Any) -> Cell:
    naive, alone = one.layer_forwards_naive, one.layer_forwards_alone
    times = f"× {numbers.ratio_text(naive / alone)}" if alone > 0 else ""
    return Cell(numbers.amount(naive), finite(naive), small=times)


def searches_table(name: str, title: str, frame: pd.DataFrame) -> Table | None:
    """Searches, one a row, each linked to its run, and why it failed if it did; None if there are none."""
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
    return Cell(numbers.change(one.delta), finite(one.delta), error, small=plus_minus(error))


def totals_table(frame: pd.DataFrame) -> Table | None:
    """The layer-forwards of the whole study, with and without sharing."""
    ways = {
        "layer_forwards_shared": "Shared: the study as it ran",
        "layer_forwards_alone": "Separate: each search by itself",
        "layer_forwards_naive": "Naive: a full forward per mask",
    }
    totals = frame[list(ways)].dropna().sum().rename(ways).rename("total").rename_axis("way").reset_index()
    shared = totals["total"].iloc[0]
    totals["ratio"] = totals["total"] / shared
    columns = [
        words("Way", "way"),
        number("Layer-forwards", "total", numbers.amount),
        number("Beside the study", "ratio", lambda ratio: f"× {numbers.ratio_text(ratio)}"),
    ]
    note = "Sums over all searches that found a mask."
    return tabulate("totals", "What the whole study ran", columns, totals.itertuples() if shared > 0 else (), note)


class _Budget(NamedTuple):
    """A searcher of a setting beside those that may be stopped at any time.

    Args:
        spent: The masks that each searcher asked for in all.
        losses: Its own loss, and those of the others after as many masks; None where one of its searches had none.
    """

    setting: Setting
    searcher: str
    spent: Mapping[str, float]
    losses: Mapping[str, float | None]


def budget_table(results: StudyResult) -> Table | None:
    """Return what each random searcher had found at the cost of each other; None where there is none beside others."""
    found: dict[Setting, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    anytime: dict[str, None] = {}
    for cell in results.cells:
        if cell.outcome and cell.uses_objective and len(cell.outcome.removed) == cell.remove:
            found[Setting(cell.model, cell.calibration, cell.remove)][cell.searcher].append(cell.outcome)
            if cell.stochastic:
                anytime[cell.searcher] = None
    lines = []
    for setting, searchers in found.items():
        spent = {name: fmean(one.evaluations for one in of) for name, of in searchers.items()}
        for searcher, own in searchers.items():
            losses = {name: _loss_by(spent[searcher], searchers[name]) for name in anytime if name in searchers}
            losses[searcher] = fmean(one.loss for one in own)
            if len(losses) > 1:
                lines.append(_Budget(setting, searcher, spent, losses))
    columns = [
        *labels("setting."),
        words("Searcher", "searcher", kind="who"),
        number("Masks", lambda line: line.spent[line.searcher], numbers.amount),
        Column("Loss", lambda line: _loss(line.searcher, line)),
        *(Column(f"{numbers.capital(rival)} by then", partial(_rival, rival)) for rival in anytime),
    ]
    return tabulate("budgets", "At equal budget", columns, lines, _BUDGET_NOTE)


def _loss_by(evaluations: float, found: Sequence[Outcome]) -> float | None:
    reached = [[loss for spent, loss in one.best_so_far if spent <= evaluations] for one in found]
    return fmean(losses[-1] for losses in reached) if all(reached) else None


def _rival(rival: str, line: _Budget) -> Cell:
    return Cell("") if rival == line.searcher else _loss(rival, line)


def _loss(searcher: str, line: _Budget) -> Cell:
    loss = line.losses.get(searcher)
    if loss is None:
        return Cell(numbers.UNKNOWN)
    ended = line.spent[searcher]
    small = f"ended after {numbers.amount(ended)}" if ended < line.spent[line.searcher] else ""
    best = all(other is None or loss <= other for other in line.losses.values())
    return Cell(numbers.loss(loss), finite(loss), small=small, best=best)
