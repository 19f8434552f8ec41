"""The tables that answer: which searcher, which calibration, and which of the two choices matters more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.effect import CalibrationEffect
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, Quantity
from raysearch.reporting.stats.variance import Split
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Row, Table, heads

NOTE = (
    "Within noise: the difference from the best is at most two standard errors by samples, joined with Student's "
    "97.5 % quantile times the standard error by seeds where there are several. Layer-forwards: of one search by "
    "itself, not sharing a ledger."
)


def verdict_table(comparisons: Sequence[Comparison], name: str, title: str, note: str = NOTE) -> Table | None:
    """In each setting the best searcher, which others tie with it, and the cheapest of these."""
    words = ("Best", "Within noise of it", "Cheapest of these", "How sure")
    columns = heads("Model", "Calibration", "M", *words, words=words)
    rows = []
    for one in comparisons:
        tied = [summary.searcher for summary in one.tied if summary is not one.best]
        cheapest = one.cheapest
        rows.append(
            Row(
                [
                    Cell(one.setting.model),
                    Cell(one.setting.calibration),
                    Cell(str(one.setting.remove), one.setting.remove),
                    Cell(one.best.searcher, small=_level(one), best=True),
                    Cell(", ".join(tied) or "none"),
                    Cell("not known" if cheapest is None else cheapest.searcher, small=_cost(one)),
                    Cell(one.verdict, small=_untold(one)),
                ]
            )
        )
    return Table(name, title, columns, rows, note) if rows else None


def _untold(one: Comparison) -> str:
    unpredictable = [rival.summary.searcher for rival in one.rivals if rival.tied is None]
    return "" if not unpredictable or one.verdict == "cannot tell" else f"not told of {', '.join(unpredictable)}"


def _level(one: Comparison) -> str:
    if one.quantity is CALIBRATION_LOSS:
        return f"loss {numbers.loss(one.best.mean)}"
    return numbers.with_unit(one.best.mean, one.quantity)


def _cost(one: Comparison) -> str:
    """The cost of the cheapest searcher, and how much less that is than the cost of the best."""
    cheapest = one.cheapest
    if cheapest is None:
        return ""
    cost = f"{numbers.amount(cheapest.cost)} layer-forwards"
    if cheapest is one.best or not cheapest.cost or not math.isfinite(one.best.cost):
        return cost
    return f"{cost}\n{numbers.ratio_text(one.best.cost / cheapest.cost)} × less than the best"


def effect_table(effects: Sequence[CalibrationEffect]) -> Table | None:
    """The best calibration by each average."""
    models = list(dict.fromkeys(one.model for one in effects))
    columns = heads(
        "Model",
        "M",
        "By",
        "Best calibration",
        "Next",
        "Better by",
        "95 % interval",
        "Searchers",
        words=("By", "Best calibration", "Next"),
    )
    rows = [
        Row(
            [
                Cell(one.model),
                Cell(str(one.remove), one.remove),
                Cell(one.quantity.title),
                Cell(one.best, best=bool(one.clear)),
                Cell(one.second),
                Cell(numbers.difference(one.gain, one.quantity), one.gain),
                Cell(
                    numbers.UNKNOWN
                    if one.low is None or one.high is None
                    else f"{_end(one.low, one.quantity)} to {_end(one.high, one.quantity)}"
                ),
                Cell(str(one.n_searchers), one.n_searchers),
            ]
        )
        for one in sorted(effects, key=lambda one: (models.index(one.model), one.remove))
    ]
    note = (
        "Mean over the searchers that have a result by every calibration, paired by searcher; Student's interval takes "
        "the searchers for a sample. Perplexities are compared by their geometric mean ratio. Bold: the interval "
        "leaves out that there is no difference."
    )
    return (
        Table("calibrations", "Which calibration gives the better checkpoints", columns, rows, note) if rows else None
    )


def _end(number: float, quantity: Quantity) -> str:
    return numbers.ratio_text(number) if quantity.ratio else f"{number:+.2f}"


def variance_table(splits: Sequence[Split]) -> Table | None:
    """Shares of variance."""
    columns = heads(
        "Model", "M", "Of", "Calibration's share", "Searcher's share", "Interaction", "Rest", "Searches", words=("Of",)
    )
    rows = [
        Row(
            [
                Cell(one.model),
                Cell(str(one.remove), one.remove),
                Cell(("log " if one.quantity.ratio else "") + one.quantity.title),
                Cell(numbers.percent(one.calibration), one.calibration, small=_p(one.p_calibration)),
                Cell(numbers.percent(one.searcher), one.searcher, small=_p(one.p_searcher)),
                Cell("in the rest" if one.interaction is None else numbers.percent(one.interaction), one.interaction),
                Cell(numbers.percent(one.residual), one.residual),
                Cell(
                    str(one.n_searches), one.n_searches, small=f"{one.n_calibrations} × {one.n_searchers} combinations"
                ),
            ]
        )
        for one in splits
    ]
    note = (
        "Analysis of variance by ordinary least squares, type II sums of squares; a share (η²) is a sum of squares "
        "over the sum of all. With several seeds the model is value ~ calibration × searcher and the rest is the "
        "seeds'; with one it is value ~ calibration + searcher and the rest holds interaction and noise together. "
        "p: of the F test against the rest. Only searchers with a result by every calibration enter. Calibration "
        "losses are not split: their units differ."
    )
    return Table("variance", "What results vary with", columns, rows, note) if rows else None


def _p(p: float | None) -> str:
    return "" if p is None else f"p {numbers.probability(p)}" if p < 0.001 else f"p = {numbers.probability(p)}"
