from functools import partial
from itertools import combinations

from raysearch import Mask, Problem
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.problem import sizes_of
from raysearch.core.site import Sites
from raysearch.errors import UserError
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


#: Three groups of four layers, and two layers after them.
_FOURS = PlaceLimits(group=4, reasons=("Runtime 1.0 derives which layers attend from their places, one in 4",))


def _of_fours(remove: int | str, protect: list[int]) -> Problem:
    return Problem.of_model(Sites.of_equal_layers(14), remove, protect, limits=_FOURS)


def test_groups_are_removed_as_a_whole():
    problem = _of_fours(8, [5])
    assert [site.label for site in problem.sites] == ["0-3", "4-7", "8-11", "12-13"]
    assert problem.protected == {1, 3}
    assert (problem.n_remove, problem.noun, problem.group, problem.size) == (2, "group", 4, 8)
    assert problem.sites.total_cost == problem.sites.n_layers == 14
    assert [*map(problem.sites.mask_of, problem.singles)] == [Mask.of(0, 1, 2, 3), Mask.of(8, 9, 10, 11)]
    assert problem.children(problem.singles[:1]) == (Mask.of(0, 2),)
    assert problem.n_solutions == 1
    solved = [mask for n in range(14) for mask in map(Mask, combinations(range(14), n)) if problem.is_solved_by(mask)]
    assert solved == [Mask.of(0, 1, 2, 3, 8, 9, 10, 11)]
    assert problem.extends(Mask.of(0, 1, 2, 3), solved)
    assert not problem.extends(Mask(), solved)


def test_multiples_of_groups_count():
    sizes: dict[int | str, int] = {4: 4, 8: 8, "1..9": 8, "1..4": 4, "auto": 12}
    assert {remove: _of_fours(remove, []).size for remove in sizes} == sizes


def test_what_a_target_does_not_allow_is_refused(sentences: Sentences):
    cases = [(3, []), (6, []), ("1..3", []), ("9..11", []), (12, [0]), (0, []), (4, [0, 4, 8])]
    sentences.refused_each(_of_fours, [{"remove": remove, "protect": protect} for remove, protect in cases])


def test_numbers_of_layers_that_a_target_does_not_allow(sentences: Sentences):
    limits = PlaceLimits(reasons=("Runtime 1.0 takes 26 layers for another model",), refused_depths=frozenset({26}))

    def problem(remove: int | str) -> Problem:
        return Problem.of_model(Sites.of_equal_layers(28), remove, limits=limits)

    assert [problem(remove).n_remove for remove in (1, 3, "1..2", "3..9")] == [1, 3, 1, 9]
    sentences.refused_each(problem, [2, "1..9", "auto"])


def test_a_target_may_allow_nothing(sentences: Sentences):
    limits = PlaceLimits(protected=frozenset(range(4)), reasons=("Runtime 1.0 computes slopes from places",))
    with sentences.refused(UserError):
        Problem.of_model(Sites.of_equal_layers(4), 1, limits=limits)


def test_limits_of_two_runtimes():
    both = PlaceLimits(4, frozenset({1}), ("a",)) | PlaceLimits(6, frozenset({7}), ("a", "b"), frozenset({9}))
    assert both == PlaceLimits(12, frozenset({1, 7}), ("a", "b"), frozenset({9}))
