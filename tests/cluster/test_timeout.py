"""How long a replica may take."""

import pytest

from raysearch.assessment.harness import TaskJob
from raysearch.cluster.timeout import TimeoutPolicy
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.evaluation.unit import Survey, Unit


def unit(n_masks, calibration="a"):
    return Unit(calibration, 0, tuple(Mask.of(layer) for layer in range(n_masks)))


def test_an_hour_while_nothing_is_known():
    assert TimeoutPolicy().limit_s(unit(1)) == 3600


def test_ten_times_the_longest_by_size():
    patience = TimeoutPolicy()
    patience.learn(unit(4), 40)
    patience.learn(unit(1), 30)
    patience.learn(unit(2), 2)
    assert patience.limit_s(unit(1)) == 300
    assert patience.limit_s(unit(5)) == 1500


def test_a_minute_at_least():
    patience = TimeoutPolicy()
    patience.learn(unit(1), 0.01)
    assert patience.limit_s(unit(3)) == 60


def test_other_kinds_are_not_known_by_it():
    patience = TimeoutPolicy()
    patience.learn(unit(1), 1)
    assert patience.limit_s(unit(1, "b")) == 3600
    assert patience.limit_s(Survey("a", 0, Statistic.TAYLOR)) == 3600


def test_other_jobs_take_as_long_as_they_do():
    job = TaskJob(Mask.of(1), "piqa", None, None, None, 8)
    patience = TimeoutPolicy(7.5)
    assert patience.limit_s(job) == 86400
    patience.learn(job, 1000)
    assert patience.limit_s(job) == 10_000


@pytest.mark.parametrize("n_masks", [1, 100])
def test_a_fixed_limit_stays(n_masks):
    patience = TimeoutPolicy(7.5)
    patience.learn(unit(1), 1000)
    assert patience.limit_s(unit(n_masks)) == 7.5
