"""Everything that is computed from a study, once, for tables, figures and sentences alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysearch.reporting.stats.agreement import Agreement, CrossAgreement, agreements, cross_agreements
from raysearch.reporting.stats.comparison import Comparison, comparisons
from raysearch.reporting.stats.correlation import Correlation, correlations
from raysearch.reporting.stats.effect import CalibrationEffect, calibration_effects
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, Quantity, averages, cells_frame, has
from raysearch.reporting.stats.variance import Split, Spread, splits, spreads
from raysearch.study.result import StudyResult


@dataclass(frozen=True)
class Analysis:
    """A study, and what follows from it.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
        averages: The averages that some search was assessed by.
        by_loss: The searchers of each setting compared by their loss on the calibration.
        by_average: The same by each average.
        effects: The calibrations compared, by each average.
        agreements: How similar masks are within a setting.
        cross: The same between calibrations.
        correlations: How rankings by loss and averages go together.
        splits: What the averages vary with.
        spreads: How far calibrations, and searchers, move each average.
    """

    results: StudyResult
    frame: pd.DataFrame
    averages: Sequence[Quantity]
    by_loss: Sequence[Comparison]
    by_average: Sequence[Comparison]
    effects: Sequence[CalibrationEffect]
    agreements: Sequence[Agreement]
    cross: Sequence[CrossAgreement]
    correlations: Sequence[Correlation]
    splits: Sequence[Split]
    spreads: Sequence[Spread]


def analyse(results: StudyResult) -> Analysis:
    """Computes everything; what a study is too small for comes out empty."""
    frame = cells_frame(results)
    assessed = [one for one in averages(results) if has(frame, one)]
    return Analysis(
        results=results,
        frame=frame,
        averages=assessed,
        by_loss=comparisons(frame, CALIBRATION_LOSS),
        by_average=[found for one in assessed for found in comparisons(frame, one)],
        effects=[found for one in assessed for found in calibration_effects(frame, one)],
        agreements=agreements(frame, results.n_layers),
        cross=cross_agreements(frame),
        correlations=correlations(frame, [CALIBRATION_LOSS, *assessed]),
        splits=splits(frame, assessed),
        spreads=[found for one in assessed for found in spreads(frame, one)],
    )
