"""A study's grid: every combination of its axes, and the rules that add and leave out combinations."""

import pytest

from raysearch.errors import UserError
from raysearch.studies.grid import combinations_of
from tests.sentences import Sentences

GRID = {"searcher": {"beam 3": "searcher=beam searcher.width=3", "one": "searcher=one_shot"}, "remove": [5, 7]}


def overrides(grid, **rules):
    return [combination.overrides for combination in combinations_of(grid, **rules)]


def test_every_combination_in_the_order_of_the_axes():
    assert overrides(GRID) == [
        ("searcher=beam", "searcher.width=3", "remove=5"),
        ("searcher=beam", "searcher.width=3", "remove=7"),
        ("searcher=one_shot", "remove=5"),
        ("searcher=one_shot", "remove=7"),
    ]


def test_labels_by_dimension():
    combination = combinations_of({"objective": ["kl"], "data": ["c4"], "data.samples": [8], "searcher.width": [2]})[0]
    assert combination.label("calibration") == "kl, c4, samples=8"
    labels = [combination.label("calibration") for combination in combinations_of({"target": [None, "vllm"]})]
    assert labels == ["target=null", "target=vllm"]
    assert combination.label("searcher") == "width=2"
    assert combination.label("model") is None


def test_spaces_are_compared_as_searchers_are():
    grid = {"searcher": ["greedy"], "space": ["layers", "pairs"], "remove": [2]}
    assert [combination.label("searcher") for combination in combinations_of(grid)] == [
        "greedy, layers",
        "greedy, pairs",
    ]
    assert combinations_of(grid)[1].overrides == ("searcher=greedy", "space=pairs", "remove=2")


@pytest.mark.parametrize("axis", ["draw", "data.seed"])
def test_other_samples_are_another_draw_of_the_same_calibration(axis):
    first, second = combinations_of({"objective": ["kl"], axis: [0, 1]})
    assert (first.overrides, second.overrides) == (("objective=kl", "data.seed=0"), ("objective=kl", "data.seed=1"))
    assert [first.label("calibration"), second.label("calibration")] == ["kl", "kl"]
    assert [first.label("draw"), second.label("draw")] == ["0", "1"]


def test_rules_leave_out_and_add():
    assert len(overrides(GRID, exclude=[{"searcher": "one", "remove": [7]}])) == 3
    assert overrides(
        GRID, exclude=[{"searcher": ["one", "beam 3"], "remove": 7}], include=[{"searcher": "one", "remove": 9}]
    )[-1] == ("searcher=one_shot", "remove=9")
    assert len(overrides(GRID, include=[{"searcher": "one", "remove": 5}])) == 4, "it exists, so it is not added again"


def test_values_may_contain_spaces():
    (combination,) = combinations_of({"data.path": ["my text.txt"]})
    assert combination.overrides == ("data.path=my text.txt",)


@pytest.mark.parametrize(
    ("grid", "rules"),
    [
        ({}, {}),
        ({"remove": []}, {}),
        ({"remove": "1..3"}, {}),
        ({"remove": 5}, {}),
        ({"searcher": {"x": "beam"}}, {}),
        ({"searcher": {1: "searcher=beam", "1": "searcher=greedy"}}, {}),
        (GRID, {"exclude": [{"sercher": "one"}]}),
        (GRID, {"exclude": [{"searcher": "onne"}]}),
        (GRID, {"exclude": ["one"]}),
        (GRID, {"exclude": [{"remove": [5, 7]}]}),
        (GRID, {"include": [{"searcher": "one"}]}),
    ],
)
def test_wrong_grids_and_rules_are_refused(grid, rules, sentences: Sentences):
    with sentences.refused(UserError):
        combinations_of(grid, **rules)
