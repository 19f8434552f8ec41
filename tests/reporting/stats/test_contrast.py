from __future__ import annotations

from dataclasses import replace

import pytest

from raysearch.reporting.stats.analysis import analyse
from tests.reporting.cells import cell, outcome, study


def test_a_contrast_is_by_calibration_loss_where_one_side_has_no_held_out_loss():
    mine = [cell("a", outcome(1.0), draw=draw, held_out=1.1, held_out_by_draw={"2": 1.1}) for draw in "01"]
    theirs = [cell("b", outcome(1.5 + 0.01 * int(draw)), draw=draw) for draw in "01"]
    (found,) = analyse(replace(study(*mine, *theirs), contrasts=["a - b"])).contrasts
    assert found.quantity.key == "loss" and found.gain == pytest.approx(0.505)
