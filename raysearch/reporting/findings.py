"""The findings of a study: a table of questions, each with a verdict of one computed sentence and how sure it is.

The evidence stands in the tables and figures of the section that a finding names.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.correlation import FEWEST_FOR_INTERVAL, Correlation
from raysearch.reporting.stats.frame import Quantity
from raysearch.reporting.stats.variance import Spread
from raysearch.reporting.tables import numbers

#: How sure a finding is; ``measured`` is a count or a description without noise.
Sure = Literal["clear", "within noise", "cannot tell", "measured"]


@dataclass(frozen=True)
class Finding:
    """A row of the table of findings.

    Args:
        question: The question, in a few words.
        verdict: The answer, one sentence.
        sure: How sure it is.
        section: The part of the report with the evidence; empty where there is none.
    """

    question: str
    verdict: str
    sure: Sure
    section: str = ""


def findings(analysis: Analysis) -> list[Finding]:
    """Return the findings, the recommendation first; a study too small for one of them says so or leaves it out."""
    if not analysis.by_loss and not analysis.by_average:
        return [Finding("Searcher", "No search has found a mask yet.", "cannot tell", "searches")]
    return [
        *_searchers(analysis),
        *_best_calibrations(analysis),
        *_variance(analysis),
        *_agreement(analysis),
        *_predictions(analysis),
        _seeds(analysis),
        *_sharing(analysis),
        *_unfinished(analysis),
    ]


def _searchers(analysis: Analysis) -> Iterator[Finding]:
    """The searcher to use, and whether searchers differ at all, by calibration loss if that is known."""
    basis = list(analysis.by_loss) or [one for one in analysis.by_average if one.quantity == analysis.averages[-1]]
    several = [one for one in basis if len(one.rivals) > 1]
    if not several:
        only = numbers.listed(list(dict.fromkeys(one.best.searcher for one in basis)))
        verdict = f"Only one searcher was tried in each setting ({only}): there is nothing to compare it with."
        yield Finding("Searcher", verdict, "cannot tell", "results")
        return
    what, n = several[0].quantity.title, len(several)
    verdicts = Counter(one.verdict for one in several)
    yield _leader(several, what) if 2 * verdicts["cannot tell"] > n else _recommendation(several, what)
    if verdicts["cannot tell"]:
        where = of_all(verdicts["cannot tell"], n, "setting")
        why = "no standard error is known and there is one seed"
        yield Finding(
            "Ties", f"Whether searchers differ by {what} cannot be told {where}: {why}.", "cannot tell", "verdicts"
        )
    elif verdicts["all tie"] == n:
        yield Finding("Ties", f"The searchers tie within noise {of_all(n, n, 'setting')}.", "within noise", "verdicts")
    else:
        behind = Counter(rival.searcher for one in several for rival in one.rivals if rival.tied is False)
        names = numbers.listed([f"{name} ({times} of {n})" for name, times in behind.most_common()])
        yield Finding("Ties", f"Behind the best beyond noise, in so many settings: {names}.", "clear", "verdicts")


def _recommendation(several: Sequence[Comparison], what: str) -> Finding:
    """The searcher within noise of the best in the most settings; the cheapest of those."""
    times = Counter(rival.searcher for one in several for rival in one.tied)
    most = max(times.values())
    candidates = [name for name, number in times.items() if number == most]
    costs = {name: _mean_cost(several, name) for name in candidates}
    name = min(candidates, key=lambda candidate: costs[candidate])
    cheapest = ", and the cheapest of those that are" if len(candidates) > 1 and math.isfinite(costs[name]) else ""
    within = of_all(most, len(several), "setting")
    verdict = f"Searcher to use: {name}. It is within noise of the best {what} {within}{cheapest}."
    return Finding("Searcher", verdict, "clear" if most == len(several) else "within noise", "verdicts")


def _leader(several: Sequence[Comparison], what: str) -> Finding:
    """The searcher that is best most often, where noise is not known."""
    wins = Counter(rival.searcher for one in several for rival in one.rivals if rival.behind == 0)
    most = max(wins.values())
    leaders = [name for name, number in wins.items() if number == most]
    verdict = (
        f"No searcher can be recommended: {numbers.listed(leaders)} {'has' if len(leaders) == 1 else 'each have'} the "
        f"best {what} {of_all(most, len(several), 'setting')}, and how much of that is chance is not known."
    )
    return Finding("Searcher", verdict, "cannot tell", "verdicts")


def _mean_cost(several: Sequence[Comparison], searcher: str) -> float:
    """Mean layer-forwards of a searcher; infinite where they are not known."""
    costs = [rival.cost for one in several for rival in one.rivals if rival.searcher == searcher]
    return statistics.fmean(known) if (known := [cost for cost in costs if math.isfinite(cost)]) else math.inf


def _best_calibrations(analysis: Analysis) -> Iterator[Finding]:
    """The calibration with the better checkpoints, by each average."""
    if analysis.frame["calibration"].nunique() < 2:
        verdict = "One calibration was tried: how much it matters is not measured."
        yield Finding("Calibration", verdict, "cannot tell")
    elif not analysis.averages:
        verdict = (
            "Which calibration is better cannot be told: no checkpoint was assessed, and the losses of two "
            "calibrations have different units."
        )
        yield Finding("Calibration", verdict, "cannot tell")
    for quantity in analysis.averages:
        effects = [one for one in analysis.effects if one.quantity == quantity]
        if not effects:
            continue
        name, wins = Counter(one.best for one in effects).most_common(1)[0]
        clear = sum(bool(one.clear) for one in effects if one.best == name)
        verdict = f"By {quantity.title} the best calibration is {name}, {of_all(wins, len(effects), 'case')}"
        sure: Sure = "clear" if clear == len(effects) else "within noise"
        if all(one.clear is None for one in effects):
            verdict, sure = f"{verdict}; one searcher is too little to say how sure that is.", "cannot tell"
        elif clear:
            verdict += f", clearly {of_all(clear, len(effects), 'case')}."
        else:
            verdict += ", but never beyond the scatter of searchers."
        yield Finding("Calibration", verdict, sure, "verdicts")


def _variance(analysis: Analysis) -> Iterator[Finding]:
    """How much of each average varies with the calibration and with the searcher."""
    for quantity in analysis.averages:
        parts = [one for one in analysis.splits if one.quantity == quantity]
        if not parts:
            continue
        calibration, searcher = (
            statistics.median(getattr(one, name) for one in parts) for name in ("calibration", "searcher")
        )
        more = sum(one.calibration > one.searcher for one in parts)
        medians = (
            f" (medians; the calibration's is larger {of_all(more, len(parts), 'case')})" if len(parts) > 1 else ""
        )
        what = numbers.capital(parts[0].title)
        verdict = (
            f"{what} varies {'more' if calibration > searcher else 'less'} with the calibration "
            f"than with the searcher: {numbers.percent(calibration)} against {numbers.percent(searcher)} of the "
            f"variance{medians}."
        )
        stable = [one.stable for one in parts]  # whether it holds if any one searcher is left out
        decided = more in (0, len(parts)) and all(stable)
        sure: Sure = "cannot tell" if None in stable else "clear" if decided else "within noise"
        yield Finding("Calibration or searcher", verdict, sure, "variance")
        moves = [spread_sentence(analysis.spreads, quantity, by) for by in ("calibration", "searcher")]
        yield from (Finding("Size of the effect", move, "measured", "variance") for move in moves if move)


def spread_sentence(spreads: Sequence[Spread], quantity: Quantity, by: str) -> str:
    """Return the most that one choice moves a quantity, as section 5.2 of arXiv 2604.24938 gives it; or nothing."""
    members = [one for one in spreads if one.quantity == quantity and one.by == by]
    if not members:
        return ""
    largest = max(members, key=lambda one: one.size)
    size = numbers.ratio_text(largest.size) if quantity.ratio else numbers.difference(largest.size, quantity)
    return (
        f"Changing the {by} alone moves the {quantity.title} by {'a factor of ' if quantity.ratio else ''}up to {size} "
        f"({largest.panel.model}, M = {largest.panel.remove}, {largest.fixed})."
    )


def _agreement(analysis: Analysis) -> Iterator[Finding]:
    """How similar masks are within and between calibrations."""
    within, between = analysis.agreements, analysis.cross
    inside = statistics.fmean(one.mean for one in within) if within else None
    across = statistics.fmean(one.mean for one in between) if between else None
    scale = "(1: the same layers, 0: none)"
    if inside is not None and across is not None:
        verdict = (
            f"Searchers under one calibration agree {'more' if inside > across else 'less'} on layers than one "
            f"searcher under two calibrations: mean Jaccard similarity {inside:.2f} against {across:.2f} {scale}"
        )
    elif inside is not None:
        verdict = f"Searchers agree on layers with a mean Jaccard similarity of {inside:.2f} {scale}"
    elif across is not None:
        verdict = f"Two calibrations make a searcher remove layers of a mean Jaccard similarity of {across:.2f}"
    else:
        return
    chance = f"; random masks would have {statistics.fmean(one.chance for one in within):.2f}" if within else ""
    yield Finding("Agreement of masks", f"{verdict}{chance}.", "measured", "agreement")


def _predictions(analysis: Analysis) -> Iterator[Finding]:
    """Return whether a better loss means a better checkpoint, calibration by calibration."""
    known = [one for one in analysis.correlations if one.rho is not None]
    subjects = [(one.first.title, one.second.title, one.setting.calibration) for one in known]
    for subject in dict.fromkeys(subjects):
        first, second, calibration = subject
        members = [one for one, its in zip(known, subjects, strict=True) if its == subject]
        above = sum(one.low is not None and one.low > 0 for one in members)
        below = sum(one.high is not None and one.high < 0 for one in members)
        decided = len(members) in (above, below) or (above and below)
        few = min(one.n for one in members) < FEWEST_FOR_INTERVAL
        sure: Sure = "cannot tell" if few else "clear" if decided else "within noise"
        if not above and not below:
            means = f"Among searchers, {first} does not tell {second}"
        elif above and below:
            means = f"Whether {first} predicts {second} depends on the setting"
        else:
            means = f"The better by {first}, the {'better' if above else 'worse'} by {second}"
            if not decided:
                means += f" {of_all(above or below, len(members), 'setting')}, else within noise"
        verdict = f"{means} (under {calibration}): {correlation_sentence(members)}"
        yield Finding("Does a better loss help", verdict, sure, "correlations")


def correlation_sentence(members: Sequence[Correlation]) -> str:
    """Return median, range and signs of some correlations, as section 5.3 of arXiv 2604.24938 gives them."""
    rhos = [one.rho for one in members if one.rho is not None]
    signs = Counter("positive" if rho > 0 else "negative" for rho in rhos if rho)
    counts = " and ".join(f"{number} {sign}" for sign, number in sorted(signs.items(), reverse=True))
    return (
        f"median ρ {numbers.rho(statistics.median(rhos))}, range {numbers.rho(min(rhos))} to {numbers.rho(max(rhos))}, "
        f"{counts} of {len(rhos)}."
    )


def _seeds(analysis: Analysis) -> Finding:
    """How far a searcher's random numbers move its loss."""
    ratios, seeded = [], False
    for one in analysis.by_loss:
        spreads = [rival.spread for rival in one.rivals if rival.spread is not None]
        seeded |= bool(spreads)
        if spreads and one.rivals[-1].behind > 0:
            ratios.append(max(spreads) / one.rivals[-1].behind)
    if not seeded:
        verdict = "Every search ran with one seed: how much a searcher's random numbers matter is not measured."
        return Finding("Seeds", verdict, "cannot tell", "results")
    if not ratios:
        return Finding("Seeds", "Seeds make no difference.", "measured", "results")
    verdict = (
        f"Over seeds, a searcher's loss has a standard deviation of up to {numbers.percent(max(ratios))} of the gap "
        "between the best and the worst searcher."
    )
    return Finding("Seeds", verdict, "measured", "results")


def _sharing(analysis: Analysis) -> Iterator[Finding]:
    """How many layer-forwards the searches saved each other."""
    done = analysis.frame[analysis.frame["layer_forwards_alone"].notna()]
    shared, alone, naive = (float(done[f"layer_forwards_{name}"].sum()) for name in ("shared", "alone", "naive"))
    if shared > 0 and alone > 0 and naive > 0:
        verdict = (
            f"The study ran {numbers.amount(shared)} layer-forwards: {numbers.times(alone / shared)} fewer than its "
            f"searches one by one, {numbers.times(naive / shared)} fewer than a full forward per mask."
        )
        yield Finding("Cost", verdict, "measured", "costs")


def _unfinished(analysis: Analysis) -> Iterator[Finding]:
    """How many searches the findings leave out."""
    missing = int((analysis.frame["state"] != "finished").sum())
    if missing:
        verb = "is" if missing == 1 else "are"
        verdict = f"{missing} of {len(analysis.frame)} searches {verb} not finished; the findings are about the others."
        yield Finding("Completeness", verdict, "measured", "unfinished")


def of_all(part: int, whole: int, what: str) -> str:
    """Return a part of several in words: ``in the one setting``, ``in all 4 settings``, ``in 3 of 4 settings``."""
    if whole == 1:
        return f"in the one {what}" if part else f"not in the one {what}"
    if part == whole:
        return f"in both {what}s" if whole == 2 else f"in all {whole} {what}s"
    return f"in {part or 'none'} of {whole} {what}s"
