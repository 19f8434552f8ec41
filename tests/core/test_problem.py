from functools import partial

from raysearch import Mask, Problem
from raysearch.core.problem import sizes_of
from tests.cases import assert_refused


def test_children_extend_every_parent_once_and_spare_the_protected():
    problem = Problem.create(5, 2, protect=[0, -1])
    assert problem.protected == {0, 4}
    assert problem.children([problem.dense]) == problem.singles == (Mask.of(1), Mask.of(2), Mask.of(3))
    assert problem.children([Mask.of(1), Mask.of(2)]) == (Mask.of(1, 2), Mask.of(1, 3), Mask.of(2, 3))


def test_legality():
    problem = Problem.create(5, 2, protect=[0])
    assert problem.is_legal(Mask())
    assert problem.is_legal(Mask.of(1, 2, 3, 4))
    assert not problem.is_legal(Mask.of(0))
    assert not problem.is_legal(Mask.of(5))
    assert problem.is_solution(Mask.of(1, 4))
    assert not problem.is_solution(Mask.of(1))
    assert not Problem(3, 1).is_legal(Mask.of(0, 1, 2))
    assert problem.n_solutions == 6


def test_impossible_problems_say_what_would_do():
    cases = [
        (31, [], r"remove=31 leaves no layer of the 30 that smollm2-135m has; use 1..29"),
        (30, [], r"remove=30 leaves no layer of the 30 that smollm2-135m has; use 1..29"),
        (0, [], r"remove=0 removes nothing; use 1..29"),
        (29, [0, -1], r"remove=29 is more than can go of the 30 that smollm2-135m has with 2 protected; use 1..28"),
        (5, [30], r"protect=\[30\] names layer 30, but smollm2-135m has layers 0 … 29"),
        (5, [*range(30)], r"keeps all 30 layers of smollm2-135m; protect fewer"),
        (5, [-31], r"protect=\[-31\] names layer -31"),
    ]
    assert_refused(
        lambda remove, protect: Problem.create(30, remove, protect, model="smollm2-135m"),
        [({"remove": remove, "protect": protect}, message) for remove, protect, message in cases],
    )


def test_several_sizes():
    sizes: dict[int | str, range] = {5: range(5, 6), "1..9": range(1, 10), "3..3": range(3, 4), "10..12": range(10, 13)}
    assert {remove: sizes_of(remove) for remove in sizes} == sizes


def test_impossible_sizes_are_refused():
    cases = [
        ("9..1", "remove=9..1 runs backwards; use 1..9"),
        ("0..3", "remove=0..3 begins below 1; use 1..3"),
        ("1-9", "remove=1-9 should be a valid integer, or a range: write remove=1..9"),
        ("1...9", "remove=1...9 should be a valid integer, or a range"),
        ("1..7", "remove=1..7 leaves no layer of the 7 that the model has; use 1..6"),
    ]
    assert_refused(partial(Problem.create, 7), cases)
