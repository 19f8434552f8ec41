"""The work that searches add to a study, from their records alone."""

from dataclasses import replace

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.trial import Trial
from raysearch.studies.study_record import AssessedMasks
from raysearch.studies.study_recorder import shared_layer_forwards
from tests.tracking.simulated import greedy_search

SITES = Sites.of_equal_layers(4)

SINGLES = [[layer] for layer in range(4)]


@pytest.fixture
def calibrations():
    tokens = np.ones((4, 8), np.int64)
    return [Calibration.create(PerplexityObjective(), Batch(tokens, tokens > 0), 2, {}, {})]


def result(*rounds, statistics=()):
    trials = [Trial(0, 0, Mask(), None, None, None, False)]
    trials += [
        Trial(0, number, Mask(tuple(mask)), None, None, None, False)
        for number, masks in enumerate(rounds, start=1)
        for mask in masks
    ]
    return replace(greedy_search(4, 1), trials=tuple(trials), statistics=tuple(statistics))


def test_the_first_search_pays_for_all_its_masks(calibrations):
    # N = 4: dense and singles share a chain of four, and suffixes of 3, 2 and 1
    assert shared_layer_forwards([result(SINGLES)], calibrations, SITES) == [4 + 3 + 2 + 1]


def test_the_next_search_pays_for_new_masks(calibrations):
    greedy = result(SINGLES, [[0, 1], [0, 2]])
    costs = shared_layer_forwards([result(SINGLES), greedy, greedy], calibrations, SITES)
    assert costs == [10, 2 + 2, 0]  # {0,1} runs 2 and 3; {0,2} runs 1 and 3


def test_a_statistic_is_measured_once(calibrations):
    influence = result([[1]], statistics=["block_influence"])
    first, second = shared_layer_forwards([influence, influence], calibrations, SITES)
    assert first == 4 + 4 + 2  # the statistic; the dense model; layers 2 and 3 after 0
    assert second == 0


def test_reference_masks_of_weighted_losses_belong_to_the_first_round(calibrations):
    separate = shared_layer_forwards([result([[0, 1]])], calibrations, SITES)
    scaled = shared_layer_forwards([result([[0, 1]])], calibrations, SITES, SITES.singles)
    assert scaled[0] > separate[0]


def test_new_assessed_numbers_are_added_and_replace_old_ones():
    a, b = (Metric(name, name.upper(), "accuracy", "%", True) for name in "ab")
    before = AssessedMasks((a,), {"{}": {"a": Estimate(1.0)}, "{1}": {"a": Estimate(2.0)}})
    extended = before.updated(AssessedMasks((b,), {"{1}": {"b": Estimate(3.0)}, "{2}": {"b": Estimate(4.0)}}))
    assert extended.metrics == (a, b)
    assert extended.of(Mask.of(1)) == {"a": Estimate(2.0), "b": Estimate(3.0)}
    replaced = before.updated(AssessedMasks((a,), {"{}": {"a": Estimate(9.0)}}))
    assert replaced.of(Mask()) == {"a": Estimate(9.0)}
    assert replaced.metrics == (a,)
