"""The tables of searches: their costs, their losses at equal cost, and a list of all with their runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.analysis.frame import Quantity, Setting, searcher_means
from raysearch.reporting.tables.table import Column, Table, TableCell, labels, layers, number, tabulate, words
from raysearch.studies.result import Outcome, StudyResult
from raysearch.text import numbers
from raysearch.text.numbers import plus_minus
from raysearch.text.sentences import capital

_BUDGET_NOTE = (
    "Each row has a searcher, the number of masks that it requested, and the loss of its best mask. The next columns "
    "have the lowest loss of each random searcher (random subsets, genetic, Bayesian) after the same number of "
    "masks. All numbers are means over draws and seeds. Bold: the lowest loss of the row. The searchers chose by "
    "these losses, so the losses favour a searcher that tried more masks. A mask of a greedy or beam search costs "
    "less than a mask of a random search, since it shares a prefix with other masks."
)


def cost_table(frame: pd.DataFrame, quality: Quantity | None) -> Table | None:
    """Return the table of the cost and the loss of each searcher, the mean over draws and seeds.

    Args:
        frame: The searches, see `cells_frame`.
        quality: An assessed number to show next to the cost; None for none.

    Returns:
        The table; None if there is no row.
    """
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
        columns.append(number(capital(quality.title), quality.key, quality.text))
    note = (
        "Means over draws and seeds; for perplexities, the geometric mean. Layer-forwards: the runs of a layer over "
        "the whole calibration that the search needs by itself, with those of the dense model. Full forwards: the "
        "layer-forwards if each mask had a forward of its own, and the ratio of the two numbers (×). Shared: the "
        "layer-forwards that the search added to the study, since a mask of an earlier search is not run again. "
        "Time: the wall-clock time of the process that finished the search. Do not compare searchers by it, because "
        "losses may come from the ledger."
    )
    records = searcher_means(frame, *([quality] if quality else [])).reset_index().itertuples()
    return tabulate("costs", "The cost and the result of each search", columns, records, note)


def _full_forwards(searcher: Any) -> TableCell:
    naive = searcher.layer_forwards_naive
    planned = searcher.layer_forwards_alone
    times = f"× {numbers.ratio_text(naive / planned)}" if planned > 0 else ""
    return TableCell(numbers.amount(naive), finite(naive), small=times)


def searches_table(name: str, title: str, frame: pd.DataFrame) -> Table | None:
    """Return a table of searches, one per row, each linked to its run, with the reason if it failed.

    Args:
        name: The name of its CSV file.
        title: The title of the table.
        frame: The searches, see `cells_frame`.

    Returns:
        The table; None if there are no searches.
    """
    columns = [
        *labels(),
        words("Searcher", "searcher", kind="who"),
        number("Seed", "seed"),
        words("Draw", "draw", may_hide=True),
        Column("State", lambda search: TableCell(search.state, small=search.failure or ""), kind="w"),
        Column("Loss", lambda search: TableCell(numbers.loss(search.loss), finite(search.loss), link=search.link)),
        Column("Over dense", _over_dense),
        number("Evaluations", "evaluations", numbers.amount),
        Column("Removed layers", lambda search: layers(search.removed), kind="layers"),
        Column("Run", lambda search: TableCell(search.search_id or "", link=search.link), kind="w"),
    ]
    return tabulate(name, title, columns, frame.itertuples())


def _over_dense(search: Any) -> TableCell:
    error = finite(search.loss_error)
    return TableCell(numbers.change(search.delta), finite(search.delta), error, small=plus_minus(error))


def totals_table(frame: pd.DataFrame) -> Table | None:
    """Return the table of the layer-forwards of the whole study, with and without sharing."""
    titles = {
        "layer_forwards_shared": "Shared: the study as it ran",
        "layer_forwards_alone": "Separate: each search by itself",
        "layer_forwards_naive": "Naive: a full forward per mask",
    }
    totals = frame[list(titles)].dropna().sum().rename(titles).rename("total").rename_axis("way").reset_index()
    shared = totals["total"].iloc[0]
    totals["ratio"] = totals["total"] / shared
    columns = [
        words("Way", "way"),
        number("Layer-forwards", "total", numbers.amount),
        number("Compared with the study", "ratio", lambda ratio: f"× {numbers.ratio_text(ratio)}"),
    ]
    note = "Sums over all searches that found a mask."
    return tabulate("totals", "What the whole study ran", columns, totals.itertuples() if shared > 0 else (), note)


class _BudgetLine(NamedTuple):
    """A searcher of a setting, and the random searchers, which have a best mask at any time.

    Args:
        setting: The setting.
        searcher: The label of the searcher.
        spent: The number of masks that each searcher requested in total.
        losses: Its loss, and those of the random searchers after as many masks; None if a search had none by then.
    """

    setting: Setting
    searcher: str
    spent: Mapping[str, float]
    losses: Mapping[str, float | None]


def budget_table(results: StudyResult) -> Table | None:
    """Return the table of the loss of each random searcher at the cost of each other searcher.

    Returns:
        The table; None without a random searcher, or without another searcher.
    """
    by_setting: dict[Setting, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    anytime: dict[str, None] = {}
    for cell in results.cells:
        if cell.outcome and cell.uses_objective and cell.outcome.n_removed == cell.remove:
            by_setting[Setting(cell.model, cell.calibration, cell.remove)][cell.searcher].append(cell.outcome)
            if cell.stochastic:
                anytime[cell.searcher] = None
    lines = []
    for setting, searchers in by_setting.items():
        spent = {name: fmean(outcome.evaluations for outcome in outcomes) for name, outcomes in searchers.items()}
        for searcher, outcomes in searchers.items():
            losses = {name: _loss_by(spent[searcher], searchers[name]) for name in anytime if name in searchers}
            losses[searcher] = fmean(outcome.loss for outcome in outcomes)
            if len(losses) > 1:
                lines.append(_BudgetLine(setting, searcher, spent, losses))
    columns = [
        *labels("setting."),
        words("Searcher", "searcher", kind="who"),
        number("Masks", lambda line: line.spent[line.searcher], numbers.amount),
        Column("Loss", lambda line: _loss(line.searcher, line)),
        *(Column(f"{capital(rival)} by then", partial(_rival, rival)) for rival in anytime),
    ]
    return tabulate("budgets", "At equal budget", columns, lines, _BUDGET_NOTE)


def _loss_by(evaluations: float, outcomes: Sequence[Outcome]) -> float | None:
    reached = [[loss for spent, loss in outcome.best_so_far if spent <= evaluations] for outcome in outcomes]
    return fmean(losses[-1] for losses in reached) if all(reached) else None


def _rival(rival: str, line: _BudgetLine) -> TableCell:
    return TableCell("") if rival == line.searcher else _loss(rival, line)


def _loss(searcher: str, line: _BudgetLine) -> TableCell:
    loss = line.losses.get(searcher)
    if loss is None:
        return TableCell(numbers.UNKNOWN)
    ended = line.spent[searcher]
    small = f"ended after {numbers.amount(ended)}" if ended < line.spent[line.searcher] else ""
    best = all(rival_loss is None or loss <= rival_loss for rival_loss in line.losses.values())
    return TableCell(numbers.loss(loss), finite(loss), small=small, best=best)
