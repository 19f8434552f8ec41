"""The findings of a study: a table of questions, each with a verdict of one computed sentence and how sure it is.

The evidence stands in the tables and figures of the section that a finding names.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from raysearch.core.formatting import listed
from raysearch.reporting.calibration_findings import calibration_findings
from raysearch.reporting.checkpoints import checkpoint_findings
from raysearch.reporting.finding import MISSED, Finding, Sure, of_all
from raysearch.reporting.searcher_findings import searcher_findings
from raysearch.reporting.stats.analysis import Analysis, study_contrasts
from raysearch.reporting.stats.contrast import Contrast
from raysearch.reporting.stats.correlation import Correlation
from raysearch.reporting.stats.difference import LEVEL, holm
from raysearch.reporting.stats.frame import Quantity, cells_frame, is_ruined, of_shared_luck
from raysearch.reporting.stats.variance import Split, Spread
from raysearch.reporting.tables import numbers
from raysearch.studies.result import StudyResult
from raysearch.studies.spec import sides_of


def findings(analysis: Analysis) -> list[Finding]:
    """Return the findings, named contrasts first; a study too small for one of them says so or leaves it out."""
    if not analysis.by_loss and not analysis.by_average:
        return [Finding("Which checkpoint?", "No search has found a mask yet.", "cannot tell", "searches", leads=True)]
    leading, by_size = _parted(analysis.contrasts)
    return [
        *_contrasts(analysis.results, leading),
        *calibration_findings(analysis),
        *searcher_findings(analysis),
        *checkpoint_findings(analysis),
        *_draws(analysis),
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
            f"{one.first} and {one.second} do not differ significantly {where}: {one.first} is {found} "
            f"({test}). A difference below {numbers.figure(one.gap.detectable)} {one.unit} {MISSED}."
        )
    if one.gap.n_draws < 2:
        verdict += " With one draw this is of these masks, not of other samples."
    return Finding(question, verdict, "clear" if one.told or one.equivalent else "not significant", "verdicts")


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
        sure: Sure = "clear" if len(apart) == 1 and None not in apart else "not significant"
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
            means = f"Among searchers, {first} does not significantly predict {second}"
        elif 0 < above < len(told):
            means = f"Whether {first} predicts {second} depends on the setting"
        else:
            means = f"The better by {first}, the {'better' if above else 'worse'} by {second}"
            if len(told) < len(members):
                means += f" {of_all(len(told), len(members), 'setting')}, else not significantly"
        verdict = f"{means} (under {calibration}): {correlation_sentence(members)}"
        yield Finding("Does a better loss help", verdict, "clear" if told else "not significant", "correlations")


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
