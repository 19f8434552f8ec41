"""Angular distance: the window of least distance, among those without protected layers."""

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.angular_window import AngularWindowSearcher
from tests.searchers.toys import run_on
from tests.sentences import Sentences


def distances(windows, size=2):
    """The matrix of one sample with d(l, l + size) = windows[l], and 0, the lowest distance, everywhere else."""
    return np.diag(np.array(windows, dtype=float), size)


@pytest.mark.parametrize("tokens", ["last", "all"])
def test_the_window_of_least_mean_distance_is_removed(tokens):
    rows = [distances([0.5, 0.1, 0.3, 0.2, 0.9]), distances([0.5, 0.7, 0.3, 0.3, 0.1])]
    mask, oracle = run_on(AngularWindowSearcher(tokens), Problem.create(6, 2), rows)
    assert mask == Mask.of(3, 4)  # neither sample alone has its least distance there
    assert oracle.statistics == [Statistic(f"angular_distance_{tokens}")]
    (remark,) = oracle.remarks
    assert remark.name == f"angular_distance_{tokens}"
    assert remark.value == pytest.approx([0.5, 0.4, 0.3, 0.25, 0.5])


def test_windows_with_protected_layers_are_not_considered():
    rows = [distances([0.1, 0.3, 0.4, 0.5, 0.2])]
    for protect, window in [([], (0, 1)), ([0], (4, 5)), ([0, -1], (1, 2)), ([1, 5], (2, 3)), ([0, 1, 4], (2, 3))]:
        mask, oracle = run_on(AngularWindowSearcher(), Problem.create(6, 2, protect), rows)
        assert mask == Mask(window), protect
        assert len(oracle.remarks[0].value) == 5


def test_the_first_of_equal_windows_is_removed():
    mask, _ = run_on(AngularWindowSearcher(), Problem.create(6, 2, [0]), [distances([0.1] * 5)])
    assert mask == Mask.of(1, 2)


def test_protection_that_leaves_no_window_is_refused_before_any_statistic_is_computed(sentences: Sentences):
    with sentences.refused(UserError):
        run_on(AngularWindowSearcher(), Problem.create(10, 4, [3, 7]), None)
