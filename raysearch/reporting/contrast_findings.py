"""Findings about the named contrasts of a study, as in the table of contrasts: is one searcher better than another?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raysearch.reporting.analysis.analyse import study_contrasts
from raysearch.reporting.analysis.contrast import Contrast
from raysearch.reporting.analysis.frame import cells_frame
from raysearch.reporting.finding import MISSED, Finding
from raysearch.studies.result import StudyResult
from raysearch.studies.spec import sides_of
from raysearch.text import numbers


@dataclass(frozen=True)
class OrderedContrasts:
    """The answers to contrasts.

    Args:
        leading: The answers over all M together; those for a single M where there is no such answer.
        by_size: The answers for a single M where there is an answer over all M together.
    """

    leading: Sequence[Contrast]
    by_size: Sequence[Contrast]


def in_order(contrasts: Sequence[Contrast]) -> OrderedContrasts:
    """Return contrasts in the order in which a report answers them."""
    subjects_over_all = {_subject(contrast) for contrast in contrasts if len(contrast.sizes) > 1}
    leading = []
    by_size = []
    for contrast in contrasts:
        if len(contrast.sizes) == 1 and _subject(contrast) in subjects_over_all:
            by_size.append(contrast)
        else:
            leading.append(contrast)
    return OrderedContrasts(leading, by_size)


def _subject(contrast: Contrast) -> tuple[object, ...]:
    """Return what contrasts of several M have in common."""
    return contrast.first, contrast.second, contrast.quantity, contrast.setting.model, contrast.setting.calibration


def contrast_findings(results: StudyResult) -> list[Finding]:
    """Return only the answers to the named contrasts of a study.

    Where there is an answer over all M together, an answer for a single M is given only if it is clear.
    """
    ordered = in_order(study_contrasts(results, cells_frame(results)))
    by_size = [contrast_finding(contrast) for contrast in ordered.by_size]
    return [*leading_findings(results, ordered.leading), *(finding for finding in by_size if finding.sure == "clear")]


def leading_findings(results: StudyResult, contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """Yield the answer to every contrast of a study, also to those without results.

    Args:
        results: The study.
        contrasts: Its leading answers.

    Yields:
        The finding of one contrast.
    """
    answered = {_question(contrast.first, contrast.second) for contrast in contrasts}
    for name in results.contrasts:
        first, second = sides_of(name)
        question = _question(first, second)
        if question not in answered:
            why = "in no setting have both searchers found a mask"
            verdict = f"It is not known whether {first} is better than {second}: {why}."
            yield Finding(question, verdict, "cannot tell", "verdicts")
    yield from map(contrast_finding, contrasts)


def contrast_finding(contrast: Contrast) -> Finding:
    """Return the answer to a named contrast, with the smallest detectable difference."""
    question = _question(contrast.first, contrast.second)
    first = contrast.first
    second = contrast.second
    where = _where(contrast)
    samples = _samples(contrast)
    half_width = contrast.gap.half_width()
    if half_width is None:
        verdict = (
            f"It is not known whether {first} is better than {second} {where}: {_why_unknown(contrast)} ({samples})."
        )
        return Finding(question, verdict, "cannot tell", "verdicts")
    if not contrast.gain and not half_width:
        verdict = f"{first} and {second} found the same {where} ({samples})."
        return Finding(question, verdict, "measured", "verdicts")
    better = "better" if contrast.gain > 0 else "worse"
    noise = f"± {numbers.rounded(half_width)} {contrast.unit}"
    gain = f"by {numbers.rounded(abs(contrast.gain))} {noise}"
    result = f"{better} {gain}" if contrast.gain else f"neither better nor worse {noise}"
    corrected = f" corrected for {contrast.n_answers} answers" if contrast.n_answers > 1 else ""
    test = f"95 %, {samples}, {numbers.probability(contrast.p)}{corrected}"
    if contrast.significant:
        verdict = f"{first} is {better} than {second} {where}: {gain} ({test})."
    elif contrast.equivalent:
        verdict = f"{first} is as good as {second} within the margin {where}: {result} ({test})."
    else:
        verdict = (
            f"{first} and {second} do not differ significantly {where}: {first} is {result} ({test}). A difference "
            f"below {numbers.rounded(contrast.gap.detectable)} {contrast.unit} {MISSED}."
        )
    if contrast.gap.n_draws < 2:
        verdict += " With one draw, this holds for these masks, but perhaps not for other samples."
    is_clear = contrast.significant or contrast.equivalent
    return Finding(question, verdict, "clear" if is_clear else "not significant", "verdicts")


def _question(first: str, second: str) -> str:
    return f"{first} - {second}"


def _where(contrast: Contrast) -> str:
    """Return the quantity and the setting: ``by held-out calibration loss (C4, llama, M = 3, 5 together)``."""
    sizes = f"M = {', '.join(map(str, contrast.sizes))}{' together' if len(contrast.sizes) > 1 else ''}"
    return f"by {contrast.quantity.title} ({contrast.setting.calibration}, {contrast.setting.model}, {sizes})"


def _samples(contrast: Contrast) -> str:
    """Return the number of draws and seeds: ``3 draws, one seed``."""
    few = {0: "no draw that both have", 1: "one draw"}
    draws = few.get(contrast.gap.n_draws, f"{contrast.gap.n_draws} draws")
    seeds = "one seed" if contrast.n_seeds == 1 else f"{contrast.n_seeds} seeds"
    return f"{draws}, {seeds}"


def _why_unknown(contrast: Contrast) -> str:
    """Return why the error of a contrast is not known."""
    if not math.isfinite(contrast.gain):
        return "a mask ruins the model"
    if contrast.gap.n_draws < 2:
        return "no noise is known"
    return "a searcher draws random numbers, which are the same in all draws"
