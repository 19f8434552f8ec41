"""The figures of a study's losses by size of masks, by evaluations, and by tokens of a training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from raysearch.figures.courses import (
    Course,
    CoursePanel,
    PathPanel,
    TrainingCurve,
    path_picture,
    progress_picture,
    recovery_picture,
)
from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.studies.result import RecoveredMask, StudyResult


def path_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the lowest loss by size of masks, a panel per calibration, a line per searcher.

    A line shows the searches of a searcher with the largest M, as the mean over draws and seeds.

    Args:
        results: The study.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model.
    """
    return pictures("paths", _path_panels(results), partial(path_picture, palette))


def progress_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the best loss so far by evaluations, a panel per setting, a line per search.

    Args:
        results: The study.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model.
    """
    return pictures("progress", _course_panels(results), partial(progress_picture, palette))


def recovery_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the loss by tokens, a panel per recovery method, a line per mask.

    Args:
        results: The study.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model; empty without a recovery.
    """
    trained = [mask for mask in results.recovered if mask.record.training.held_out]
    return pictures("recovery", ((mask.model, _curve(mask)) for mask in trained), partial(recovery_picture, palette))


def _path_panels(results: StudyResult) -> Iterator[tuple[str, PathPanel]]:
    """Yield the panels on which a line has more than two points, each with its model."""
    for (model, calibration), cells in _recorded(results, "path").groupby(["model", "calibration"], sort=False):
        paths = _paths(cells)
        if any(len(path) > 2 for path in paths.values()):
            yield model, PathPanel(calibration, cells["outcome"].iloc[0].measure.unit, paths, results.plural)


def _paths(cells: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return by searcher the mean loss over draws and seeds, at size 0 and each size that all of them have."""
    paths = {}
    for searcher, searches in cells.groupby("searcher", sort=False):
        largest = searches.loc[searches["remove"] == searches["remove"].max(), "outcome"]
        losses = [{0: outcome.dense_loss, **outcome.path} for outcome in largest]
        path = pd.DataFrame(losses).dropna(axis="columns").mean().sort_index()
        paths[searcher] = path[np.isfinite(path)].to_dict()
    return paths


def _course_panels(results: StudyResult) -> Iterator[tuple[str, CoursePanel]]:
    """Yield the panels of the searches that have recorded their courses, each with its model."""
    labels = ["model", "remove", "calibration"]
    for (model, remove, calibration), cells in _recorded(results, "best_so_far").groupby(labels, sort=False):
        courses = [
            Course(cell.searcher, cell.outcome.best_so_far, cell.outcome.evaluations) for cell in cells.itertuples()
        ]
        yield model, CoursePanel(calibration, remove, cells["outcome"].iloc[0].measure.unit, courses)


def _recorded(results: StudyResult, course: str) -> pd.DataFrame:
    """Return the searches that have recorded a course, an attribute of their outcomes, a row each."""
    cells = [vars(cell) for cell in results.cells if cell.outcome and getattr(cell.outcome, course)]
    return pd.DataFrame(cells, columns=["model", "calibration", "searcher", "remove", "seed", "outcome"])


def _curve(mask: RecoveredMask) -> TrainingCurve:
    label = f"{mask.searchers}, M = {mask.remove}" if mask.remove else "dense"
    return TrainingCurve(mask.record.way, label, mask.found_by[0], mask.record.training.held_out)
