"""Findings about searchers: which is best in each setting, as in the tables of verdicts, and over all settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.frame import Quantity
from raysearch.reporting.analysis.ranking import Ranking
from raysearch.reporting.finding import MISSED, Finding, of_all, place_in, sure_of
from raysearch.stats.significance import LEVEL
from raysearch.text import numbers
from raysearch.text.numbers import count
from raysearch.text.sentences import capital, listed

_MOST_PLACES = 3  # the most settings that are named one by one


def searcher_findings(analysis: Analysis) -> Iterator[Finding]:
    """Yield which searchers are best by each number that did not choose the masks: in each setting, and over all."""
    comparisons = [*analysis.by_fresh_loss, *analysis.by_average]
    compared = [comparison for comparison in comparisons if len(comparison.rivals) > 1]
    if not compared:
        names = listed(list(dict.fromkeys(comparison.best.searcher for comparison in comparisons)))
        verdict = f"Only one searcher has a mask in each setting ({names}): there is nothing to compare it with."
        yield Finding("Which searcher?", verdict, "cannot tell", "results", leads=True)
        return
    for quantity in dict.fromkeys(comparison.quantity for comparison in compared):
        leads = quantity == analysis.headline or not analysis.averages
        by_quantity = [comparison for comparison in compared if comparison.quantity == quantity]
        yield from _in_settings(quantity, by_quantity, leads)
        yield from (_over_settings(ranking) for ranking in analysis.rankings if ranking.quantity == quantity)


def _in_settings(quantity: Quantity, comparisons: Sequence[Comparison], leads: bool) -> Iterator[Finding]:
    """Yield which searchers are significantly worse than the best, and in how many settings this is unknown."""
    decided = [comparison for comparison in comparisons if comparison.verdict != "cannot tell"]
    question = "Which searcher?"
    if decided:
        verdict = f"By {quantity.title}, {_best(decided)}. {_worse(decided)}"
        n_clear = sum(comparison.verdict in ("one is best", "some are worse") for comparison in decided)
        yield Finding(question, verdict, sure_of(n_clear, len(decided)), "verdicts", leads)
    if len(decided) < len(comparisons):
        where = of_all(len(comparisons) - len(decided), len(comparisons), "setting")
        why = "no error is known, or a searcher that draws random numbers has one seed"
        verdict = f"It is not known whether searchers differ by {quantity.title} within a setting {where}: {why}."
        yield Finding(question, verdict, "cannot tell", "verdicts", leads and not decided)


def _best(comparisons: Sequence[Comparison]) -> str:
    """Return which searcher is best in most settings."""
    n = len(comparisons)
    leaders = [[rival.searcher for rival in comparison.rivals if rival.behind == 0] for comparison in comparisons]
    if all(len(names) == len(comparison.rivals) for names, comparison in zip(leaders, comparisons, strict=True)):
        return f"all searchers are equal {of_all(n, n, 'setting')}"
    ((name, n_best),) = Counter(searcher for names in leaders for searcher in names).most_common(1)
    is_shared = any(name in names and len(names) > 1 for names in leaders)
    return f"{name} is the best{' or equal to the best' if is_shared else ''} {of_all(n_best, n, 'setting')}"


def _worse(comparisons: Sequence[Comparison]) -> str:
    """Return which searchers are significantly worse than the best, and where; else the least detectable difference."""
    settings = [comparison.setting for comparison in comparisons]
    worse: dict[str, list[str]] = {}
    for comparison in comparisons:
        for rival in comparison.rivals:
            if rival.tied is False:
                place = f"{place_in(comparison.setting, settings)}: {numbers.probability(rival.p)}"
                worse.setdefault(rival.searcher, []).append(place)
    if not worse:
        return f"No searcher is significantly worse than the best{_smallest_seen(comparisons)}."
    names = []
    for searcher, places in sorted(worse.items(), key=lambda item: -len(item[1])):
        where = f" ({'; '.join(places)})" if len(places) <= _MOST_PLACES else ""
        names.append(f"{searcher} {of_all(len(places), len(settings), 'setting')}{where}")
    return f"Significantly worse than the best: {listed(names, most=12)}."


def _smallest_seen(comparisons: Sequence[Comparison]) -> str:
    """Return the smallest detectable difference in each unit, as the end of a sentence."""
    sizes: dict[str, list[float]] = {}
    for comparison in comparisons:
        if comparison.detectable:
            sizes.setdefault(comparison.unit, []).append(comparison.detectable)
    spans = [
        _span(numbers.rounded(min(detectable)), numbers.rounded(max(detectable)), unit)
        for unit, detectable in sizes.items()
    ]
    return f"; a difference below {' or '.join(spans)} {MISSED}" if spans else ""


def _span(least: str, most: str, unit: str) -> str:
    """Return the range of detectable differences over several settings, as a phrase."""
    return f"{most} {unit}".rstrip() if least == most else f"{least} to {most} {unit}, by the setting,"


def _over_settings(ranking: Ranking) -> Finding:
    """Return the searcher of the best mean rank, and which are significantly worse."""
    best = ranking.best
    worse = ranking.behind(best)
    lead = (
        f"{capital(best)} has the best mean rank by {ranking.quantity.title}, "
        f"{numbers.rounded(ranking.ranks[best])} of {len(ranking.ranks)} over {count(ranking.n_sets, 'set')} of samples"
    )
    question = "Searchers over all settings"
    if ranking.p is None:
        return Finding(question, f"{lead}, which are too few for a test.", "measured", "verdicts")
    beaten = [pair.worse for pair in ranking.pairs if pair.better == best and pair.wins == ranking.n_sets]
    always = f" Worse by every set: {listed(beaten)}." if beaten else ""
    if not worse:
        verdict = f"{lead}, but no searcher is significantly worse (Friedman {numbers.probability(ranking.p)}).{always}"
        return Finding(question, verdict, "not significant", "verdicts")
    others = [name for name in ranking.ranks if name not in (best, *worse)]
    similar = f" Not significantly different from it: {listed(others, most=12)}." if others else ""
    verdict = f"{lead}. Significantly worse (Nemenyi's test, p ≤ {LEVEL}): {listed(worse, most=12)}.{similar}{always}"
    return Finding(question, verdict, "clear", "verdicts")
