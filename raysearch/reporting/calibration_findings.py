"""Findings about calibrations: which gives the better checkpoints, M by M, as in the table of calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.effect import CalibrationEffect
from raysearch.reporting.analysis.frame import Quantity
from raysearch.reporting.finding import Finding, place_in, sure_of
from raysearch.text import numbers

_QUESTION = "Which calibration?"
_MOST_PAIRS = 6  # the most pairs that are named one by one


def calibration_findings(analysis: Analysis) -> Iterator[Finding]:
    """Yield for each average which calibration gives better checkpoints than which."""
    if analysis.frame["calibration"].nunique() < 2:
        verdict = "One calibration was tried, so its effect is not measured."
        yield Finding(_QUESTION, verdict, "cannot tell", leads=True)
    elif not analysis.averages:
        verdict = (
            "It is not known which calibration is better: no checkpoint was assessed, and the losses of two "
            "calibrations have different units."
        )
        command = f"raysearch assess {analysis.results.study_id}{analysis.results.option}"
        yield Finding(_QUESTION, verdict, "cannot tell", leads=True, command=command)
    for quantity in analysis.averages:
        effects = [effect for effect in analysis.effects if effect.quantity == quantity]
        yield from _by_quantity(quantity, effects, quantity == analysis.headline)


def _by_quantity(quantity: Quantity, effects: Sequence[CalibrationEffect], leads: bool) -> Iterator[Finding]:
    """Yield an answer for each pair of calibrations that differ significantly at some M, then one for all other pairs.

    The answers about the calibration that is most often the better one lead.
    """
    if effects and all(effect.p is None for effect in effects):
        verdict = f"By {quantity.title}, calibrations cannot be compared, because a test needs two searchers or more."
        yield Finding(_QUESTION, verdict, "cannot tell", "verdicts", leads)
        return
    pairs: dict[frozenset[str], list[CalibrationEffect]] = {}
    for effect in effects:
        pairs.setdefault(frozenset((effect.best, effect.second)), []).append(effect)
    best = Counter(effect.best for effect in effects).most_common(1)
    similar = {pair: members for pair, members in pairs.items() if not any(effect.clear for effect in members)}
    for pair, members in pairs.items():
        if pair not in similar or len(similar) == 1:
            yield _pair(quantity, members, leads and best[0][0] in pair)
    if len(similar) > 1:
        names = [" and ".join(sorted(pair)) for pair in similar]
        more = f"; and {len(names) - _MOST_PAIRS} more" if len(names) > _MOST_PAIRS else ""
        verdict = (
            f"By {quantity.title}, these pairs do not differ significantly: {'; '.join(names[:_MOST_PAIRS])}{more}."
        )
        yield Finding(_QUESTION, verdict, "not significant", "verdicts", leads)


def _pair(quantity: Quantity, effects: Sequence[CalibrationEffect], leads: bool) -> Finding:
    """Return which of two calibrations is better at each M, the significant differences first."""
    clear = [effect for effect in effects if effect.clear]
    ordered = [*clear, *(effect for effect in effects if not effect.clear)]
    first = ordered[0]
    panels = [effect.panel for effect in effects]
    agree = all(effect.best == first.best for effect in effects)
    clauses = []
    for effect in ordered:
        where = f"at {place_in(effect.panel, panels)} ({quantity.difference_text(effect.gain)}, {_tested(effect)})"
        if clear and agree:
            clauses.append(f"{'significantly' if effect.clear else 'in the same direction'} {where}")
        elif clear:
            degree = "significantly better" if effect.clear else "better, but not significantly,"
            clauses.append(f"{effect.best} is {degree} {where}")
        else:
            clauses.append(where if agree else f"{effect.best} is better {where}")
    if clear and agree:
        answer = f"{first.best} gives better checkpoints than {first.second}"
    elif clear:
        answer = f"it depends on the setting whether {first.best} or {first.second} gives the better checkpoints"
    else:
        answer = f"{first.best} and {first.second} do not differ significantly"
        clauses[0] = f"{first.best} is better {clauses[0]}" if agree else clauses[0]
    verdict = f"By {quantity.title}, {answer}: {'; '.join(clauses)}."
    sure = sure_of(len(clear), len(effects))
    n_draws = min(effect.n_draws for effect in effects)
    if n_draws > 1:
        return Finding(_QUESTION, f"{verdict} The test is over {n_draws} draws of each.", sure, "verdicts", leads)
    verdict += (
        " The test is over searchers, with one draw of each calibration. So it is not measured whether other samples "
        "of the same kind have the same result."
    )
    return Finding(_QUESTION, verdict, "measured" if clear else sure, "verdicts", leads)


def _tested(effect: CalibrationEffect) -> str:
    return "not tested" if effect.p is None else numbers.probability(effect.p)
