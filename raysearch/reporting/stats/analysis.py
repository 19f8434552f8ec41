"""Everything that is computed from a study, once, for tables, figures and sentences alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysearch.reporting.stats.agreement import Agreement, CrossAgreement, agreements, cross_agreements
from raysearch.reporting.stats.comparison import Comparison, comparisons
from raysearch.reporting.stats.contrast import Contrast, contrasts
from raysearch.reporting.stats.correlation import Correlation, correlations
from raysearch.reporting.stats.effect import CalibrationEffect, calibration_effects
from raysearch.reporting.stats.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    averages,
    cells_frame,
    has,
    headline,
)
from raysearch.reporting.stats.ranking import Ranking, ranking
from raysearch.reporting.stats.variance import Split, Spread, splits, spreads
from raysearch.studies.result import StudyResult
from raysearch.studies.spec import Margin


@dataclass(frozen=True)
class Analysis:
    """A study, and what follows from it.

    Args:
        frame: Its searches, see `cells_frame`.
        averages: The averages that some search was assessed by.
        by_loss: The searchers of each setting compared by their loss on the calibration.
        by_held_out: The same by their loss on the samples of other draws; empty where there are none.
        by_average: The same by each average.
        rankings: The searchers over all settings, by each of these quantities.
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
    agreements: Sequence[Agreement]
    cross: Sequence[CrossAgreement]
    correlations: Sequence[Correlation]
    splits: Sequence[Split]
    spreads: Sequence[Spread]

    @property
    def headline(self) -> Quantity:
        """The number that a report opens with, see `raysearch.reporting.stats.frame.headline`."""
        return headline(self.results, self.frame)

    @property
    def by_fresh_loss(self) -> Sequence[Comparison]:
        """In each setting by held-out loss where all have it, which flatters nobody; else that on the calibration."""
        known = {(one.setting, len(one.rivals)): one for one in self.by_held_out}
        return [known.get((one.setting, len(one.rivals)), one) for one in self.by_loss]


def analyse(results: StudyResult) -> Analysis:
    """Compute everything; what a study is too small for comes out empty."""
    frame = cells_frame(results)
    assessed = [one for one in averages(results) if has(frame, one)]
    compared = {
        one: comparisons(frame, one, margin_of(one, results.margin))
        for one in (CALIBRATION_LOSS, HELD_OUT_LOSS, *assessed)
    }
    return Analysis(
        results=results,
        frame=frame,
        averages=assessed,
        by_loss=compared[CALIBRATION_LOSS],
        by_held_out=compared[HELD_OUT_LOSS],
        by_average=[found for one in assessed for found in compared[one]],
        rankings=[found for one in compared if (found := ranking(frame, one))],
        contrasts=study_contrasts(results, frame),
        effects=[found for one in assessed for found in calibration_effects(frame, one)],
        agreements=agreements(frame, results.n_layers),
        cross=cross_agreements(frame),
        correlations=correlations(frame, [CALIBRATION_LOSS, *assessed]),
        splits=splits(frame, assessed),
        spreads=[found for one in assessed for found in spreads(frame[frame["uses_objective"]], one)],
    )


def study_contrasts(results: StudyResult, frame: pd.DataFrame) -> list[Contrast]:
    """Answer the contrasts of a study by its losses and averages."""
    asked = [one for one in (HELD_OUT_LOSS, CALIBRATION_LOSS, *averages(results)) if has(frame, one)]
    return contrasts(frame, results.contrasts, [(one, margin_of(one, results.margin)) for one in asked])


def margin_of(quantity: Quantity, margin: Margin) -> float | None:
    """Return the difference below which searches are as good as each other by a quantity; None if nobody has said."""
    if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS) or quantity.group == "perplexity":
        return margin.loss
    return margin.points if quantity.group == "accuracy" else None
