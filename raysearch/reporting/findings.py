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

from raysearch.core.formatting import count, listed
from raysearch.reporting.stats.analysis import Analysis, study_contrasts
from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.contrast import Contrast
from raysearch.reporting.stats.correlation import Correlation
from raysearch.reporting.stats.difference import LEVEL, holm
from raysearch.reporting.stats.effect import CalibrationEffect
from raysearch.reporting.stats.frame import Quantity, cells_frame, is_ruined, of_shared_luck
from raysearch.reporting.stats.ranking import Ranking
from raysearch.reporting.stats.variance import Split, Spread
from raysearch.reporting.tables import numbers
from raysearch.study.result import StudyResult
from raysearch.study.spec import sides_of

#: How sure a finding is: ``clear`` if a test rejects that noise explains it, ``not told apart`` if none does;
#: ``measured`` is a count or a description without noise.
Sure = Literal["clear", "not told apart", "cannot tell", "measured"]


@dataclass(frozen=True)
class Finding:
    """A row of the table of findings.

    Args:
        verdict: The answer, one sentence.
        section: The part of the report with the evidence; empty where there is none.
    """

    question: str
    verdict: str
    sure: Sure
    section: str = ""


_MISSED = "would be missed more often than one time in five with these samples"


def findings(analysis: Analysis) -> list[Finding]:
    """Return the findings, the recommendation first; a study too small for one of them says so or leaves it out."""
    if not analysis.by_loss and not analysis.by_average:
        return [Finding("Searcher", "No search has found a mask yet.", "cannot tell", "searches")]
    leading, by_size = _parted(analysis.contrasts)
    return [
        *_contrasts(analysis.results, leading),
        *_searchers(analysis),
        *_draws(analysis),
        *_calibrations(analysis),
        *_variance(analysis),
        *_predictions(analysis),
        *_seeds(analysis),
        *_ruined(analysis),
        *map(_contrast, by_size),
        *_unfinished(analysis),
    ]


def contrast_findings(results: StudyResult) -> list[Finding]:
    """Return the answers to the named contrasts of a study alone; M by M only the clear ones, if there are others."""
    leading, by_size = _parted(study_contrasts(results, cells_frame(results)))
    return [*_contrasts(results, leading), *(one for one in map(_contrast, by_size) if one.sure == "clear")]


def _parted(contrasts: Sequence[Contrast]) -> tuple[list[Contrast], list[Contrast]]:
    """Return the answers of all M together, or M by M where there are none; and the rest, which are M by M."""

    def subject(one: Contrast) -> tuple[object, ...]:
        return one.first, one.second, one.quantity, one.setting.model, one.setting.calibration

    together = {subject(one) for one in contrasts if one.sizes[1:]}
    parts: tuple[list[Contrast], list[Contrast]] = [], []
    for one in contrasts:
        parts[not one.sizes[1:] and subject(one) in together].append(one)
    return parts


def _contrasts(results: StudyResult, contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """Answer every contrast of a study, those without results too."""
    answered = {f"{one.first} - {one.second}" for one in contrasts}
    for name in results.contrasts:
        first, second = sides_of(name)
        if (pair := f"{first} - {second}") not in answered:
            why = "in no setting have both searchers found a mask"
            verdict = f"Whether {first} is better than {second} cannot be told: {why}."
            yield Finding(pair, verdict, "cannot tell", "verdicts")
    yield from map(_contrast, contrasts)


def _contrast(one: Contrast) -> Finding:
    """Return the answer to a named contrast, and how fine a difference could have been seen."""
    sizes = f"M = {', '.join(map(str, one.sizes))}{' together' if one.sizes[1:] else ''}"
    where = f"by {one.quantity.title} ({one.setting.calibration}, {one.setting.model}, {sizes})"
    samples = {0: "no draw that both have", 1: "one draw"}.get(one.gap.n_draws, f"{one.gap.n_draws} draws")
    over = f"{samples}, {'one seed' if one.n_seeds == 1 else f'{one.n_seeds} seeds'}"
    question = f"{one.first} - {one.second}"
    half_width = one.gap.half_width()
    if half_width is None:
        why = "no noise is known" if one.gap.n_draws < 2 else "one draws random numbers, and the same ones in all draws"
        if not math.isfinite(one.gain):
            why = "a mask ruins the model"
        verdict = f"Whether {one.first} is better than {one.second} {where} cannot be told: {why} ({over})."
        return Finding(question, verdict, "cannot tell", "verdicts")
    if not one.gain and not half_width:
        verdict = f"{one.first} and {one.second} found the same {where} ({over})."
        return Finding(question, verdict, "measured", "verdicts")
    better, noise = "better" if one.gain > 0 else "worse", f"± {numbers.figure(half_width)} {one.unit}"
    by = f"by {numbers.figure(abs(one.gain))} {noise}"
    found = f"{better} {by}" if one.gain else f"neither better nor worse {noise}"
    corrected = f" corrected for {one.n_answers} answers" if one.n_answers > 1 else ""
    test = f"95 %, {over}, {numbers.probability(one.p)}{corrected}"
    if one.told:
        verdict = f"{one.first} is {better} than {one.second} {where}: {by} ({test})."
    elif one.equivalent:
        verdict = f"{one.first} is as good as {one.second} within the margin {where}: {found} ({test})."
    else:
        verdict = (
            f"{one.first} and {one.second} are not told apart {where}: {one.first} is {found} "
            f"({test}). A difference below {numbers.figure(one.gap.detectable)} {one.unit} {_MISSED}."
        )
    if one.gap.n_draws < 2:
        verdict += " With one draw this is of these masks, not of other samples."
    return Finding(question, verdict, "clear" if one.told or one.equivalent else "not told apart", "verdicts")


def _searchers(analysis: Analysis) -> Iterator[Finding]:
    """Which searchers are told apart: over all settings, and setting by setting."""
    basis = analysis.by_fresh_loss or [one for one in analysis.by_average if one.quantity == analysis.averages[-1]]
    several = [one for one in basis if len(one.rivals) > 1]
    if not several:
        only = listed(list(dict.fromkeys(one.best.searcher for one in basis)))
        verdict = f"Only one searcher has a mask in each setting ({only}): there is nothing to compare it with."
        yield Finding("Searcher", verdict, "cannot tell", "results")
        return
    for quantity in dict.fromkeys(one.quantity for one in several):
        yield from (_over_settings(one) for one in analysis.rankings if one.quantity == quantity)
        yield from _in_settings(quantity, [one for one in several if one.quantity == quantity], len(several))


def _in_settings(quantity: Quantity, several: Sequence[Comparison], n_all: int) -> Iterator[Finding]:
    """Which searchers are told apart from the best of a setting by a quantity, corrected for all settings."""
    n, verdicts = len(several), Counter(one.verdict for one in several)
    told = Counter(
        rival.searcher for one in several for rival in one.rivals if rival.p is not None and n_all * rival.p <= LEVEL
    )
    if verdicts["cannot tell"]:
        where = of_all(verdicts["cannot tell"], n, "setting")
        why = "no error is known, or a searcher that draws random numbers has one seed"
        verdict = f"Whether searchers differ by {quantity.title} within a setting cannot be told {where}: {why}."
        yield Finding("Searchers in a setting", verdict, "cannot tell", "verdicts")
    if told:
        names = listed([f"{name} ({times} of {n})" for name, times in told.most_common()], most=12)
        corrected = "" if n_all == 1 else f" (corrected for {n_all} settings)"
        verdict = (
            f"Worse than the best by {quantity.title} beyond noise, with the number of settings: {names}{corrected}."
        )
        yield Finding("Searchers in a setting", verdict, "clear", "verdicts")
    elif verdicts["cannot tell"] < n:
        sizes: dict[str, list[float]] = {}
        for one in several:
            if one.detectable:
                sizes.setdefault(one.unit, []).append(one.detectable)
        seen = [_span(numbers.figure(min(of)), numbers.figure(max(of)), unit) for unit, of in sizes.items()]
        fine = f"; a difference below {' or '.join(seen)} {_MISSED}" if seen else ""
        verdict = f"By {quantity.title} no searcher is told apart from the best {of_all(n, n, 'setting')}{fine}."
        yield Finding("Searchers in a setting", verdict, "not told apart", "verdicts")


def _span(least: str, most: str, unit: str) -> str:
    """Return sizes in words, from the least to the largest of several settings."""
    return f"{most} {unit}".rstrip() if least == most else f"{least} to {most} {unit}, by the setting,"


def _over_settings(ranking: Ranking) -> Finding:
    """The searcher of the best mean rank, and what is told apart from it."""
    best, told = ranking.best, ranking.behind(ranking.best)
    lead = (
        f"{numbers.capital(best)} has the best mean rank by {ranking.quantity.title}, "
        f"{numbers.figure(ranking.ranks[best])} of {len(ranking.ranks)} over {count(ranking.n_sets, 'set')} of samples"
    )
    if ranking.p is None:
        return Finding("Searcher", f"{lead}, which are too few for a test.", "measured", "verdicts")
    worse = [pair.worse for pair in ranking.pairs if pair.better == best and pair.wins == ranking.n_sets]
    always = f" Worse by every set: {listed(worse)}." if worse else ""
    if not told:
        verdict = f"{lead}, but no searcher is told apart from it (Friedman {numbers.probability(ranking.p)}).{always}"
        return Finding("Searcher", verdict, "not told apart", "verdicts")
    rest = [name for name in ranking.ranks if name not in (best, *told)]
    apart = f" Not told apart from it: {listed(rest, most=12)}." if rest else ""
    verdict = f"{lead}. Worse beyond noise (Nemenyi's test, p ≤ {LEVEL}): {listed(told, most=12)}.{apart}{always}"
    return Finding("Searcher", verdict, "clear", "verdicts")


def _draws(analysis: Analysis) -> Iterator[Finding]:
    """Whether results hold for other samples of the same calibrations."""
    frame = analysis.frame[analysis.frame["comparable"]]
    draws = frame.groupby(["model", "calibration"], observed=True)["draw"].nunique()
    if (draws < 2).any():
        verdict = (
            f"{'Every' if (draws < 2).all() else 'Some'} calibration was drawn once: what other samples of the same "
            "kind would give is not measured. study.grid.draw=[0,1,2] draws more."
        )
        yield Finding("Draws", verdict, "cannot tell", "verdicts")


def _calibrations(analysis: Analysis) -> Iterator[Finding]:
    """Which calibrations give better checkpoints than which, by each average."""
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
        pairs: dict[frozenset[str], list[CalibrationEffect]] = {}
        for one in analysis.effects:
            if one.quantity == quantity:
                pairs.setdefault(frozenset((one.best, one.second)), []).append(one)
        if not pairs:
            continue
        told = [of for of in pairs.values() if all(one.clear and one.best == of[0].best for one in of)]
        yield from (_better_calibration(quantity, of) for of in told)
        if all(one.p is None for of in pairs.values() for one in of):
            why = "one searcher is too little to say how sure"
            verdict = f"By {quantity.title} calibrations cannot be told apart: {why}."
            yield Finding("Calibration", verdict, "cannot tell", "verdicts")
        elif len(told) < len(pairs):
            rest = listed([" and ".join(sorted(pair)) for pair, of in pairs.items() if of not in told])
            verdict = f"By {quantity.title} not told apart, or not in all cases and one direction: {rest}."
            yield Finding("Calibration", verdict, "not told apart", "verdicts")


def _better_calibration(quantity: Quantity, cases: Sequence[CalibrationEffect]) -> Finding:
    """Which of two calibrations is told to be better in all cases, and by how much."""
    best, second, n_draws = cases[0].best, cases[0].second, min(one.n_draws for one in cases)
    least, most = (numbers.difference(end(one.gain for one in cases), quantity) for end in (min, max))
    size = least if least == most else f"{least.removesuffix(' times').removesuffix(' points')} to {most}"
    least_sure = numbers.probability(max(one.p for one in cases if one.p is not None))
    verdict = (
        f"By {quantity.title}, {best} gives better checkpoints than {second} ({size}), "
        f"{of_all(len(cases), len(cases), 'case')} ({least_sure} or less, "
    )
    if n_draws > 1:
        return Finding("Calibration", f"{verdict}{n_draws} draws).", "clear", "verdicts")
    verdict += "over searchers; one draw of each). Whether other samples of the same kind do so is not measured."
    return Finding("Calibration", verdict, "measured", "verdicts")


def _variance(analysis: Analysis) -> Iterator[Finding]:
    """How much of each average varies with the calibration and with the searcher."""
    for quantity in analysis.averages:
        parts = [one for one in analysis.splits if one.quantity == quantity]
        if not parts:
            continue
        shares = [(one.shares["calibration"], one.shares["searcher"]) for one in parts]
        calibration, searcher = map(statistics.median, zip(*shares, strict=True))
        larger = of_all(sum(mine > other for mine, other in shares), len(parts), "case")
        medians = f" (medians; the calibration's is larger {larger})" if len(parts) > 1 else ""
        drawn = "" if all(one.drawn for one in parts) else ", a calibration being one draw of its samples"
        how = "more with the calibration than" if calibration > searcher else "less with the calibration than"
        if math.isclose(calibration, searcher, abs_tol=1e-12):
            how = "as much with the calibration as"
        verdict = (
            f"{numbers.capital(parts[0].title)} varies {how} with the searcher: "
            f"{numbers.percent(calibration)} against {numbers.percent(searcher)} of the variance, noise taken off"
            f"{medians}{drawn}."
        )
        apart = {_larger_share(one) for one in parts}
        sure: Sure = "clear" if len(apart) == 1 and None not in apart else "not told apart"
        if any(one.stable is None for one in parts):
            sure = "cannot tell"
        elif sure == "clear" and drawn:
            sure = "measured"
        yield Finding("Calibration or searcher", verdict, sure, "variance")
        moves = [spread_sentence(analysis.spreads, quantity, by) for by in ("calibration", "searcher")]
        yield from (Finding("Size of the effect", move, "measured", "variance") for move in moves if move)


def _larger_share(split: Split) -> str | None:
    """Which share is the larger one beyond both intervals, whichever searcher is left out; None if neither is."""
    if not split.stable or not {"calibration", "searcher"} <= split.intervals.keys():
        return None
    calibration, searcher = split.intervals["calibration"], split.intervals["searcher"]
    return "calibration" if calibration[0] > searcher[1] else "searcher" if searcher[0] > calibration[1] else None


def spread_sentence(spreads: Sequence[Spread], quantity: Quantity, by: str) -> str:
    """Return the most that one choice moves a quantity, as section 5.2 of arXiv 2604.24938 gives it; or nothing."""
    members = [one for one in spreads if one.quantity == quantity and one.by == by]
    if not members:
        return ""
    largest = max(members, key=lambda one: one.size)
    size = f"up to {numbers.difference(largest.size, quantity)}"
    if quantity.ratio:
        size = f"a factor of up to {numbers.ratio_text(largest.size)}"
    where = f"{largest.panel.model}, M = {largest.panel.remove}, {largest.fixed}"
    return f"Changing the {by} alone moves the {quantity.title} by {size} ({where})."


def _predictions(analysis: Analysis) -> Iterator[Finding]:
    """Whether a better loss means a better checkpoint, calibration by calibration."""
    by_subject: dict[tuple[str, str, str], list[Correlation]] = {}
    for one in analysis.correlations:
        if one.rho is not None:
            by_subject.setdefault((one.first.title, one.second.title, one.setting.calibration), []).append(one)
    for (first, second, calibration), members in by_subject.items():
        corrected = holm([one.p for one in members])
        told = [one.rho for one, p in zip(members, corrected, strict=True) if one.rho and p is not None and p <= LEVEL]
        above = sum(rho > 0 for rho in told)
        if not told:
            means = f"Among searchers, {first} is not seen to tell {second}"
        elif 0 < above < len(told):
            means = f"Whether {first} predicts {second} depends on the setting"
        else:
            means = f"The better by {first}, the {'better' if above else 'worse'} by {second}"
            if len(told) < len(members):
                means += f" {of_all(len(told), len(members), 'setting')}, else not told apart from chance"
        verdict = f"{means} (under {calibration}): {correlation_sentence(members)}"
        yield Finding("Does a better loss help", verdict, "clear" if told else "not told apart", "correlations")


def correlation_sentence(members: Sequence[Correlation]) -> str:
    """Return median, range and signs of some correlations, as section 5.3 of arXiv 2604.24938 gives them."""
    rhos = [one.rho for one in members if one.rho is not None]
    signs = Counter("positive" if rho > 0 else "negative" for rho in rhos if rho)
    counts = " and ".join(f"{number} {sign}" for sign, number in sorted(signs.items(), reverse=True)) or "none but zero"
    return (
        f"median ρ {numbers.rho(statistics.median(rhos))}, range {numbers.rho(min(rhos))} to {numbers.rho(max(rhos))}, "
        f"{counts} of {len(rhos)}."
    )


def _seeds(analysis: Analysis) -> Iterator[Finding]:
    """Whether it is known how far a searcher's random numbers move its loss."""
    frame = analysis.frame[analysis.frame["comparable"]]
    seeds = frame[frame["stochastic"]].groupby("searcher", observed=True)["seed"].nunique()
    if (seeds == 1).any():
        names = listed([str(name) for name in seeds[seeds == 1].index])
        verdict = f"Searched with one seed, so how much its random numbers matter is not measured: {names}."
        yield Finding("Seeds", verdict, "cannot tell", "results")
    if shared := of_shared_luck(frame):
        verdict = (
            f"Ranks, effects of calibrations and shares of variance leave out {listed(shared)}: the random numbers "
            "were the same in several draws. A study gives each draw its own, unless the words of an axis have a seed."
        )
        yield Finding("Seeds", verdict, "cannot tell", "results")


def _ruined(analysis: Analysis) -> Iterator[Finding]:
    """How many masks the averages leave out."""
    masks = {
        (cell.model, tuple(cell.outcome.removed)): is_ruined(cell.outcome, analysis.results)
        for cell in analysis.results.cells
        if cell.outcome is not None and cell.outcome.assessed
    }
    if ruined := sum(masks.values()):
        verdict = (
            f"{ruined} of {len(masks)} assessed masks {'ruins' if ruined == 1 else 'ruin'} the model: a number is not "
            "finite, so no average has it."
        )
        yield Finding("Completeness", verdict, "measured", "results")


def _unfinished(analysis: Analysis) -> Iterator[Finding]:
    """How many searches the findings leave out."""
    if missing := int((~analysis.frame["state"].isin(["finished", "stopped"])).sum()):
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
