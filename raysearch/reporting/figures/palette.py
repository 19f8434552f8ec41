"""The palette of a study's figures."""

from __future__ import annotations

import itertools

from raysearch.core import style
from raysearch.study.result import StudyResult


def palette_of(results: StudyResult) -> style.Palette:
    """Colours and markers in the study's order, so that they stay where a search is added at the end."""
    searchers = dict.fromkeys(cell.searcher for cell in results.cells)
    calibrations = dict.fromkeys(cell.calibration for cell in results.cells)
    return style.Palette(
        colours=dict(zip(searchers, itertools.cycle(style.COLOURS), strict=False)),
        shapes=dict(zip(searchers, itertools.cycle(style.SHAPES), strict=False)),
        lines=dict(zip(searchers, itertools.cycle(style.LINES), strict=False)),
        fillings=dict(zip(calibrations, itertools.cycle(style.FILLINGS), strict=False)),
    )
