"""The tables of results: the leaderboard, losses on the calibration, and what checkpoints were assessed by.

The latter two are in the shape of the papers'. Source: Kim et al. 2026 (arXiv 2604.24938), Tables 1 to 3, 6 and 7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd

from raysearch.core.estimate import Estimate, plus_minus
from raysearch.core.formatting import as_typed, count
from raysearch.core.json import finite
from raysearch.core.measure import Measure
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.comparison import Comparison, Rival, compare, on_shared_draws
from raysearch.reporting.stats.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    Setting,
    by_column,
    fresh_loss,
    has,
    quantity_of,
    searcher_means,
    settings,
    tidy,
)
from raysearch.reporting.stats.ranking import ranks_of
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, layers, number, present, tabulate

LEADERBOARD_NOTE = (
    "Means over the draws that all searchers have, and over seeds; bold: the lowest. A held-out loss is that on the "
    "samples of the other draws, which the search has not seen. Ranks count from 1, the lowest loss, and equal "
    "losses share theirs; the mean is over the settings in which the searcher has a mask. It is a description: "
    "which differences are significant is said under Verdicts."
)
LOSS_NOTE = (
    "Over the draws that all searchers have. Bold: the lowest loss of its M. Shaded: not significantly worse. ± is one "
    "standard error of the loss over dense, by the choice of samples, over draws where there are several; sd is the "
    "standard deviation over the seeds of a draw; noise is what explains 19 of 20 differences of this pair alone, "
    "where the shading is corrected for all pairs. Held-out loss: on the samples of the other draws, where the mask is "
    "not flattered by having been chosen. Layers are counted from 0; of several searches the layers of the lowest loss "
    "over dense are shown."
)
RESULT_NOTE = (
    "Of several searches the mean, of perplexities the geometric one. Bold: the best of its M. Shaded: not "
    "significantly worse. Small print: ± one standard error, by the choice of items and, where there are several, of "
    "draws; sd, the standard deviation over the seeds of a draw; the percentage of the dense model's accuracy that is "
    "kept; × the dense model's. Speeds of two models here are of different times: raysearch show has the ratio of "
    "neighbours."
)
TEXTS_NOTE = (
    "A description, of which nothing is best: a model that has broken down may repeat nothing. Small print: × the "
    "dense model's."
)
_Panels = Sequence[tuple[Setting, pd.DataFrame]]


def leaderboard_tables(frame: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return for each model a table of searchers by settings, the best mean rank first.

    Args:
        frame: The searches, see `cells_frame`.
        options: The options of each searcher, by its label.
    """
    groups = frame[frame["comparable"]].groupby("model", observed=True)
    return present(*(_leaderboard(place, str(of), cells, options) for place, (of, cells) in enumerate(groups, 1)))


def _leaderboard(place: int, model: str, cells: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """Return a model's table, by held-out loss if all have one, else by the loss over the dense model's."""
    quantity, column, form, what = fresh_loss(cells), HELD_OUT_LOSS.key, numbers.loss, HELD_OUT_LOSS.title
    if quantity is CALIBRATION_LOSS:
        column, form, what = "delta", numbers.change, "loss over the dense model's on the calibration"
    shared = pd.concat(on_shared_draws(of, quantity) for _, of in settings(cells))
    if shared.empty:
        return None  # searches of which only assessed numbers are known
    means = searcher_means(shared).xs(model)
    losses = tidy(means[column].dropna().unstack("searcher"))  # a row a setting
    ranks = ranks_of(losses).mean()
    lines = ranks.to_frame("rank").join(means["evaluations"].groupby("searcher", observed=True).mean()).reset_index()
    lines["options"] = [_options(options.get(searcher, {})) for searcher in lines["searcher"]]
    of_settings = ((f"{calibration}, M = {remove}", row) for (calibration, remove), row in losses.iterrows())
    columns = [
        Column("Searcher", lambda line: Cell(line.searcher, small=line.options), kind="who"),
        number("Mean rank", "rank", numbers.figure),
        *(Column(title, partial(_loss_of, row, form)) for title, row in of_settings),
        number("Evaluations", "evaluations", numbers.amount),
    ]
    ordered = sorted(lines.itertuples(), key=lambda line: (line.rank, line.searcher))
    title = f"{model}: searchers by mean rank of the {what}"
    return tabulate(f"leaderboard_{place}", title, columns, ordered, LEADERBOARD_NOTE)


def _loss_of(losses: pd.Series, form: Callable[[float], str], line: Any) -> Cell:
    """Return a searcher's loss in a setting whose losses these are."""
    loss = losses[line.searcher]
    return Cell(form(loss), finite(loss), best=loss == losses.min())


def _options(options: Mapping[str, Any]) -> str:
    """Return a searcher's options as they are typed; its type is in its label."""
    return ", ".join(f"{name}={as_typed(value)}" for name, value in options.items() if name != "type")


@dataclass(frozen=True)
class _Found:
    """A searcher's searches in a setting, and it beside the others by each quantity that it has."""

    setting: Setting
    searcher: str
    cells: pd.DataFrame
    compared: Mapping[Quantity, tuple[Comparison, Rival]]

    @property
    def rival(self) -> Rival:
        """It beside the others, by the loss."""
        return self.compared[CALIBRATION_LOSS][1]

    @property
    def only_link(self) -> str | None:
        """Its run, if it is one."""
        return self.cells["link"].iloc[0] if len(self.cells) == 1 else None


def degeneration_tables(analysis: Analysis) -> list[Table]:
    """For each model and calibration what the generated texts show besides their scores; M below M."""
    quantities = [one for one in _quantities(analysis) if one.group == "degeneration"]
    found = (
        _assessed_table(f"texts_{place}", f"{title}: written texts", panels, quantities, dense, TEXTS_NOTE)
        for place, title, panels, dense in _by_calibration(analysis)
    )
    return present(*found)


def result_tables(analysis: Analysis) -> list[Table]:
    """For each model and calibration the losses on it, then what the checkpoints were assessed by; M below M."""
    quantities = [one for one in _quantities(analysis) if one.group not in ("degeneration", "failures")]
    found = []
    for place, title, panels, dense in _by_calibration(analysis):
        compared = [one for one in analysis.by_loss if one.setting in dict(panels)]
        found += [
            _loss_table(f"losses_{place}", title, pd.concat(cells for _, cells in panels), compared),
            _assessed_table(f"results_{place}", f"{title}: assessed checkpoints", panels, quantities, dense),
        ]
    return present(*found)


def _by_calibration(analysis: Analysis) -> Iterator[tuple[int, str, _Panels, dict[str, Estimate]]]:
    """Yield a number, a title, the settings and the dense model's results of each model and calibration."""
    groups = itertools.groupby(settings(analysis.frame), key=lambda pair: pair[0][:2])
    for place, ((model, calibration), panels) in enumerate(groups, 1):
        dense = by_column(analysis.results.dense.get(model, {}), analysis.results)
        yield place, f"{model}, calibrated by {calibration}", list(panels), dense


def _quantities(analysis: Analysis) -> list[Quantity]:
    """The metrics that some search has, each group followed by its average."""
    found: list[Quantity] = []
    for group, metrics in itertools.groupby(analysis.results.metrics, key=lambda metric: metric.group):
        found += map(quantity_of, metrics)
        found += [one for one in analysis.averages if one.group == group and len(one.metrics) > 1]
    return [one for one in dict.fromkeys(found) if has(analysis.frame, one)]


def _loss_table(name: str, title: str, cells: pd.DataFrame, compared: Sequence[Comparison]) -> Table | None:
    """Losses on the calibration, the best first."""
    measure, dense = cells["measure"].iloc[0], fmean(cells.drop_duplicates("draw")["dense_loss"])
    columns = [
        *_SEARCHER,
        Column(
            "Loss",
            partial(_loss, measure),
            small=measure.unit,
            dense=Cell(numbers.loss(dense), dense, small=_reading(measure, dense)),
        ),
        Column("Over dense", _over_dense),
        Column("Behind the best", _behind),
        Column("Held-out loss", _held_out, may_hide=True),
        Column("Removed layers", _removed, kind="layers"),
    ]
    records = [
        _Found(one.setting, rival.searcher, rival.cells, {CALIBRATION_LOSS: (one, rival)})
        for one in compared
        for rival in one.rivals
    ]
    return tabulate(name, f"{title}: losses", columns, records, LOSS_NOTE, has_dense=True)


def _loss(measure: Measure, one: _Found) -> Cell:
    rival = one.rival
    spread = "" if rival.spread is None else f"sd {numbers.loss(rival.spread)}"
    return Cell(
        numbers.loss(rival.mean),
        rival.mean,
        small="\n".join(filter(None, (_reading(measure, rival.mean), spread))),
        best=rival.behind == 0,
        tied=bool(rival.tied),
        link=one.only_link,
    )


def _over_dense(one: _Found) -> Cell:
    delta, error = float(one.cells["delta"].mean()), one.rival.error
    return Cell(numbers.change(delta), delta, error, small=plus_minus(error), link=one.only_link)


def _behind(one: _Found) -> Cell:
    rival = one.rival
    behind = "best" if rival.behind == 0 else numbers.change(rival.behind).removeprefix("+")
    noise = "noise not known" if rival.noise is None else f"noise {numbers.loss(rival.noise)}" if rival.noise else ""
    return Cell(behind, rival.behind, small=noise, tied=bool(rival.tied))


def _held_out(one: _Found) -> Cell:
    loss = float(one.cells["held_out"].mean(skipna=False))
    return Cell(numbers.loss(loss), finite(loss))


def _removed(one: _Found) -> Cell:
    best, n_masks = one.cells.loc[one.cells["delta"].idxmin()], len({*one.cells["removed"]} - {()})
    small = f"{count(len(one.cells), 'search', 'searches')} found {count(n_masks, 'mask')}" if n_masks > 1 else ""
    return layers(best["removed"], small=small, link=best["link"])


def _reading(measure: Measure, loss: float) -> str:
    """The readout of a loss: ``perplexity 11.35``."""
    if measure.readout is None or not math.isfinite(loss):
        return ""
    return f"{measure.readout} {numbers.figure(measure.read(loss))}"


def _assessed_table(
    name: str,
    title: str,
    panels: _Panels,
    quantities: Sequence[Quantity],
    dense: Mapping[str, Estimate],
    note: str = RESULT_NOTE,
) -> Table | None:
    """Return the table of assessed checkpoints, searchers in the study's order."""
    columns = [*_SEARCHER, *(_assessed_column(one, dense.get(one.key)) for one in quantities)]
    records = []
    for setting, cells in panels:
        compared = [found for one in quantities if (found := compare(setting, cells, one))]
        for searcher, mine in cells.groupby("searcher", observed=True):
            if own := {found.quantity: (found, rival) for found in compared if (rival := found.rival(searcher))}:
                records.append(_Found(setting, searcher, mine, own))
    return tabulate(name, title, columns, records, note, has_dense=bool(dense))


def _assessed_column(quantity: Quantity, dense: Estimate | None) -> Column:
    """The column of a quantity; an arrow says which way is better."""
    described = quantity.group == "degeneration"

    def show(one: _Found) -> Cell:
        if quantity not in one.compared:
            return Cell(numbers.UNKNOWN)
        found, rival = one.compared[quantity]
        alike = quantity.group == "speed" and all(one.behind == 0 for one in found.rivals)  # one time for each M
        ranked = not alike and not described
        spread = "" if rival.spread is None else f"sd {numbers.value(rival.spread, quantity)}"
        lines = [plus_minus(rival.error), spread, _kept(rival.mean, quantity, dense)]
        return Cell(
            numbers.value(rival.mean, quantity),
            rival.mean,
            rival.error,
            small="\n".join(filter(None, lines)),
            best=rival.behind == 0 and ranked,
            tied=bool(rival.tied) and ranked,
            link=one.only_link,
        )

    top = Cell(numbers.UNKNOWN)
    if dense is not None:
        top = Cell(numbers.value(dense.value, quantity), dense.value, dense.error, small=plus_minus(dense.error))
    arrow = "↑" if quantity.higher_is_better else "↓"
    title = numbers.capital(quantity.title)
    return Column(title if described else f"{title}\u00a0{arrow}", show, small=numbers.unit(quantity), dense=top)


def _kept(mean: float, quantity: Quantity, dense: Estimate | None) -> str:
    """The share of the dense model's accuracy that is kept, or the ratio to its speed or perplexity."""
    if dense is None or dense.value <= 0:
        return ""
    if quantity.group in ("accuracy", "generation", "probe"):
        return numbers.percent(mean / dense.value)
    alone = quantity.group == "perplexity" and len(quantity.metrics) < 2
    return "" if alone else f"× {numbers.ratio_text(mean / dense.value)}"


def _searcher(one: _Found) -> Cell:
    return Cell(f"{one.searcher} †" if (one.cells["state"] == "stopped").any() else one.searcher)


def _seeds(one: _Found) -> Cell:
    in_draws = one.cells.groupby("draw")["seed"].nunique()
    n_seeds = int(in_draws.max())
    return Cell(str(n_seeds), n_seeds, small=f"in each of {len(in_draws)} draws" if len(in_draws) > 1 else "")


#: What both tables begin with.
_SEARCHER = (
    number("M", "setting.remove", groups=True, dense=Cell("0", 0)),
    Column("Searcher", _searcher, kind="who", dense=Cell("Dense")),
    Column("Seeds", _seeds, may_hide=True),
)
