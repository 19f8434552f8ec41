"""The cost of single layers: the requests, and the costs that result."""

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Remark, Round, Scores
from raysearch.searchers.toolbox.priors import layer_costs

PROBLEM = Problem.create(5, 2, protect=[1])


def scores_of(outcomes):
    """Return the scores of single layers from the outcome of each."""
    return Scores(Round(PROBLEM.singles), {Mask.of(layer): outcome for layer, outcome in outcomes.items()})


def test_ablation_scores_single_layers_and_costs_of_failed_ones_are_unknown():
    generator = layer_costs(PROBLEM, "ablation")
    assert next(generator) == Round(PROBLEM.singles)
    with pytest.raises(StopIteration) as stop:
        generator.send(scores_of({4: Loss(1.0), 0: Loss(3.0), 2: Loss(2.0), 3: Failed("broke")}))
    assert stop.value.value.tolist() == pytest.approx([3, 2, np.nan, 1], nan_ok=True)


def test_accepted_layers_cost_nothing_and_costs_of_dropped_ones_are_unknown():
    generator = layer_costs(PROBLEM, "ablation", keep=2)
    assert next(generator) == Round(PROBLEM.singles, keep=2, exact=False)
    with pytest.raises(StopIteration) as stop:
        generator.send(scores_of({0: Loss(1.0), 2: Accepted(2.0), 3: Dropped(3.0), 4: Loss(4.0)}))
    assert stop.value.value.tolist() == pytest.approx([1, -np.inf, np.nan, 4], nan_ok=True)


def test_no_ablation_at_all_ends_the_search_with_the_cause():
    generator = layer_costs(PROBLEM, "ablation")
    next(generator)
    with pytest.raises(EvaluationError, match="broke"):
        generator.send(scores_of(dict.fromkeys(PROBLEM.free, Failed("broke"))))


def test_influence_is_a_mean_over_samples_and_is_recorded_for_all_layers():
    generator = layer_costs(PROBLEM, "influence")
    assert next(generator) is Statistic.BLOCK_INFLUENCE
    assert generator.send(np.array([[1.0, 2, 3, 4, 5], [3.0, 2, 1, 0, 0]])) == Remark(
        "block_influence", [2, 2, 2, 2, 2.5]
    )
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value.tolist() == [2, 2, 2, 2.5]


def test_no_prior_makes_no_request():
    with pytest.raises(StopIteration) as stop:
        next(layer_costs(PROBLEM, "none"))
    assert stop.value.value.tolist() == [0, 0, 0, 0]
