"""The tables that answer: which searcher, which calibration, and which of the two choices matters more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.contrast import Contrast
from raysearch.reporting.stats.effect import CalibrationEffect
from raysearch.reporting.stats.frame import CALIBRATION_LOSS
from raysearch.reporting.stats.ranking import Ranking
from raysearch.reporting.stats.variance import Split
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, number, tabulate, words

_NOTE = (
    "Not significantly worse: p > 0.05, corrected by Holm's method for all pairs of searchers of the setting. That "
    "does not make them as good: a difference below that of the last column would be missed more often than one time "
    "in five, even if it were the only one tested. As good: only with study.margin, by two one-sided tests. The best "
    "of several is chosen by the same numbers that are shown, so it is flattered."
)


def verdict_tables(comparisons: Sequence[Comparison]) -> list[Table | None]:
    """For each quantity: in each setting the best searcher, which are not significantly worse, and how fine that is."""
    columns = [
        *labels("setting."),
        Column("Best", lambda one: Cell(one.best.searcher, small=_level(one), best=one.best.behind == 0), kind="name"),
        words(
            "Not significantly worse",
            lambda one: ", ".join(of.searcher for of in one.rivals[1:] if of.tied) or "none",
        ),
        words("Significantly worse", _significantly_worse),
        words("As good", lambda one: ", ".join(of.searcher for of in one.rivals if of.equivalent), may_hide=True),
        Column("How sure", lambda one: Cell(one.verdict, small=_unpredictable(one)), kind="w"),
        Column("Would be seen", lambda one: Cell(_size(one.detectable, one.unit), one.detectable)),
    ]
    found = []
    for quantity, members in itertools.groupby(comparisons, key=lambda one: one.quantity):
        note = _NOTE if quantity == CALIBRATION_LOSS else ""
        found.append(tabulate(f"verdicts_{quantity.key}", f"Searchers by {quantity.title}", columns, members, note))
    return found


def _significantly_worse(comparison: Comparison) -> str:
    worse = [rival for rival in comparison.rivals if rival.tied is False]
    return ", ".join(f"{rival.searcher} ({numbers.probability(rival.p)})" for rival in worse) or "none"


def ranking_table(rankings: Sequence[Ranking]) -> Table | None:
    """The searchers over all settings."""
    columns = [
        words("By", lambda row: row[0].quantity.title, groups=True),
        words("Searcher", lambda row: row[1], kind="who"),
        number("Mean rank", lambda row: row[0].ranks[row[1]], numbers.figure),
        Column("Beside the best", _beside_the_best),
        words("Significantly better than", lambda row: ", ".join(row[0].behind(row[1])) or "none"),
    ]
    note = (
        "The searchers that use the objective and have a number everywhere, ranked for each model, calibration and "
        "draw by their mean rank over M, 1 the best; by held-out loss, for which draws share samples, for each model "
        "and calibration. Significant: Friedman's test rejects that none differs (p <= 0.05; it takes three such sets "
        "of samples), and the mean ranks are further apart than Nemenyi's critical difference."
    )
    records = [(one, name) for one in rankings for name in one.ranks]
    return tabulate("ranking", "Searchers over all settings", columns, records, note)


def _beside_the_best(row: tuple[Ranking, str]) -> Cell:
    found, name = row
    pair = next((one for one in found.pairs if one.better == found.best and one.worse == name), None)
    if pair is None:
        return Cell("best", best=True)
    return Cell(f"worse in {pair.wins} of {found.n_sets}", pair.wins)


def contrast_table(contrasts: Sequence[Contrast]) -> Table | None:
    """The pairs of searchers that the study is to tell apart."""
    columns = [
        words("Contrast", lambda one: f"{one.first} - {one.second}", groups=True),
        words("By", "quantity.title", groups=True),
        *labels("setting.")[:-1],
        words("M", lambda one: ", ".join(map(str, one.sizes)), groups=True),
        Column("First is better by", lambda one: Cell(_size(one.gain, one.unit, "+"), one.gain)),
        Column("± 95 %", lambda one: Cell(_size(half := one.gap.half_width(), one.unit), half)),
        Column("p", lambda one: Cell(numbers.probability(one.p), one.p, best=one.told)),
        number("Draws", "gap.n_draws"),
        number("Seeds", "n_seeds"),
        Column("Would be seen", lambda one: Cell(_size(one.gap.detectable or None, one.unit), one.gap.detectable)),
    ]
    note = (
        "Paired by draw. Perplexities by their logarithms. Of several M: the mean difference within each draw. p: "
        "corrected by Holm's method for all answers of a contrast with several M, or with one. Would be seen: the "
        "difference that is detected four times in five with these samples."
    )
    return tabulate("contrasts", "Named contrasts", columns, contrasts, note)


def _size(value: float | None, unit: str, sign: str = "") -> str:
    if value is None or not math.isfinite(value):
        return numbers.UNKNOWN
    return f"{sign if value > 0 else ''}{numbers.figure(value)} {unit}".rstrip()


def _level(one: Comparison) -> str:
    if one.quantity is CALIBRATION_LOSS:
        return f"loss {numbers.loss(one.best.mean)}"
    return numbers.value(one.best.mean, one.quantity) + (" %" if one.quantity.unit == "%" else "")


def _unpredictable(one: Comparison) -> str:
    unknown = [rival.searcher for rival in one.rivals if rival.tied is None]
    return f"not known of {', '.join(unknown)}" if 0 < len(unknown) < len(one.rivals) - 1 else ""


def effect_table(effects: Sequence[CalibrationEffect]) -> Table | None:
    """Every two calibrations by each average."""
    models = list(dict.fromkeys(one.panel.model for one in effects))
    columns = [
        *labels("panel.", calibration=False),
        words("By", "quantity.title"),
        Column("Better calibration", lambda one: Cell(one.best, best=one.clear), kind="w"),
        words("Than", "second"),
        Column("Better by", lambda one: Cell(numbers.difference(one.gain, one.quantity), one.gain)),
        Column("95 % interval", _interval),
        number("p", "p", numbers.probability),
        Column("Searchers", lambda one: Cell(f"{one.n_better} of {one.n_searchers}", one.n_searchers)),
        number("Draws", "n_draws", may_hide=True),
    ]
    note = (
        "Means over the searchers that use the objective and have a result by both; perplexities by their geometric "
        "mean ratio. With several draws of each calibration: Welch's test and interval over draws, with the noise of "
        "the items that both are assessed on. With one draw: Wilcoxon's signed ranks and Student's interval over "
        "searchers, which hold for these samples and items alone. p: "
        "corrected by Holm's method for the pairs of a panel. Bold: p <= 0.05."
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
        Column("Calibration's share", partial(_share, "calibration")),
        Column("Searcher's share", partial(_share, "searcher")),
        Column("Interaction", partial(_share, "interaction")),
        Column("Draw", partial(_share, "draw"), may_hide=True),
        Column("Rest", partial(_share, "residual")),
        Column("Raw η²", lambda one: Cell(" / ".join(numbers.percent(one.raw[part]) for part in one.p))),
        Column("Searches", _extent),
    ]
    note = (
        "Analysis of variance over the searchers that use the objective, have a result by every calibration and draw, "
        "and drew other random numbers in each, if any. Shares are ω²: what is left of sums of squares after noise; "
        "η², of sums of squares as they are, favours the factor with more levels (here calibration / searcher). Small "
        "print: 95 % intervals by the noncentral F, and p. With several draws of a calibration these are nested in it, "
        "and p is Welch's over their means, and that of permutations of the searchers within each draw, which allow "
        "for more noise by one calibration than by another. With one, p is of the F test; a calibration cannot be "
        "separated from its samples, and the test holds for these alone. With one draw and several seeds the rest is "
        "the seeds'; with one seed it holds interaction and noise together. All of it is about the items that were "
        "assessed, the same ones for all; others have noise of their own. Calibration losses are not split: their "
        "units differ."
    )
    return tabulate("variance", "What results vary with", columns, splits, note)


def _share(part: str, one: Split) -> Cell:
    share = one.shares.get(part)
    if share is None:
        return Cell("in the rest" if part == "interaction" else numbers.UNKNOWN)
    interval, p = one.intervals.get(part), one.p.get(part)
    lines = [f"{numbers.percent(interval[0])} to {numbers.percent(interval[1])}"] if interval else []
    lines += [] if p is None else [numbers.probability(p)]
    return Cell(numbers.percent(share), share, small="\n".join(lines))


def _extent(one: Split) -> Cell:
    combinations = f"{one.n_calibrations} × {one.n_searchers} combinations"
    return Cell(str(one.n_searches), one.n_searches, small=combinations)
