"""The tables that answer: which searcher, which calibration, and which of the two choices matters more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.effect import CalibrationEffect
from raysearch.reporting.stats.frame import CALIBRATION_LOSS
from raysearch.reporting.stats.variance import Split
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, number, tabulate, words

NOTE = (
    "Within noise: the difference from the best is at most two standard errors by samples, joined with Student's "
    "97.5 % quantile times the standard error by seeds where there are several. Layer-forwards: of one search by "
    "itself, not sharing a ledger."
)


def verdict_tables(comparisons: Sequence[Comparison]) -> list[Table | None]:
    """For each quantity: in each setting the best searcher, which others tie with it, and the cheapest of these."""
    columns = [
        *labels("setting."),
        Column("Best", lambda one: Cell(one.best.searcher, small=_level(one), best=True), kind="name"),
        Column("Within noise of it", _others, kind="w"),
        Column("Cheapest of these", _cheapest, kind="name"),
        Column("How sure", lambda one: Cell(one.verdict, small=_unpredictable(one)), kind="w"),
    ]
    return [
        tabulate(
            f"verdicts_{quantity.key}",
            f"Searchers by {quantity.title}",
            columns,
            members,
            NOTE if quantity == CALIBRATION_LOSS else "",
        )
        for quantity, members in itertools.groupby(comparisons, key=lambda one: one.quantity)
    ]


def _level(one: Comparison) -> str:
    if one.quantity is CALIBRATION_LOSS:
        return f"loss {numbers.loss(one.best.mean)}"
    return numbers.with_unit(one.best.mean, one.quantity)


def _others(one: Comparison) -> Cell:
    return Cell(", ".join(rival.searcher for rival in one.tied if rival is not one.best) or "none")


def _cheapest(one: Comparison) -> Cell:
    """The cheapest searcher, its cost, and how much less that is than the cost of the best."""
    cheapest = one.cheapest
    if cheapest is None:
        return Cell("not known")
    cost = f"{numbers.amount(cheapest.cost)} layer-forwards"
    if cheapest is not one.best and cheapest.cost and math.isfinite(one.best.cost):
        cost += f"\n{numbers.ratio_text(one.best.cost / cheapest.cost)} × less than the best"
    return Cell(cheapest.searcher, small=cost)


def _unpredictable(one: Comparison) -> str:
    unknown = [rival.searcher for rival in one.rivals if rival.tied is None]
    return "" if not unknown or one.verdict == "cannot tell" else f"not told of {', '.join(unknown)}"


def effect_table(effects: Sequence[CalibrationEffect]) -> Table | None:
    """The best calibration by each average."""
    models = list(dict.fromkeys(one.panel.model for one in effects))
    columns = [
        *labels("panel.", calibration=False),
        words("By", "quantity.title"),
        Column("Best calibration", lambda one: Cell(one.best, best=bool(one.clear)), kind="w"),
        words("Next", "second"),
        Column("Better by", lambda one: Cell(numbers.difference(one.gain, one.quantity), one.gain)),
        Column("95 % interval", _interval),
        number("Searchers", "n_searchers"),
    ]
    note = (
        "Mean over the searchers that have a result by every calibration, paired by searcher; Student's interval takes "
        "the searchers for a sample. Perplexities are compared by their geometric mean ratio. Bold: the interval "
        "leaves out that there is no difference."
    )
    ordered = sorted(effects, key=lambda one: (models.index(one.panel.model), one.panel.remove))
    return tabulate("calibrations", "Which calibration gives the better checkpoints", columns, ordered, note)


def _interval(one: CalibrationEffect) -> Cell:
    if one.low is None or one.high is None:
        return Cell(numbers.UNKNOWN)
    low, high = (numbers.ratio_text(end) if one.quantity.ratio else f"{end:+.2f}" for end in (one.low, one.high))
    return Cell(f"{low} to {high}")


def variance_table(splits: Sequence[Split]) -> Table | None:
    """Shares of variance."""
    columns = [
        *labels("panel.", calibration=False),
        words("Of", "title"),
        Column("Calibration's share", lambda one: _share(one.calibration, one.p_calibration)),
        Column("Searcher's share", lambda one: _share(one.searcher, one.p_searcher)),
        Column("Interaction", lambda one: Cell("in the rest") if one.interaction is None else _share(one.interaction)),
        Column("Rest", lambda one: _share(one.residual)),
        Column("Searches", _extent),
    ]
    note = (
        "Analysis of variance by ordinary least squares, type II sums of squares; a share (η²) is a sum of squares "
        "over the sum of all. With several seeds the model is value ~ calibration × searcher and the rest is the "
        "seeds'; with one it is value ~ calibration + searcher and the rest holds interaction and noise together. "
        "p: of the F test against the rest. Only searchers with a result by every calibration enter. Calibration "
        "losses are not split: their units differ."
    )
    return tabulate("variance", "What results vary with", columns, splits, note)


def _share(share: float, p: float | None = None) -> Cell:
    return Cell(numbers.percent(share), share, small="" if p is None else numbers.probability(p))


def _extent(one: Split) -> Cell:
    combinations = f"{one.n_calibrations} × {one.n_searchers} combinations"
    return Cell(str(one.n_searches), one.n_searches, small=combinations)
