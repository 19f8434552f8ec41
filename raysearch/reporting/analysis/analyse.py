"""Everything that a report computes from a study, once, for its tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysearch.reporting.analysis.agreement import CrossAgreement, MaskAgreement, agreements, cross_agreements
from raysearch.reporting.analysis.comparison import Comparison, comparisons
from raysearch.reporting.analysis.contrast import Contrast, contrasts
from raysearch.reporting.analysis.correlation import Correlation, correlations
from raysearch.reporting.analysis.effect import CalibrationEffect, calibration_effects
from raysearch.reporting.analysis.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    averages,
    cells_frame,
    has_quantity,
    headline,
)
from raysearch.reporting.analysis.ranking import Ranking, ranking
from raysearch.reporting.analysis.variance import LargestChange, Split, largest_changes, splits
from raysearch.studies.result import StudyResult
from raysearch.studies.spec import Margin


@dataclass(frozen=True)
class Analysis:
    """A study and its statistics.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
        averages: The averages that at least one search has.
        by_loss: The searchers of each setting compared by their loss on the calibration.
        by_held_out: The same by their loss on the samples of other draws; empty if there are none.
        by_average: The same by each average.
        rankings: The searchers over all settings, by each of these quantities.
        contrasts: The answers to the named contrasts of the study.
        effects: The comparisons of two calibrations by each average.
        agreements: How far the masks of a setting agree.
        cross: How far the masks on two calibrations agree.
        correlations: The rank correlations of each two quantities.
        splits: The shares of the variance of each average.
        largest_changes: The largest differences that one choice makes.
    """

    results: StudyResult
    frame: pd.DataFrame
    averages: Sequence[Quantity]
    by_loss: Sequence[Comparison]
    by_held_out: Sequence[Comparison]
    by_average: Sequence[Comparison]
    rankings: Sequence[Ranking]
    contrasts: Sequence[Contrast]
    effects: Sequence[CalibrationEffect]
    agreements: Sequence[MaskAgreement]
    cross: Sequence[CrossAgreement]
    correlations: Sequence[Correlation]
    splits: Sequence[Split]
    largest_changes: Sequence[LargestChange]

    @property
    def headline(self) -> Quantity:
        """The number with which a report opens, see `raysearch.reporting.analysis.frame.headline`."""
        return headline(self.results, self.frame)

    @property
    def by_fresh_loss(self) -> Sequence[Comparison]:
        """The comparison of each setting by held-out loss if all its searchers have one, else by calibration loss.

        A held-out loss flatters no searcher.
        """
        held_out = {(comparison.setting, len(comparison.rivals)): comparison for comparison in self.by_held_out}
        return [held_out.get((comparison.setting, len(comparison.rivals)), comparison) for comparison in self.by_loss]


def analyse(results: StudyResult) -> Analysis:
    """Compute all statistics of a study; those for which it is too small are empty."""
    frame = cells_frame(results)
    assessed = [average for average in averages(results) if has_quantity(frame, average)]
    compared = {
        quantity: comparisons(frame, quantity, margin_of(quantity, results.margin))
        for quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS, *assessed)
    }
    return Analysis(
        results=results,
        frame=frame,
        averages=assessed,
        by_loss=compared[CALIBRATION_LOSS],
        by_held_out=compared[HELD_OUT_LOSS],
        by_average=[comparison for quantity in assessed for comparison in compared[quantity]],
        rankings=[ranks for quantity in compared if (ranks := ranking(frame, quantity))],
        contrasts=study_contrasts(results, frame),
        effects=[effect for quantity in assessed for effect in calibration_effects(frame, quantity)],
        agreements=agreements(frame, results.sites),
        cross=cross_agreements(frame),
        correlations=correlations(frame, [CALIBRATION_LOSS, *assessed]),
        splits=splits(frame, assessed),
        largest_changes=[
            change for quantity in assessed for change in largest_changes(frame[frame["uses_objective"]], quantity)
        ],
    )


def study_contrasts(results: StudyResult, frame: pd.DataFrame) -> list[Contrast]:
    """Answer the contrasts of a study by its losses and averages.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.

    Returns:
        The answers, in the order of the study's configuration.
    """
    quantities = (HELD_OUT_LOSS, CALIBRATION_LOSS, *averages(results))
    measured = [quantity for quantity in quantities if has_quantity(frame, quantity)]
    margins = [(quantity, margin_of(quantity, results.margin)) for quantity in measured]
    return contrasts(frame, results.contrasts, margins)


def margin_of(quantity: Quantity, margin: Margin) -> float | None:
    """Return the difference below which searches are as good as each other by a quantity.

    Args:
        quantity: The quantity.
        margin: The margins of the study.

    Returns:
        The difference; None if the study has no margin for the quantity.
    """
    if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS) or quantity.group == "perplexity":
        return margin.loss
    return margin.points if quantity.group == "accuracy" else None
