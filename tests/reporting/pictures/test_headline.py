"""The figure with which a report opens."""

from __future__ import annotations

from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.pictures.headline import headline_pictures
from raysearch.reporting.pictures.palette import study_palette
from tests.reporting.cells import ACCURACY, grid


def test_the_best_share_of_right_answers_is_on_the_scale() -> None:
    values = {"a": 0.0, "b": 0.2, "c": 0.3, "d": 22.0}
    analysis = analyse(grid({("c", name): [value] for name, value in values.items()}, ACCURACY))
    (picture,) = headline_pictures(analysis, study_palette(analysis.results))
    assert picture.figure.axes[0].get_xlim()[1] > 22
