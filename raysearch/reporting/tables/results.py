"""The tables of results: the leaderboard, losses on the calibration, and assessed numbers of checkpoints.

The last two have the shape of the paper's. Source: Kim et al. 2026 (arXiv 2604.24938), Tables 1 to 3, 6 and 7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from raysearch.core.estimate import Estimate
from raysearch.core.json import finite
from raysearch.core.measure import Measure
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison, Rival, compare, on_shared_draws
from raysearch.reporting.analysis.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    Setting,
    by_column,
    fresh_loss,
    has_quantity,
    quantity_of,
    searcher_means,
    settings,
    without_rounding_errors,
)
from raysearch.reporting.analysis.ranking import ranks_of
from raysearch.reporting.tables.table import Column, Table, TableCell, layers, number, present, tabulate
from raysearch.text import numbers
from raysearch.text.numbers import count, plus_minus
from raysearch.text.sentences import as_typed, capital

LEADERBOARD_NOTE = (
    "Means over seeds, and over the draws that all searchers have. Bold: the lowest. A held-out loss is the loss on "
    "the samples of the other draws, which the search has not seen. Rank 1 is the lowest loss, and equal losses "
    "share their rank. The mean rank is over the settings in which the searcher has a mask. This table does not test "
    "differences: the section Verdicts does."
)
LOSS_NOTE = (
    "The table has the draws that all searchers have. Bold: the lowest loss of its M. Shaded: not significantly "
    "worse. ± is one standard error of the loss over dense, which is due to the choice of samples; with several "
    "draws, it is over these. sd is the standard deviation over the seeds of a draw. noise is the size that 19 of 20 "
    "differences of this pair alone stay below by chance; the shading is corrected for all pairs. The held-out loss "
    "is on the samples of the other draws, so the choice of the mask does not make it look better. Layers are "
    "counted from 0. Of several searches, the table shows the layers with the lowest loss over dense."
)
RESULT_NOTE = (
    "Means over searches; for perplexities, the geometric mean. Bold: the best of its M. Shaded: not significantly "
    "worse. Small print: ± one standard error, which is due to the choice of items and, with several draws, of "
    "draws; sd, the standard deviation over the seeds of a draw; the percentage of the dense model's accuracy; the "
    "ratio to the dense model (×). The speeds of two models in this table were measured at different times: "
    "raysearch show has the ratio of two speeds that were measured in turns."
)
TEXTS_NOTE = (
    "No value of this table is best: a model that is broken may repeat nothing, too. Small print: the ratio to the "
    "dense model (×)."
)
_Panels = Sequence[tuple[Setting, pd.DataFrame]]


def leaderboard_tables(frame: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return for each model a table of searchers by settings, the best mean rank first.

    Args:
        frame: The searches, see `cells_frame`.
        options: The options of each searcher, by its label.

    Returns:
        The tables, one for each model.
    """
    groups = frame[frame["comparable"]].groupby("model", observed=True)
    tables = (_leaderboard(place, str(model), cells, options) for place, (model, cells) in enumerate(groups, 1))
    return present(*tables)


def _leaderboard(place: int, model: str, cells: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """Return a model's table, by held-out loss if all have one, else by the loss over the dense model's."""
    quantity = fresh_loss(cells)
    column = HELD_OUT_LOSS.key
    name = HELD_OUT_LOSS.title
    form: Callable[[float], str] = numbers.loss
    if quantity is CALIBRATION_LOSS:
        column = "delta"
        name = "loss over the dense model's on the calibration"
        form = numbers.change
    shared = pd.concat(on_shared_draws(searches, quantity) for _, searches in settings(cells))
    if shared.empty:
        return None  # only assessed numbers of the searches are known
    means = searcher_means(shared).xs(model)
    losses = without_rounding_errors(means[column].dropna().unstack("searcher"))  # a row a setting
    ranks = ranks_of(losses).mean()
    lines = ranks.to_frame("rank").join(means["evaluations"].groupby("searcher", observed=True).mean()).reset_index()
    lines["options"] = [_options(options.get(searcher, {})) for searcher in lines["searcher"]]
    titled_losses = ((f"{calibration}, M = {remove}", row) for (calibration, remove), row in losses.iterrows())
    columns = [
        Column("Searcher", lambda line: TableCell(line.searcher, small=line.options), kind="who"),
        number("Mean rank", "rank", numbers.rounded_if_known),
        *(Column(title, partial(_loss_of, row, form)) for title, row in titled_losses),
        number("Evaluations", "evaluations", numbers.amount),
    ]
    ordered = sorted(lines.itertuples(), key=lambda line: (line.rank, line.searcher))
    title = f"{model}: searchers by mean rank of the {name}"
    return tabulate(f"leaderboard_{place}", title, columns, ordered, LEADERBOARD_NOTE)


def _loss_of(losses: pd.Series, form: Callable[[float], str], line: Any) -> TableCell:
    """Return the loss of a line's searcher, among the losses of a setting."""
    loss = losses[line.searcher]
    return TableCell(form(loss), finite(loss), best=loss == losses.min())


def _options(options: Mapping[str, Any]) -> str:
    """Return the options of a searcher as a user types them, without its type, which is in its label."""
    return ", ".join(f"{name}={as_typed(value)}" for name, value in options.items() if name != "type")


@dataclass(frozen=True)
class _SearcherRow:
    """One searcher's results in a setting, and its comparison with the others by each available quantity.

    Args:
        cells: Its searches.
        compared: By quantity the comparison of all searchers, and the searcher in it.
    """

    setting: Setting
    searcher: str
    cells: pd.DataFrame
    compared: Mapping[Quantity, tuple[Comparison, Rival]]

    @property
    def rival(self) -> Rival:
        """The searcher as compared with the others by the loss on the calibration."""
        return self.compared[CALIBRATION_LOSS][1]

    @property
    def only_link(self) -> str | None:
        """The link of its run; None if it has several searches, or no run."""
        return self.cells["link"].iloc[0] if len(self.cells) == 1 else None


def degeneration_tables(analysis: Analysis) -> list[Table]:
    """Return a table of descriptions of the generated texts for each model and calibration, M by M."""
    quantities = [quantity for quantity in _quantities(analysis) if quantity.group == "degeneration"]
    tables = (
        _assessed_table(f"texts_{place}", f"{title}: written texts", panels, quantities, dense, TEXTS_NOTE)
        for place, title, panels, dense in _by_calibration(analysis)
    )
    return present(*tables)


def result_tables(analysis: Analysis) -> list[Table]:
    """Return for each model and calibration a table of losses and one of assessed checkpoints, M by M."""
    quantities = [quantity for quantity in _quantities(analysis) if quantity.group not in ("degeneration", "failures")]
    tables = []
    for place, title, panels, dense in _by_calibration(analysis):
        compared = [comparison for comparison in analysis.by_loss if comparison.setting in dict(panels)]
        tables += [
            _loss_table(f"losses_{place}", title, pd.concat(cells for _, cells in panels), compared),
            _assessed_table(f"results_{place}", f"{title}: assessed checkpoints", panels, quantities, dense),
        ]
    return present(*tables)


class _Group(NamedTuple):
    """The settings of a model and calibration, and the assessed numbers of the dense model by column."""

    number: int  # in the names of tables
    title: str
    panels: _Panels
    dense: Mapping[str, Estimate]


def _by_calibration(analysis: Analysis) -> Iterator[_Group]:
    """Yield the settings of each model and calibration."""
    groups = itertools.groupby(settings(analysis.frame), key=lambda pair: pair[0][:2])
    for place, ((model, calibration), panels) in enumerate(groups, 1):
        dense = by_column(analysis.results.dense.get(model, {}), analysis.results)
        yield _Group(place, f"{model}, calibrated by {calibration}", list(panels), dense)


def _quantities(analysis: Analysis) -> list[Quantity]:
    """Return the metrics that at least one search has, each group followed by its average."""
    quantities: list[Quantity] = []
    for group, metrics in itertools.groupby(analysis.results.metrics, key=lambda metric: metric.group):
        quantities += map(quantity_of, metrics)
        quantities += [average for average in analysis.averages if average.group == group and len(average.metrics) > 1]
    return [quantity for quantity in dict.fromkeys(quantities) if has_quantity(analysis.frame, quantity)]


def _loss_table(name: str, title: str, cells: pd.DataFrame, compared: Sequence[Comparison]) -> Table | None:
    """Return the table of losses on the calibration, the best first."""
    measure = cells["measure"].iloc[0]
    dense = fmean(cells.drop_duplicates("draw")["dense_loss"])
    columns = [
        *_SEARCHER,
        Column(
            "Loss",
            partial(_loss, measure),
            small=measure.unit,
            dense=TableCell(numbers.loss(dense), dense, small=_reading(measure, dense)),
        ),
        Column("Over dense", _over_dense),
        Column("Behind the best", _behind),
        Column("Held-out loss", _held_out, may_hide=True),
        Column("Removed layers", _removed, kind="layers"),
    ]
    records = [
        _SearcherRow(comparison.setting, rival.searcher, rival.cells, {CALIBRATION_LOSS: (comparison, rival)})
        for comparison in compared
        for rival in comparison.rivals
    ]
    return tabulate(name, f"{title}: losses", columns, records, LOSS_NOTE, has_dense=True)


def _loss(measure: Measure, row: _SearcherRow) -> TableCell:
    rival = row.rival
    spread = "" if rival.spread is None else f"sd {numbers.loss(rival.spread)}"
    return TableCell(
        numbers.loss(rival.mean),
        rival.mean,
        small=_join_lines(_reading(measure, rival.mean), spread),
        best=rival.behind == 0,
        tied=bool(rival.tied),
        link=row.only_link,
    )


def _join_lines(*lines: str) -> str:
    """Join the lines that are not empty."""
    return "\n".join(line for line in lines if line)


def _over_dense(row: _SearcherRow) -> TableCell:
    delta = float(row.cells["delta"].mean())
    error = row.rival.error
    return TableCell(numbers.change(delta), delta, error, small=plus_minus(error), link=row.only_link)


def _behind(row: _SearcherRow) -> TableCell:
    rival = row.rival
    behind = "best" if rival.behind == 0 else numbers.change(rival.behind).removeprefix("+")
    noise = ""
    if rival.noise is None:
        noise = "noise not known"
    elif rival.noise:
        noise = f"noise {numbers.loss(rival.noise)}"
    return TableCell(behind, rival.behind, small=noise, tied=bool(rival.tied))


def _held_out(row: _SearcherRow) -> TableCell:
    loss = float(row.cells["held_out"].mean(skipna=False))
    return TableCell(numbers.loss(loss), finite(loss))


def _removed(row: _SearcherRow) -> TableCell:
    best = row.cells.loc[row.cells["delta"].idxmin()]
    n_masks = len({*row.cells["removed"]} - {()})
    small = f"{count(len(row.cells), 'search', 'searches')} found {count(n_masks, 'mask')}" if n_masks > 1 else ""
    return layers(best["removed"], small=small, link=best["link"])


def _reading(measure: Measure, loss: float) -> str:
    """Return the readout of a loss: ``perplexity 11.35``; an empty text if there is none."""
    if measure.readout is None or not math.isfinite(loss):
        return ""
    return f"{measure.readout} {numbers.rounded_if_known(measure.read(loss))}"


def _assessed_table(
    name: str,
    title: str,
    panels: _Panels,
    quantities: Sequence[Quantity],
    dense: Mapping[str, Estimate],
    note: str = RESULT_NOTE,
) -> Table | None:
    """Return the table of assessed checkpoints, searchers in the study's order."""
    columns = [*_SEARCHER, *(_assessed_column(quantity, dense.get(quantity.key)) for quantity in quantities)]
    records = []
    for setting, cells in panels:
        all_comparisons = [compare(setting, cells, quantity) for quantity in quantities]
        comparisons = [comparison for comparison in all_comparisons if comparison is not None]
        for searcher, searches in cells.groupby("searcher", observed=True):
            compared_searcher: dict[Quantity, tuple[Comparison, Rival]] = {}
            for comparison in comparisons:
                rival = comparison.rival(searcher)
                if rival is not None:
                    compared_searcher[comparison.quantity] = (comparison, rival)
            if compared_searcher:
                records.append(_SearcherRow(setting, searcher, searches, compared_searcher))
    return tabulate(name, title, columns, records, note, has_dense=bool(dense))


def _assessed_column(quantity: Quantity, dense: Estimate | None) -> Column:
    """Return the column of a quantity; the arrow in its title shows whether more or less is better."""
    is_description = quantity.group == "degeneration"  # of which no value is the best

    def show(row: _SearcherRow) -> TableCell:
        if quantity not in row.compared:
            return TableCell(numbers.UNKNOWN)
        comparison, rival = row.compared[quantity]
        # all masks of one M may share one measured time
        all_are_equal = quantity.group == "speed" and all(rival.behind == 0 for rival in comparison.rivals)
        is_ranked = not all_are_equal and not is_description
        spread = "" if rival.spread is None else f"sd {quantity.text(rival.spread)}"
        small = _join_lines(plus_minus(rival.error), spread, _relative_to_dense(rival.mean, quantity, dense))
        return TableCell(
            quantity.text(rival.mean),
            rival.mean,
            rival.error,
            small=small,
            best=rival.behind == 0 and is_ranked,
            tied=bool(rival.tied) and is_ranked,
            link=row.only_link,
        )

    top = TableCell(numbers.UNKNOWN)
    if dense is not None:
        top = TableCell(quantity.text(dense.value), dense.value, dense.error, small=plus_minus(dense.error))
    arrow = "↑" if quantity.higher_is_better else "↓"
    title = capital(quantity.title)
    return Column(title if is_description else f"{title}\u00a0{arrow}", show, small=quantity.unit_text, dense=top)


def _relative_to_dense(mean: float, quantity: Quantity, dense: Estimate | None) -> str:
    """Return the share of the dense model's accuracy, or the ratio to its speed or average perplexity."""
    if dense is None or dense.value <= 0:
        return ""
    if quantity.group in ("accuracy", "generation", "probe"):
        return numbers.percent(mean / dense.value)
    is_single_perplexity = quantity.group == "perplexity" and len(quantity.metrics) < 2
    return "" if is_single_perplexity else f"× {numbers.ratio_text(mean / dense.value)}"


def _searcher(row: _SearcherRow) -> TableCell:
    return TableCell(f"{row.searcher} †" if (row.cells["state"] == "stopped").any() else row.searcher)


def _seeds(row: _SearcherRow) -> TableCell:
    by_draw = row.cells.groupby("draw")["seed"].nunique()
    n_seeds = int(by_draw.max())
    return TableCell(str(n_seeds), n_seeds, small=f"in each of {len(by_draw)} draws" if len(by_draw) > 1 else "")


#: The first columns of the tables of losses and of assessed checkpoints.
_SEARCHER = (
    number("M", "setting.remove", groups=True, dense=TableCell("0", 0)),
    Column("Searcher", _searcher, kind="who", dense=TableCell("Dense")),
    Column("Seeds", _seeds, may_hide=True),
)
