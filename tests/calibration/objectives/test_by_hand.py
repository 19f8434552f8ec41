"""Objectives on distributions written down by hand: a state is the probabilities of the next token."""

import math

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.objectives.hidden_cosine import HiddenCosineObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.objectives.task_accuracy import TaskAccuracyObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.errors import UserError
from tests.sentences import Sentences


class Probabilities:
    """A head whose states are what it says, and whose last hidden state is theirs doubled."""

    vocab_size = 3

    def logits(self, hidden):
        return hidden.log()

    def last_hidden(self, hidden):
        return 2 * hidden

    def fused_log_probs(self, hidden, tokens):
        return None


HEAD = Probabilities()

# Item 0: gold has two tokens of 1/2 and 1/8, the wrong choice one of 1/4.
# Item 1: gold (the second of three) has one token of 1/8, the wrong ones one of 1/2 and two of 1/4 each.
ROWS = [[0, 0, 1], [0, 2], [0, 0], [0, 1], [0, 2, 2]]
STATES = torch.tensor(
    [[1 / 2, 1 / 4, 1 / 4], [5 / 8, 1 / 8, 1 / 4], [1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4], [3 / 4, 1 / 8, 1 / 8]]
    + [[1 / 2, 1 / 4, 1 / 4]] * 2
)
ITEMS = Batch.of(
    ROWS,
    [[False, *[True] * (len(row) - 1)] for row in ROWS],
    Choices(np.array([0, 0, 1, 1, 1]), np.array([True, False, False, True, False]), np.array([8, 1, 2, 1, 9])),
)
LOG2 = math.log(2)


@pytest.mark.parametrize(
    ("options", "losses"),
    [
        # in units of log 2; item 0: l = -2 (mean of -1 and -3), -2; item 1: l(gold) = -3, the wrong ones -1 and -2
        ({}, [0.0, 3 - 1.5]),
        ({"against": "max"}, [0.0, 3 - 1]),
        ({"against": "sum"}, [0.0, 2 * 3 - (1 + 2)]),
        # sums of tokens: item 0: -4, -2; item 1: -3, -1 and -4
        ({"tokens": "sum"}, [4 - 2, 3 - 2.5]),
        ({"tokens": "sum", "against": "max"}, [4 - 2, 3 - 1]),
        ({"tokens": "sum", "against": "sum"}, [4 - 2, 2 * 3 - (1 + 4)]),
    ],
)
def test_margins(options, losses):
    for items, divisor in (("mean", 7), ("sum", 1)):
        objective = TaskMarginObjective(**options | {"items": items})
        assert (objective.losses(STATES, ITEMS, HEAD, None) / LOG2).tolist() == pytest.approx(losses)
        assert objective.measure.divisor(100, 7) == divisor


@pytest.mark.parametrize(
    ("normalise", "wrong"),
    [
        ("none", [1, 1]),  # sums -4, -2; -1, -3, -4
        ("tokens", [0, 1]),  # means -2, -2: the first of equals; -1, -3, -2
        ("characters", [0, 1]),  # -4/8, -2/1; -1/2, -3/1, -4/9
    ],
)
def test_accuracy(normalise, wrong):
    assert TaskAccuracyObjective(normalise).losses(STATES, ITEMS, HEAD, None).tolist() == wrong


def test_an_item_without_probabilities_is_neither_right_nor_wrong():
    broken = STATES.clone()
    broken[0] = math.nan
    losses = TaskAccuracyObjective().losses(broken, ITEMS, HEAD, None).tolist()
    assert math.isnan(losses[0])
    assert losses[1] == 1


TEXT = Batch.of([[0, 1, 2], [0, 0]], [[False, True, True], [False, True]])
DENSE = torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
PRUNED = torch.tensor([[1 / 4, 1 / 2, 1 / 4], [1 / 2, 1 / 4, 1 / 4], [1 / 3, 1 / 3, 1 / 3]])


def test_perplexity():
    assert PerplexityObjective().losses(PRUNED, TEXT, HEAD, None).tolist() == pytest.approx(
        [LOG2 + 2 * LOG2, math.log(3)]
    )


@pytest.mark.parametrize(
    ("direction", "first"),
    [
        ("forward", (1 / 2 - 1 / 4) * LOG2 + LOG2),
        ("reverse", math.inf),  # the dense model gives no chance to what the pruned one thinks of
        ("js", None),
    ],
)
def test_divergences(direction, first):
    losses = KLObjective(direction).losses(PRUNED, TEXT, HEAD, DENSE).tolist()
    if first is None:
        jensen = [jensen_shannon(p, q) for p, q in zip(PRUNED.tolist(), DENSE.tolist(), strict=True)]
        assert losses == pytest.approx([jensen[0] + jensen[1], 0], abs=1e-6)
        assert all(value <= LOG2 for value in jensen)
    else:
        assert losses == pytest.approx([first, 0], abs=1e-6)


def jensen_shannon(first, second):
    def entropy(probabilities):
        return -sum(p * math.log(p) for p in probabilities if p)

    mixture = [(p + q) / 2 for p, q in zip(first, second, strict=True)]
    return entropy(mixture) - (entropy(first) + entropy(second)) / 2


def test_hidden_cosine():
    states = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 3]])
    dense = torch.tensor([[0.0, 2, 0], [1, 0, 0], [0, 0, 1]])
    losses = HiddenCosineObjective().losses(states, TEXT, HEAD, dense)
    assert losses.tolist() == pytest.approx([1 + (1 - math.sqrt(0.5)), 0])


@pytest.mark.parametrize(
    ("objective", "option"),
    [
        (KLObjective, {"direction": "foward"}),
        (TaskMarginObjective, {"against": "sun"}),
        (WeightedObjective, {"weights": (1.0,), "normalise": "spred"}),
    ],
)
def test_a_value_that_an_option_does_not_have_is_refused(objective, option, sentences: Sentences):
    with sentences.refused(UserError):
        objective(**option)
