"""Findings about calibrations: which is better, how much they matter, and what their losses predict."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from raysearch.core.formatting import count
from raysearch.reporting.findings.finding import Finding, Sure, of_all, where
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.correlation import FEWEST_FOR_INTERVAL, Correlation
from raysearch.reporting.stats.effect import CalibrationEffect
from raysearch.reporting.stats.frame import Quantity
from raysearch.reporting.stats.variance import Spread
from raysearch.reporting.tables import numbers


def best_calibrations(analysis: Analysis) -> list[Finding]:
    """Which calibration gives the better checkpoints."""
    if analysis.frame["calibration"].nunique() < 2:
        return [Finding("One calibration was tried: how much it matters is not measured.", "cannot tell")]
    if not analysis.averages:
        text = (
            "Which calibration is better cannot be told: no checkpoint was assessed, and the losses of two "
            "calibrations have different units."
        )
        return [Finding(text, "cannot tell")]
    found = [_best(analysis, quantity) for quantity in analysis.averages]
    return [one for one in found if one is not None]


def calibration_weights(analysis: Analysis) -> list[Finding]:
    """Whether the calibration matters more than the searcher."""
    found = [_weight(analysis, quantity) for quantity in analysis.averages]
    return [one for one in found if one is not None]


def agreement_findings(analysis: Analysis) -> list[Finding]:
    """How similar masks are within and between calibrations."""
    within, between = analysis.agreements, analysis.cross
    if not within and not between:
        return []
    details = []
    if within:
        by = {one.setting.calibration for one in within}
        means = {name: [one.mean for one in within if one.setting.calibration == name] for name in sorted(by)}
        details += [f"By {name}: {_median_range(values)}." for name, values in means.items()] if len(means) > 1 else []
        chance = statistics.fmean(one.chance for one in within)
        details.append(f"Random masks of these sizes would have {chance:.2f}.")
    if not between:
        mean = statistics.fmean(one.mean for one in within)
        title = f"Searchers agree on layers with a mean Jaccard similarity of {mean:.2f} (1: the same layers, 0: none)."
        return [Finding(title, "measured", details, "agreement")]
    across = statistics.fmean(one.mean for one in between)
    if not within:
        title = f"Two calibrations make a searcher remove layers of a mean Jaccard similarity of {across:.2f}."
        return [Finding(title, "measured", details, "agreement")]
    inside = statistics.fmean(one.mean for one in within)
    more = "more" if inside > across else "less"
    title = (
        f"Searchers under one calibration agree {more} on layers than one searcher under two calibrations: mean "
        f"Jaccard similarity {inside:.2f} against {across:.2f} (1: the same layers, 0: none)."
    )
    return [Finding(title, "measured", details, "agreement")]


def prediction_findings(analysis: Analysis) -> list[Finding]:
    """Whether a better loss means a better checkpoint, calibration by calibration."""
    groups: dict[tuple[str, str, str], list[Correlation]] = {}
    for one in analysis.correlations:
        if one.rho is not None:
            groups.setdefault((one.first.title, one.second.title, one.setting.calibration), []).append(one)
    pairs: dict[tuple[str, str], list[str]] = {}
    for (first, second, calibration), members in groups.items():
        pairs.setdefault((first, second), []).append(f"{calibration}: {correlation_sentence(members)}")
    found = []
    for (first, second), details in pairs.items():
        members = [one for key, of in groups.items() if key[:2] == (first, second) for one in of]
        found.append(_prediction(first, second, members, details))
    return found


def _prediction(first: str, second: str, members: Sequence[Correlation], details: Sequence[str]) -> Finding:
    positive, negative = _apart(members)
    n, fewest = len(members), min(one.n for one in members)
    sure: Sure = "clear"
    if positive == n:
        title = f"The better by {first}, the better by {second}"
    elif negative == n:
        title = f"The better by {first}, the worse by {second}"
    elif positive and negative:
        title = f"Whether {first} predicts {second} depends on the setting"
    elif positive or negative:
        word, number = ("the better", positive) if positive else ("the worse", negative)
        title = f"The better by {first}, {word} by {second} {of_all(number, n, 'setting')}; else within noise"
        sure = "within noise"
    else:
        title = f"Among searchers, {first} does not tell {second}: no rank correlation is clear of zero"
        sure = "within noise"
    if fewest < FEWEST_FOR_INTERVAL:
        sure = "cannot tell"
    median = numbers.rho(statistics.median(_rhos(members)))
    return Finding(f"{title} (median ρ {median}, {fewest} searchers).", sure, details, "correlations")


def correlation_sentence(members: Sequence[Correlation]) -> str:
    """Median, range and signs of some correlations, as section 5.3 of arXiv 2604.24938 gives them."""
    rhos = _rhos(members)
    if len(rhos) == 1:
        one = members[0]
        interval = "" if one.low is None else f", 95 % interval {numbers.rho(one.low)} to {numbers.rho(one.high)}"
        return f"ρ {numbers.rho(rhos[0])}{interval}."
    signs = Counter("positive" if rho > 0 else "negative" for rho in rhos if rho)
    counts = " and ".join(f"{number} {sign}" for sign, number in sorted(signs.items(), reverse=True))
    return (
        f"median ρ {numbers.rho(statistics.median(rhos))}, range {numbers.rho(min(rhos))} to {numbers.rho(max(rhos))}, "
        f"{counts} of {len(rhos)}."
    )


def _rhos(members: Sequence[Correlation]) -> list[float]:
    return [one.rho for one in members if one.rho is not None]


def _apart(members: Sequence[Correlation]) -> tuple[int, int]:
    """How many intervals lie above zero, and how many below."""
    above = sum(one.low is not None and one.low > 0 for one in members)
    return above, sum(one.high is not None and one.high < 0 for one in members)


def _best(analysis: Analysis, quantity: Quantity) -> Finding | None:
    effects = [one for one in analysis.effects if one.quantity == quantity]
    if not effects:
        return None
    alike = analysis.frame["model"].nunique() == 1
    wins = Counter(one.best for one in effects)
    name, number = wins.most_common(1)[0]
    clear = [one for one in effects if one.best == name and one.clear]
    details = [_effect(one, alike) for one in effects[:6]]
    if len(effects) > 6:
        details.append(f"and {len(effects) - 6} more in the table.")
    places = of_all(number, len(effects), "case")
    title = f"By {quantity.title} the best calibration is {name}, {places}"
    if all(one.clear is None for one in effects):
        return Finding(
            f"{title}; one searcher is too little to say how sure that is.", "cannot tell", details, "verdicts"
        )
    title += (
        f", clearly {of_all(len(clear), len(effects), 'case')}."
        if clear
        else ", but never beyond the scatter of searchers."
    )
    return Finding(title, "clear" if len(clear) == len(effects) else "within noise", details, "verdicts")


def _effect(one: CalibrationEffect, alike: bool) -> str:
    interval = ""
    if one.low is not None and one.high is not None:
        ends = (numbers.ratio_text(end) if one.quantity.ratio else f"{end:+.2f}" for end in (one.low, one.high))
        interval = f", 95 % interval {' to '.join(ends)}"
    better = "lower" if not one.quantity.higher_is_better else "higher"
    size = numbers.difference(one.gain, one.quantity)
    return (
        f"{where(one.model, one.remove, alike)}: {size} {better} by {one.best} than by {one.second} "
        f"({count(one.n_searchers, 'searcher')}{interval})."
    )


def _weight(analysis: Analysis, quantity: Quantity) -> Finding | None:
    parts = [one for one in analysis.splits if one.quantity == quantity]
    alike = analysis.frame["model"].nunique() == 1
    moves = [spread_sentence(analysis.spreads, quantity, by, alike) for by in ("calibration", "searcher")]
    if not parts:
        return None
    calibration = statistics.median(one.calibration for one in parts)
    searcher = statistics.median(one.searcher for one in parts)
    more = sum(one.calibration > one.searcher for one in parts)
    what = ("log " if quantity.ratio else "") + quantity.title
    title = (
        f"{what[0].upper()}{what[1:]} varies {'more' if calibration > searcher else 'less'} with the calibration than "
        f"with the searcher: {numbers.percent(calibration)} against {numbers.percent(searcher)} of the variance"
    )
    title += f" (medians; the calibration's is larger {of_all(more, len(parts), 'case')})." if len(parts) > 1 else "."
    stable = [one.stable for one in parts]
    one_way = more in (0, len(parts))
    known = all(each is not None for each in stable)
    sure: Sure = "cannot tell" if not known else "clear" if one_way and all(stable) else "within noise"
    details = [text for text in moves if text]
    if known:
        which = "stays the same" if all(stable) else "changes in some cases"
        details.append(f"Which of the two is larger {which} if any one searcher is left out.")
    return Finding(title, sure, details, "variance")


def spread_sentence(spreads: Sequence[Spread], quantity: Quantity, by: str, one_model: bool = False) -> str:
    """The most that one choice moves a quantity, as section 5.2 of arXiv 2604.24938 gives it."""
    members = [one for one in spreads if one.quantity == quantity and one.by == by]
    if not members:
        return ""
    largest = max(members, key=lambda one: one.size)
    size = numbers.ratio_text(largest.size) if quantity.ratio else numbers.difference(largest.size, quantity)
    return (
        f"Changing the {by} alone moves the {quantity.title} by {'a factor of ' if quantity.ratio else ''}up to {size} "
        f"({where(largest.model, largest.remove, one_model)}, {largest.fixed})."
    )


def _median_range(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"mean {statistics.fmean(values):.2f}, from {min(values):.2f} to {max(values):.2f} over settings"
