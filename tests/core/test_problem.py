from functools import partial

from raysearch import Mask, Problem
from raysearch.core.problem import sizes_of
from tests.sentences import Sentences


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
    assert not Problem.create(3, 1).is_legal(Mask.of(0, 1, 2))
    assert problem.n_solutions == 6


def test_impossible_problems_say_what_would_do(sentences: Sentences):
    cases = [
        (31, []),
        (30, []),
        (0, []),
        (29, [0, -1]),
        (5, [30]),
        (5, [*range(30)]),
        (5, [-31]),
    ]
    sentences.refused_each(
        lambda remove, protect: Problem.create(30, remove, protect, model="smollm2-135m"),
        [{"remove": remove, "protect": protect} for remove, protect in cases],
    )


def test_several_sizes():
    sizes: dict[int | str, range] = {5: range(5, 6), "1..9": range(1, 10), "3..3": range(3, 4), "10..12": range(10, 13)}
    assert {remove: sizes_of(remove) for remove in sizes} == sizes


def test_impossible_sizes_are_refused(sentences: Sentences):
    cases = [
        "9..1",
        "0..3",
        "1-9",
        "1...9",
        "1..7",
    ]
    sentences.refused_each(partial(Problem.create, 7), cases)
