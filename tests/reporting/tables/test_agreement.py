"""The table of additivity: joint removals against the sum of single ones."""

from __future__ import annotations

import itertools

import pytest

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.space import SPACES
from raysearch.core.trial import JointRemoval, Trial, joint_removals
from raysearch.reporting.tables.agreement import additivity_table
from tests.reporting.cells import cell, outcome, study


def trials(costs: dict[int, float], extra: float) -> list[Trial]:
    """Return every layer alone, every pair, which costs the sum and `extra`, and a mask with an unknown layer."""
    deltas = {Mask(): 0.0} | {Mask.of(layer): cost for layer, cost in costs.items()}
    deltas |= {Mask.of(*pair): sum(costs[layer] for layer in pair) + extra for pair in itertools.combinations(costs, 2)}
    deltas[Mask.of(0, 9)] = 5.0
    measured = [Trial(i, 1, mask, 2.0 + delta, delta, None, False) for i, (mask, delta) in enumerate(deltas.items())]
    return [*measured, Trial(100, 1, Mask.of(1, 2, 3), None, None, "broke", False)]


LAYERS = Sites.of_equal_layers(10)
COSTS = {0: 0.1, 1: 0.2, 2: 0.4, 3: 0.8}


def test_joint_removals_are_masks_of_layers_that_were_removed_alone() -> None:
    joints = joint_removals(trials(COSTS, 0.25), LAYERS)
    assert [joint.size for joint in joints] == [2] * 6
    assert {round(joint.summed, 9) for joint in joints} == {0.3, 0.5, 0.9, 0.6, 1.0, 1.2}
    assert all(joint.delta - joint.summed == pytest.approx(0.25) for joint in joints)


def test_joint_removals_of_pairs_have_the_costs_of_their_pairs() -> None:
    space = SPACES["pairs"]
    deltas = {Mask.of("0m", "1a"): 0.1, Mask.of(4): 0.2, Mask.of("0m", "1a", 4): 0.5, Mask.of("0m", "1a", 1): 0.9}
    measured = [Trial(i, 1, mask, 2.0 + delta, delta, None, False) for i, (mask, delta) in enumerate(deltas.items())]
    (joint,) = joint_removals(measured, space.select(LAYERS), space)
    assert (joint.size, joint.delta) == (2, 0.5)
    assert joint.summed == pytest.approx(0.3)


@pytest.mark.parametrize(("extra", "share"), [(0.25, "100 %"), (-0.25, "0 %")])
def test_the_table_sets_them_beside_each_other(extra: float, share: str) -> None:
    joints = joint_removals(trials(COSTS, extra), LAYERS)
    table = additivity_table(
        study(cell("CBO", outcome(joint_removals=joints)), cell("greedy", outcome(joint_removals=joints[:2])))
    )
    assert table is not None
    (row,) = table.rows
    assert [shown.text for shown in row[2:]] == ["2", "6", f"{0.75 + extra:+.4f}", "+0.7500", share, "+1.00"]


def test_few_masks_have_no_table() -> None:
    assert additivity_table(study(cell("CBO", outcome(joint_removals=[JointRemoval(2, 1.0, 0.5)] * 9)))) is None
