"""The palette of a study."""

from __future__ import annotations

from raysearch.figures.palette import Palette
from raysearch.studies.result import StudyResult


def study_palette(results: StudyResult) -> Palette:
    """Return the looks of the searchers and calibrations of a study, in its order."""
    searchers = [cell.searcher for cell in results.cells]
    calibrations = [cell.calibration for cell in results.cells]
    return Palette.of(searchers, calibrations)
