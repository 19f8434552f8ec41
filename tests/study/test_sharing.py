"""What searches add to a study, from their records alone."""

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.study.record import add_assessed
from raysearch.study.sharing import shared_layer_forwards

SINGLES = [[layer] for layer in range(4)]


@pytest.fixture
def calibrations():
    tokens = np.ones((4, 8), np.int64)
    return [Calibration.create(PerplexityObjective(), Batch(tokens, tokens > 0), 2, {}, {})]


def record(*rounds, statistics=()):
    trials = [{"round": 0, "mask": []}]
    trials += [{"round": number, "mask": mask} for number, masks in enumerate(rounds, start=1) for mask in masks]
    return {"trials": trials, "statistics": list(statistics)}


def test_the_first_search_pays_for_all_it_asks(calibrations):
    # N = 4: dense and singles share a chain of four, and suffixes of 3, 2 and 1
    assert shared_layer_forwards([record(SINGLES)], calibrations, 4) == [4 + 3 + 2 + 1]


def test_the_next_pays_for_what_is_new(calibrations):
    greedy = record(SINGLES, [[0, 1], [0, 2]])
    costs = shared_layer_forwards([record(SINGLES), greedy, greedy], calibrations, 4)
    assert costs == [10, 2 + 2, 0]  # {0,1} runs 2 and 3; {0,2} runs 1 and 3


def test_a_statistic_is_measured_once(calibrations):
    influence = record([[1]], statistics=["block_influence"])
    first, second = shared_layer_forwards([influence, influence], calibrations, 4)
    assert first == 4 + 4 + 2  # the statistic; the dense model; layers 2 and 3 after 0
    assert second == 0


def test_masks_that_losses_are_scaled_by_ride_in_the_first_round(calibrations):
    from raysearch.core.mask import Mask

    alone = shared_layer_forwards([record([[0, 1]])], calibrations, 4)
    scaled = shared_layer_forwards([record([[0, 1]])], calibrations, 4, [Mask.of(layer) for layer in range(4)])
    assert scaled[0] > alone[0]


def test_what_is_assessed_later_is_added_and_what_is_assessed_anew_replaced():
    one = {"name": "a", "title": "A"}, {"name": "b", "title": "B"}
    before = {"m": {"metrics": [one[0]], "by_mask": {"{}": {"a": {"value": 1.0}}, "{1}": {"a": {"value": 2.0}}}}}
    new = {"m": {"metrics": [one[1]], "by_mask": {"{1}": {"b": {"value": 3.0}}, "{2}": {"b": {"value": 4.0}}}}}
    whole = add_assessed(before, new)["m"]
    assert [metric["name"] for metric in whole["metrics"]] == ["a", "b"]
    assert whole["by_mask"]["{1}"] == {"a": {"value": 2.0}, "b": {"value": 3.0}}
    assert add_assessed(before, {"m": {"metrics": [one[0]], "by_mask": {"{}": {"a": {"value": 9.0}}}}})["m"]["by_mask"][
        "{}"
    ] == {"a": {"value": 9.0}}
