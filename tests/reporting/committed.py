"""A committed study of experiments/rethinking_layer_redundancy, through the report's own types."""

from __future__ import annotations

import runpy
from collections.abc import Collection
from pathlib import Path

from raysearch.study.result import StudyResult

FOLDER = Path(__file__).parents[2] / "experiments" / "rethinking_layer_redundancy"
RESULTS = FOLDER / "results" / "four_calibrations"
_CLAIMS = runpy.run_path(str(FOLDER / "claims.py"))
SEVEN: Collection[str] = _CLAIMS["SEVEN"]


def committed_study(searchers: Collection[str] | None = None) -> StudyResult:
    """Return the study of some searchers, of all by default."""
    results: StudyResult = _CLAIMS["study"](RESULTS / "cells.csv", searchers)
    return results
