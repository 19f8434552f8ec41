"""The curves of a study whose calibrations differ by their number of samples."""

from __future__ import annotations

import numpy as np
import pytest

from raysearch.reporting.analysis.frame import cells_frame
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.pictures.sizes import size_pictures
from raysearch.studies.result import StudyResult
from tests.reporting.cells import cell, outcome, study


def sized(*sources: str) -> StudyResult:
    """Two draws of 16 and of 64 samples each: by 16 they have one layer of three in common, by 64 both."""
    masks = {(16, "0"): (1, 2), (16, "1"): (2, 3), (64, "0"): (1, 2), (64, "1"): (1, 2)}
    return study(
        *(
            cell(
                "greedy",
                outcome(removed=mask, n_samples=samples, source=source),
                f"{samples} of {source}",
                draw=draw,
                held_out_by_draw={"1": samples + 0.5} if draw == "0" else {"0": samples + 1.5},
            )
            for source in sources
            for (samples, draw), mask in masks.items()
        )
    )


def test_the_curves_are_those_of_the_masks() -> None:
    results = sized("a")
    (picture,) = size_pictures(cells_frame(results), study_palette(results))
    alike, losses = (axes for axes in picture.figure.axes if axes.get_visible())
    for axes, means, parts in ((alike, [1 / 3, 1], [[1 / 3], [1]]), (losses, [16.5, 64.5], [[16, 17], [64, 65]])):
        line, *dashes = (np.asarray(line.get_xydata()) for line in axes.get_lines())
        assert line.tolist() == [[16, pytest.approx(means[0])], [64, pytest.approx(means[1])]]
        assert [sorted(dash[:, 1].tolist()) for dash in dashes] == [pytest.approx(part) for part in parts]


def test_other_calibrations_have_curves_of_their_own_or_none() -> None:
    results = sized("a", "b")
    (picture,) = size_pictures(cells_frame(results), study_palette(results))
    assert len(picture.figure.axes) == 4
    one_size = study(*(cell for cell in results.cells if cell.calibration.startswith("16")))
    assert size_pictures(cells_frame(one_size), study_palette(one_size)) == []
