"""What a study found, in sentences with their uncertainty, every word of them computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from raysearch.core.formatting import count
from raysearch.reporting.findings.calibration import (
    agreement_findings,
    best_calibrations,
    calibration_weights,
    prediction_findings,
)
from raysearch.reporting.findings.finding import Finding, at, of_all
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.tables import numbers


def findings(analysis: Analysis) -> list[Finding]:
    """The findings, what to use first; a study too small for one of them says so or leaves it out."""
    if not analysis.by_loss and not analysis.by_average:
        return [Finding("No search has found a mask yet.", "cannot tell", _states(analysis), "searches")]
    found = [
        *_recommendations(analysis),
        *best_calibrations(analysis),
        *_ties(analysis),
        *calibration_weights(analysis),
        *agreement_findings(analysis),
        *prediction_findings(analysis),
        *_seeds(analysis),
        *_sharing(analysis),
        *_completeness(analysis),
    ]
    return found


def one_model(analysis: Analysis) -> bool:
    """Whether there is no need to name the model."""
    return analysis.frame["model"].nunique() == 1


def _basis(analysis: Analysis) -> list[Comparison]:
    """What searchers are judged by: the loss they were to lower, or what was assessed where no loss is known."""
    return list(analysis.by_loss) or [one for one in analysis.by_average if one.quantity == analysis.averages[-1]]


def _recommendations(analysis: Analysis) -> list[Finding]:
    several = [one for one in _basis(analysis) if len(one.rivals) > 1]
    found = _recommendation(several, several[0].quantity.title) if several else None
    return [found] if found else []


def _ties(analysis: Analysis) -> list[Finding]:
    basis = _basis(analysis)
    several = [one for one in basis if len(one.rivals) > 1]
    if several:
        return [_tie_finding(several, several[0].quantity.title, analysis)]
    only = numbers.listed(list(dict.fromkeys(one.best.searcher for one in basis)))
    title = f"Only one searcher was tried in each setting ({only}): there is nothing to compare it with."
    return [Finding(title, "cannot tell", [_level(one, analysis) for one in basis[:4]], "results")]


def _recommendation(several: Sequence[Comparison], what: str) -> Finding | None:
    """The searcher within noise of the best in the most settings; the cheapest of those."""
    if 2 * sum(one.verdict == "cannot tell" for one in several) > len(several):
        return _leader(several, what)
    times = Counter(summary.searcher for one in several for summary in one.tied)
    costs = _costs(several)
    most = max(times.values())
    candidates = [name for name, number in times.items() if number == most]
    name = min(candidates, key=lambda one: costs.get(one, math.inf))
    priced = costs.get(name, math.inf) < math.inf
    dearest = max((cost for one, cost in costs.items() if one in candidates), default=0.0)
    title = f"Searcher to use: {name}. It is within noise of the best {what} {of_all(most, len(several), 'setting')}"
    title += ", and the cheapest of those that are." if priced and len(candidates) > 1 else "."
    details = []
    if len(candidates) > 1:
        others = [one for one in candidates if one != name]
        details.append(f"As often within noise: {numbers.listed(others)}.")
        if priced and costs[name] > 0 and dearest > costs[name]:
            details.append(
                f"By itself it runs {numbers.amount(costs[name])} layer-forwards a search on average; "
                f"the dearest of those {numbers.times(dearest / costs[name])} as many."
            )
    missed = [one for one in several if name not in {summary.searcher for summary in one.tied}]
    if missed:
        worst = max(missed, key=lambda one: _behind(one, name))
        details.append(
            f"Where it is not, another is better by up to {_behind(worst, name):.4f} "
            f"(standard error and seeds explain {_noise(worst, name)})."
        )
    return Finding(title, "clear" if most == len(several) else "within noise", details, "verdicts")


def _leader(several: Sequence[Comparison], what: str) -> Finding:
    """The searcher that is best most often, where noise is not known."""
    wins = Counter(rival.summary.searcher for one in several for rival in one.rivals if rival.behind == 0)
    most = max(wins.values())
    names = numbers.listed([name for name, number in wins.items() if number == most])
    verb = "has" if sum(number == most for number in wins.values()) == 1 else "each have"
    title = f"No searcher can be recommended: {names} {verb} the best {what} {of_all(most, len(several), 'setting')}"
    title += ", and how much of that is chance is not known."
    return Finding(title, "cannot tell", (), "verdicts")


def _tie_finding(several: Sequence[Comparison], what: str, analysis: Analysis) -> Finding:
    verdicts = Counter(one.verdict for one in several)
    n, alike = len(several), one_model(analysis)
    details = []
    clear = [one for one in several if one.verdict == "one is best"]
    if clear:
        named = [f"{one.best.searcher} ({at(one.setting, alike)})" for one in clear]
        details.append(f"One searcher alone is best: {numbers.listed(named, 4)}.")
    partly = [one for one in several if one.verdict == "some tie"]
    if partly:
        parts = [f"{len(one.tied)} of {len(one.rivals)} ({at(one.setting, alike)})" for one in partly]
        details.append(f"Searchers within noise of the best, the best included: {numbers.listed(parts, 4)}.")
    same = sum(len({mask for s in one.tied for mask in s.masks}) == 1 for one in several if len(one.tied) > 1)
    if same:
        details.append(f"{of_all(same, n, 'setting').capitalize()} those that tie found the very same mask.")
    gap = max(several, key=lambda one: one.rivals[-1].behind)
    last = gap.rivals[-1]
    if last.behind > 0:
        details.append(f"The largest gap from best to worst is {_size(gap, last.behind)}: {gap.best.searcher} before "
                       f"{last.summary.searcher} ({at(gap.setting, alike)}).")  # fmt: skip
    if verdicts["cannot tell"]:
        title = f"Whether searchers differ by {what} cannot be told {of_all(verdicts['cannot tell'], n, 'setting')}: "
        return Finding(title + "no standard error is known and there is one seed.", "cannot tell", details, "verdicts")
    if verdicts["all tie"] == n:
        return Finding(
            f"The searchers tie within noise {of_all(n, n, 'setting')}.", "within noise", details, "verdicts"
        )
    behind = Counter(rival.summary.searcher for one in several for rival in one.rivals if rival.tied is False)
    names = [f"{name} ({times} of {n})" for name, times in behind.most_common()]
    details.insert(0, f"Behind the best beyond noise, in so many settings: {numbers.listed(names)}.")
    title = f"Some searchers are worse than the best beyond noise {of_all(n - verdicts['all tie'], n, 'setting')}"
    title += f"; {of_all(verdicts['all tie'], n, 'setting')} all tie." if verdicts["all tie"] else "."
    return Finding(title, "clear", details, "verdicts")


def _size(one: Comparison, behind: float) -> str:
    if one.quantity.group is None:
        return f"{behind:.4f} of loss"
    if one.quantity.ratio:
        return f"{numbers.value(behind, one.quantity)} of perplexity"
    return numbers.difference(behind, one.quantity)


def _costs(several: Sequence[Comparison]) -> dict[str, float]:
    """Mean layer-forwards by searcher; those without a known cost are left out."""
    costs: dict[str, list[float]] = {}
    for one in several:
        for rival in one.rivals:
            if math.isfinite(rival.summary.cost):
                costs.setdefault(rival.summary.searcher, []).append(rival.summary.cost)
    return {name: math.fsum(values) / len(values) for name, values in costs.items()}


def _behind(one: Comparison, searcher: str) -> float:
    return next((rival.behind for rival in one.rivals if rival.summary.searcher == searcher), 0.0)


def _noise(one: Comparison, searcher: str) -> str:
    noise = next((rival.noise for rival in one.rivals if rival.summary.searcher == searcher), None)
    return "an unknown part of it" if noise is None else f"{noise:.4f}"


def _level(one: Comparison, analysis: Analysis) -> str:
    level = (
        f"{numbers.loss(one.best.mean)}"
        if one.quantity.group is None
        else numbers.with_unit(one.best.mean, one.quantity)
    )
    return f"{one.best.searcher}, {at(one.setting, one_model(analysis))}: {one.quantity.title} {level}."


def _seeds(analysis: Analysis) -> list[Finding]:
    seeded = [s.summary for one in analysis.by_loss for s in one.rivals if s.summary.spread is not None]
    if not seeded:
        text = "Every search ran with one seed: how much luck a searcher's random numbers bring is not measured."
        return [Finding(text, "cannot tell", (), "results")]
    ratios = []
    for one in analysis.by_loss:
        spreads = [s.summary.spread for s in one.rivals if s.summary.spread is not None]
        gap = one.rivals[-1].behind
        if spreads and gap > 0:
            ratios.append(max(spreads) / gap)
    names = list(dict.fromkeys(summary.searcher for summary in seeded))
    still = [name for name in names if all(s.spread == 0 for s in seeded if s.searcher == name)]
    details = []
    if still:
        details.append(f"The same loss with every seed: {numbers.listed(still)}.")
    fewest = min(summary.n for summary in seeded)
    if fewest < 5:
        details.append(
            f"With {count(fewest, 'seed')} for some, a standard deviation is itself uncertain by half or more."
        )
    if not ratios:
        return [Finding("Seeds make no difference.", "measured", details, "results")]
    title = (
        f"Over seeds, a searcher's loss has a standard deviation of up to {numbers.percent(max(ratios))} of the gap "
        "between the best and the worst searcher."
    )
    return [Finding(title, "measured", details, "results")]


def _sharing(analysis: Analysis) -> list[Finding]:
    done = analysis.frame[analysis.frame["layer_forwards_alone"].notna()]
    shared, alone, naive = (float(done[f"layer_forwards_{name}"].sum()) for name in ("shared", "alone", "naive"))
    if not (shared > 0 and alone > 0 and naive > 0):
        return []
    title = (
        f"The study ran {numbers.amount(shared)} layer-forwards: {numbers.times(alone / shared)} fewer than its "
        f"searches one by one, {numbers.times(naive / shared)} fewer than a full forward per mask."
    )
    details = [
        f"Separate searches would have run {numbers.amount(alone)}, full forwards {numbers.amount(naive)}; over "
        f"{count(len(done), 'search').replace('searchs', 'searches')}."
    ]
    return [Finding(title, "measured", details, "costs")]


def _completeness(analysis: Analysis) -> list[Finding]:
    states = Counter(analysis.frame["state"])
    if states["finished"] == len(analysis.frame):
        return []
    missing = len(analysis.frame) - states["finished"]
    verb = "is" if missing == 1 else "are"
    title = f"{missing} of {len(analysis.frame)} searches {verb} not finished; what is said here is about the others."
    return [Finding(title, "measured", _states(analysis), "unfinished")]


def _states(analysis: Analysis) -> list[str]:
    states = Counter(analysis.frame["state"])
    words = {
        "failed": "failed", "stopped": "stopped as a budget ended; what was found by then is used, marked †",
        "waiting": "not run yet",
    }  # fmt: skip
    return [f"{states[state]} {text}." for state, text in words.items() if states[state]]
