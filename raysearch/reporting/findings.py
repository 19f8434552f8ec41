"""The findings of a study: a table of questions, each with a verdict of one computed sentence and its certainty.

The section that a finding names has the tables and figures with the evidence.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.correlation import Correlation
from raysearch.reporting.analysis.frame import Quantity, is_ruined, searchers_with_shared_seeds
from raysearch.reporting.analysis.variance import LargestChange, Split
from raysearch.reporting.calibration_findings import calibration_findings
from raysearch.reporting.checkpoint_findings import checkpoint_findings
from raysearch.reporting.contrast_findings import contrast_finding, in_order, leading_findings
from raysearch.reporting.finding import Finding, Sure, of_all
from raysearch.reporting.searcher_findings import searcher_findings
from raysearch.stats.significance import LEVEL, holm
from raysearch.text import numbers
from raysearch.text.sentences import capital, listed


def findings(analysis: Analysis) -> list[Finding]:
    """Return the findings, named contrasts first.

    If the study is too small for a finding, its verdict says so, or the finding is left out.
    """
    if not analysis.by_loss and not analysis.by_average:
        return [Finding("Which checkpoint?", "No search has found a mask yet.", "cannot tell", "searches", leads=True)]
    contrasts = in_order(analysis.contrasts)
    return [
        *leading_findings(analysis.results, contrasts.leading),
        *calibration_findings(analysis),
        *searcher_findings(analysis),
        *checkpoint_findings(analysis),
        *_draws(analysis),
        *_variance(analysis),
        *_predictions(analysis),
        *_seeds(analysis),
        *_ruined(analysis),
        *map(contrast_finding, contrasts.by_size),
        *_unfinished(analysis),
    ]


def _draws(analysis: Analysis) -> Iterator[Finding]:
    """Yield whether it was measured that results hold for other samples of the same calibrations."""
    frame = analysis.frame[analysis.frame["comparable"]]
    draws = frame.groupby(["model", "calibration"], observed=True)["draw"].nunique()
    if (draws < 2).any():
        quantifier = "Every" if (draws < 2).all() else "Some"
        verdict = (
            f"{quantifier} calibration was drawn once, so the effect of other samples of the same kind is not "
            "measured. study.grid.draw=[0,1,2] draws more."
        )
        yield Finding("Draws", verdict, "cannot tell", "verdicts")


def _variance(analysis: Analysis) -> Iterator[Finding]:
    """Yield how much of each average varies with the calibration and with the searcher."""
    for quantity in analysis.averages:
        splits = [split for split in analysis.splits if split.quantity == quantity]
        if not splits:
            continue
        calibration_share = statistics.median(split.shares["calibration"] for split in splits)
        searcher_share = statistics.median(split.shares["searcher"] for split in splits)
        n_larger = sum(split.shares["calibration"] > split.shares["searcher"] for split in splits)
        larger = of_all(n_larger, len(splits), "case")
        medians = f" (medians; the calibration's is larger {larger})" if len(splits) > 1 else ""
        has_draws = all(split.drawn for split in splits)
        one_draw = "" if has_draws else ", with one draw of each calibration"
        if math.isclose(calibration_share, searcher_share, abs_tol=1e-12):
            comparison = "as much with the calibration as"
        elif calibration_share > searcher_share:
            comparison = "more with the calibration than"
        else:
            comparison = "less with the calibration than"
        verdict = (
            f"{capital(splits[0].title)} varies {comparison} with the searcher: "
            f"{numbers.percent(calibration_share)} against {numbers.percent(searcher_share)} of the variance, "
            f"without noise{medians}{one_draw}."
        )
        larger_shares = {_larger_share(split) for split in splits}
        sure: Sure = "clear" if len(larger_shares) == 1 and None not in larger_shares else "not significant"
        if any(split.stable is None for split in splits):
            sure = "cannot tell"
        elif sure == "clear" and not has_draws:
            sure = "measured"
        yield Finding("Calibration or searcher", verdict, sure, "variance")
        for choice in ("calibration", "searcher"):
            if verdict := change_sentence(analysis.largest_changes, quantity, choice):
                yield Finding("Size of the effect", verdict, "measured", "variance")


def _larger_share(split: Split) -> str | None:
    """Return the share that is larger whichever searcher is left out; None if neither is, or if intervals overlap."""
    if not split.stable or not {"calibration", "searcher"} <= split.intervals.keys():
        return None
    calibration_low, calibration_high = split.intervals["calibration"]
    searcher_low, searcher_high = split.intervals["searcher"]
    if calibration_low > searcher_high:
        return "calibration"
    return "searcher" if searcher_low > calibration_high else None


def change_sentence(changes: Sequence[LargestChange], quantity: Quantity, by: str) -> str:
    """Return a sentence of the largest change of a quantity by one choice, as in section 5.2 of arXiv 2604.24938.

    Args:
        changes: The largest changes of the study.
        quantity: The quantity.
        by: The choice: ``calibration`` or ``searcher``.

    Returns:
        The sentence; an empty text without a change.
    """
    by_choice = [change for change in changes if change.quantity == quantity and change.by == by]
    if not by_choice:
        return ""
    largest = max(by_choice, key=lambda change: change.size)
    size = f"up to {quantity.difference_text(largest.size)}"
    if quantity.ratio:
        size = f"a factor of up to {numbers.ratio_text(largest.size)}"
    where = f"{largest.panel.model}, M = {largest.panel.remove}, {largest.fixed}"
    return f"Changing the {by} alone moves the {quantity.title} by {size} ({where})."


def _predictions(analysis: Analysis) -> Iterator[Finding]:
    """Yield whether a better loss means a better checkpoint, calibration by calibration."""
    by_subject: dict[tuple[str, str, str], list[Correlation]] = {}
    for correlation in analysis.correlations:
        if correlation.rho is not None:
            subject = (correlation.first.title, correlation.second.title, correlation.setting.calibration)
            by_subject.setdefault(subject, []).append(correlation)
    for (first, second, calibration), correlations in by_subject.items():
        corrected_ps = holm([correlation.p for correlation in correlations])
        significant_rhos = [
            correlation.rho
            for correlation, p in zip(correlations, corrected_ps, strict=True)
            if correlation.rho and p is not None and p <= LEVEL
        ]
        n_positive = sum(rho > 0 for rho in significant_rhos)
        if not significant_rhos:
            answer = f"Among searchers, {first} does not significantly predict {second}"
        elif 0 < n_positive < len(significant_rhos):
            answer = f"Whether {first} predicts {second} depends on the setting"
        else:
            answer = f"The better by {first}, the {'better' if n_positive else 'worse'} by {second}"
            if len(significant_rhos) < len(correlations):
                answer += f" {of_all(len(significant_rhos), len(correlations), 'setting')}, else not significantly"
        verdict = f"{answer} (under {calibration}): {correlation_sentence(correlations)}"
        sure: Sure = "clear" if significant_rhos else "not significant"
        yield Finding("Does a better loss help", verdict, sure, "correlations")


def correlation_sentence(correlations: Sequence[Correlation]) -> str:
    """Return a text of the median, range and signs of correlations, as in section 5.3 of arXiv 2604.24938."""
    rhos = [correlation.rho for correlation in correlations if correlation.rho is not None]
    signs = Counter("positive" if rho > 0 else "negative" for rho in rhos if rho)
    counts = " and ".join(f"{number} {sign}" for sign, number in sorted(signs.items(), reverse=True)) or "none but zero"
    return (
        f"median ρ {numbers.rho(statistics.median(rhos))}, range {numbers.rho(min(rhos))} to {numbers.rho(max(rhos))}, "
        f"{counts} of {len(rhos)}."
    )


def _seeds(analysis: Analysis) -> Iterator[Finding]:
    """Yield the searchers for which the effect of their random numbers was not measured."""
    frame = analysis.frame[analysis.frame["comparable"]]
    seeds = frame[frame["stochastic"]].groupby("searcher", observed=True)["seed"].nunique()
    if (seeds == 1).any():
        names = listed([str(name) for name in seeds[seeds == 1].index])
        verdict = f"Searched with one seed, so the effect of its random numbers is not measured: {names}."
        yield Finding("Seeds", verdict, "cannot tell", "results")
    if shared := searchers_with_shared_seeds(frame):
        verdict = (
            f"Ranks, effects of calibrations and shares of variance leave out {listed(shared)}: the random numbers "
            "were the same in several draws. A study gives each draw a seed of its own, unless an axis sets a seed."
        )
        yield Finding("Seeds", verdict, "cannot tell", "results")


def _ruined(analysis: Analysis) -> Iterator[Finding]:
    """Yield how many masks the averages leave out."""
    ruins_by_mask = {
        (cell.model, tuple(cell.outcome.removed)): is_ruined(cell.outcome, analysis.results)
        for cell in analysis.results.cells
        if cell.outcome is not None and cell.outcome.assessed
    }
    if n_ruined := sum(ruins_by_mask.values()):
        verb = "ruins" if n_ruined == 1 else "ruin"
        verdict = (
            f"{n_ruined} of {len(ruins_by_mask)} assessed masks {verb} the model: a number is not finite. The averages "
            "leave such a mask out."
        )
        yield Finding("Completeness", verdict, "measured", "results")


def _unfinished(analysis: Analysis) -> Iterator[Finding]:
    """Yield how many searches the findings leave out."""
    if missing := int((~analysis.frame["state"].isin(["finished", "stopped"])).sum()):
        verb = "is" if missing == 1 else "are"
        verdict = f"{missing} of {len(analysis.frame)} searches {verb} not finished; the findings are about the others."
        yield Finding("Completeness", verdict, "measured", "unfinished")
