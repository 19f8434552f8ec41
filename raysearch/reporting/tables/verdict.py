"""The tables that answer: which searcher, which calibration, and which of the two choices matters more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.contrast import Contrast
from raysearch.reporting.analysis.effect import CalibrationEffect
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS
from raysearch.reporting.analysis.ranking import Ranking
from raysearch.reporting.analysis.variance import Split
from raysearch.reporting.tables.table import Column, Table, TableCell, labels, number, tabulate, words
from raysearch.text import numbers

_NOTE = (
    "Not significantly worse: p > 0.05, corrected by Holm's method for all pairs of searchers of the setting. Such a "
    "searcher may still be worse: a difference below that of the last column is missed more often than one time in "
    "five, even if it is the only one tested. As good: by two one-sided tests, only with study.margin. The best "
    "searcher is chosen by the numbers that are shown, so it looks better than it is."
)


def verdict_tables(comparisons: Sequence[Comparison]) -> list[Table | None]:
    """Return one table per quantity: the best searcher of each setting and those not significantly worse.

    Its last column is the smallest detectable difference.
    """
    columns = [
        *labels("setting."),
        Column(
            "Best",
            lambda comparison: TableCell(
                comparison.best.searcher, small=_level(comparison), best=comparison.best.behind == 0
            ),
            kind="name",
        ),
        words(
            "Not significantly worse",
            lambda comparison: ", ".join(rival.searcher for rival in comparison.rivals[1:] if rival.tied) or "none",
        ),
        words("Significantly worse", _significantly_worse),
        words(
            "As good",
            lambda comparison: ", ".join(rival.searcher for rival in comparison.rivals if rival.equivalent),
            may_hide=True,
        ),
        Column("How sure", lambda comparison: TableCell(comparison.verdict, small=_untested(comparison)), kind="w"),
        Column(
            "Would be seen",
            lambda comparison: TableCell(_size(comparison.detectable, comparison.unit), comparison.detectable),
        ),
    ]
    tables = []
    for quantity, members in itertools.groupby(comparisons, key=lambda comparison: comparison.quantity):
        note = _NOTE if quantity == CALIBRATION_LOSS else ""
        tables.append(tabulate(f"verdicts_{quantity.key}", f"Searchers by {quantity.title}", columns, members, note))
    return tables


def _significantly_worse(comparison: Comparison) -> str:
    worse = [rival for rival in comparison.rivals if rival.tied is False]
    return ", ".join(f"{rival.searcher} ({numbers.probability(rival.p)})" for rival in worse) or "none"


def ranking_table(rankings: Sequence[Ranking]) -> Table | None:
    """Return the table of the ranks of the searchers over all settings; None without rankings."""
    columns = [
        words("By", lambda row: row[0].quantity.title, groups=True),
        words("Searcher", lambda row: row[1], kind="who"),
        number("Mean rank", lambda row: row[0].ranks[row[1]], numbers.rounded_if_known),
        Column("Compared with the best", _compared_with_best),
        words("Significantly better than", lambda row: ", ".join(row[0].behind(row[1])) or "none"),
    ]
    note = (
        "The table has the searchers that use the objective and have a number everywhere. For each model, "
        "calibration and draw, they are ranked by their mean rank over M; rank 1 is the best. By held-out loss, for "
        "which draws share samples, they are ranked for each model and calibration. A difference is significant if "
        "Friedman's test rejects that all are equal (p <= 0.05; it needs three such sets of samples), and the mean "
        "ranks differ by more than Nemenyi's critical difference."
    )
    records = [(ranking, name) for ranking in rankings for name in ranking.ranks]
    return tabulate("ranking", "Searchers over all settings", columns, records, note)


def _compared_with_best(row: tuple[Ranking, str]) -> TableCell:
    ranking, name = row
    pair = next((pair for pair in ranking.pairs if pair.better == ranking.best and pair.worse == name), None)
    if pair is None:
        return TableCell("best", best=True)
    return TableCell(f"worse in {pair.wins} of {ranking.n_sets}", pair.wins)


def contrast_table(contrasts: Sequence[Contrast]) -> Table | None:
    """Return the table of the named contrasts of a study; None if it has none."""
    columns = [
        words("Contrast", lambda contrast: f"{contrast.first} - {contrast.second}", groups=True),
        words("By", "quantity.title", groups=True),
        *labels("setting.")[:-1],
        words("M", lambda contrast: ", ".join(map(str, contrast.sizes)), groups=True),
        Column(
            "First is better by", lambda contrast: TableCell(_size(contrast.gain, contrast.unit, "+"), contrast.gain)
        ),
        Column("± 95 %", lambda contrast: TableCell(_size(half := contrast.gap.half_width(), contrast.unit), half)),
        Column("p", lambda contrast: TableCell(numbers.probability(contrast.p), contrast.p, best=contrast.significant)),
        number("Draws", "gap.n_draws"),
        number("Seeds", "n_seeds"),
        Column(
            "Would be seen",
            lambda contrast: TableCell(_size(contrast.gap.detectable or None, contrast.unit), contrast.gap.detectable),
        ),
    ]
    note = (
        "The searches are paired by draw. Perplexities are compared by their logarithms. With several M, the mean "
        "difference within each draw counts. p is corrected by Holm's method: once for all rows with several M, and "
        "once for all rows with one M. Would be seen: the difference that is detected four times in five with these "
        "samples."
    )
    return tabulate("contrasts", "Named contrasts", columns, contrasts, note)


def _size(value: float | None, unit: str, sign: str = "") -> str:
    if value is None or not math.isfinite(value):
        return numbers.UNKNOWN
    return f"{sign if value > 0 else ''}{numbers.rounded(value)} {unit}".rstrip()


def _level(comparison: Comparison) -> str:
    """Return the number of the best searcher, with its unit."""
    mean = comparison.best.mean
    if comparison.quantity is CALIBRATION_LOSS:
        return f"loss {numbers.loss(mean)}"
    unit = " %" if comparison.quantity.unit == "%" else ""
    return f"{comparison.quantity.text(mean)}{unit}"


def _untested(comparison: Comparison) -> str:
    """Return the searchers whose noise is not known; an empty text if there are none, or no others."""
    names = [rival.searcher for rival in comparison.rivals if rival.tied is None]
    return f"not known of {', '.join(names)}" if 0 < len(names) < len(comparison.rivals) - 1 else ""


def effect_table(effects: Sequence[CalibrationEffect]) -> Table | None:
    """Return the table of each pair of calibrations by each average; None if there is none."""
    models = list(dict.fromkeys(effect.panel.model for effect in effects))
    columns = [
        *labels("panel.", calibration=False),
        words("By", "quantity.title"),
        Column("Better calibration", lambda effect: TableCell(effect.best, best=effect.clear), kind="w"),
        words("Than", "second"),
        Column("Better by", lambda effect: TableCell(effect.quantity.difference_text(effect.gain), effect.gain)),
        Column("95 % interval", _interval),
        number("p", "p", numbers.probability),
        Column("Searchers", lambda effect: TableCell(f"{effect.n_better} of {effect.n_searchers}", effect.n_searchers)),
        number("Draws", "n_draws", may_hide=True),
    ]
    note = (
        "Means over the searchers that use the objective and have a result on both calibrations; for perplexities, "
        "the geometric mean ratio. With several draws of each calibration, the test and the interval are Welch's "
        "over draws, and include the noise of the items of the assessment. With one draw, they are Wilcoxon's signed "
        "ranks and Student's interval over searchers, and hold for these samples and items alone. p is corrected by "
        "Holm's method for the pairs of a panel. Bold: p <= 0.05."
    )
    ordered = sorted(effects, key=lambda effect: (models.index(effect.panel.model), effect.panel.remove))
    return tabulate("calibrations", "Which calibration gives the better checkpoints", columns, ordered, note)


def _interval(effect: CalibrationEffect) -> TableCell:
    if effect.low is None or effect.high is None:
        return TableCell(numbers.UNKNOWN)
    if effect.quantity.ratio:
        return TableCell(f"{numbers.ratio_text(effect.low)} to {numbers.ratio_text(effect.high)}")
    return TableCell(f"{effect.low:+.2f} to {effect.high:+.2f}")


def variance_table(splits: Sequence[Split]) -> Table | None:
    """Return the table of the shares of variance; None if there is none."""
    columns = [
        *labels("panel.", calibration=False),
        words("Of", "title"),
        Column("Calibration's share", partial(_share, "calibration")),
        Column("Searcher's share", partial(_share, "searcher")),
        Column("Interaction", partial(_share, "interaction")),
        Column("Draw", partial(_share, "draw"), may_hide=True),
        Column("Rest", partial(_share, "residual")),
        Column("Raw η²", lambda split: TableCell(" / ".join(numbers.percent(split.raw[part]) for part in split.p))),
        Column("Searches", _extent),
    ]
    note = (
        "An analysis of variance over the searchers that use the objective and have a result on every calibration "
        "and draw. If a searcher draws random numbers, they must differ between draws. The shares are ω², which has "
        "the noise removed from the sums of squares. η² does not, and favours the factor with more levels "
        "(calibration / searcher in this table). Small print: 95 % intervals by the noncentral F distribution, and "
        "p. Several draws of a calibration are nested in it. The p of calibrations is then from Welch's test over "
        "the means of the draws, and the p of searchers is from permutations of the searchers within each draw; both "
        "allow different noise in different calibrations. With one draw, p is from the F test; a calibration cannot "
        "be separated from its samples, and the test holds for these samples alone. With one draw and several seeds, "
        "the rest is due to the seeds; with one seed, it is interaction and noise together. All numbers are about "
        "the assessed items, which are the same for all checkpoints; other items have other noise. Calibration "
        "losses are not analysed, because their units differ."
    )
    return tabulate("variance", "What results vary with", columns, splits, note)


def _share(part: str, split: Split) -> TableCell:
    share = split.shares.get(part)
    if share is None:
        return TableCell("in the rest" if part == "interaction" else numbers.UNKNOWN)
    lines = []
    if interval := split.intervals.get(part):
        lines.append(f"{numbers.percent(interval[0])} to {numbers.percent(interval[1])}")
    p = split.p.get(part)
    if p is not None:
        lines.append(numbers.probability(p))
    return TableCell(numbers.percent(share), share, small="\n".join(lines))


def _extent(split: Split) -> TableCell:
    combinations = f"{split.n_calibrations} × {split.n_searchers} combinations"
    return TableCell(str(split.n_searches), split.n_searches, small=combinations)
