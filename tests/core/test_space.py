"""Spaces: which sites a search removes, and which masks of them are legal."""

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest

from raysearch.core.json import from_json, to_json
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.problem import Problem
from raysearch.core.site import Site, Sites
from raysearch.core.space import SPACES, Space
from raysearch.errors import UserError
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searching.driver import run_searcher
from raysearch.testing.searcher_suite import ToyOracle
from tests.sentences import Sentences

N_LAYERS = 5
HALVES = [Half(layer, part) for layer in range(N_LAYERS) for part in PARTS]


def _masks(n_halves: int) -> list[Mask]:
    return [Mask.of_halves(halves) for halves in itertools.combinations(HALVES, n_halves)]


def _alternates(mask: Mask) -> bool:
    """Return whether what a mask leaves is A M A M …"""
    remaining = [half.part for half in HALVES if not mask.removes(half)]
    return remaining == [*PARTS] * (len(remaining) // 2)


def _is_of_space(mask: Mask, space: str) -> bool:
    match space:
        case "layers":
            return not mask.halves
        case "pairs":
            return _alternates(mask)
        case "halves":
            return True
        case part:
            return all(half.part == part for half in mask.all_halves)


@pytest.mark.parametrize("space", SPACES)
def test_the_solutions_are_all_masks_of_the_space(space: str):
    for size in (1, 2, 3):
        problem = Problem.create(N_LAYERS, size, space=SPACES[space])
        expected = {mask for mask in _masks(size * SPACES[space].n_halves) if _is_of_space(mask, space)}
        solutions = [*problem.solutions()]
        masks = {*map(problem.sites.mask_of, solutions)}
        assert masks == expected, size
        assert problem.n_solutions == len(solutions) == len(expected)
        assert [problem.sites.indices_of(mask) for mask in map(problem.sites.mask_of, solutions)] == solutions
        assert all(map(problem.is_solution, solutions))
        assert all(map(problem.is_solved_by, masks))
        assert {problem.size_of(mask) for mask in masks} == {size}


@pytest.mark.parametrize("space", SPACES)
def test_children_remove_all_that_their_parent_removes(space: str):
    larger = Problem.create(N_LAYERS, 3, space=SPACES[space])
    masks_of_larger = {*map(larger.sites.mask_of, larger.solutions())}
    for parent in Problem.create(N_LAYERS, 2, space=SPACES[space]).solutions():
        parent_mask = larger.sites.mask_of(parent)
        children = {*map(larger.sites.mask_of, larger.children([parent]))}
        assert children == {mask for mask in masks_of_larger if mask.contains(parent_mask)}
        assert larger.extends(parent_mask, children)


def test_protected_halves_and_layers_stay():
    protect: list[int | str] = [0, "2m", -1]
    labels = {
        name: [problem.sites[site].label for site in problem.free]
        for name, space in SPACES.items()
        if (problem := Problem.create(N_LAYERS, 1, protect, space=space))
    }
    assert labels == {
        "layers": ["1", "3"],
        "pairs": ["1", "1m,2a", "3"],
        "attention": ["1a", "2a", "3a"],
        "mlp": ["1m", "3m"],
        "halves": ["1a", "1m", "2a", "3a", "3m"],
    }


@pytest.mark.parametrize("space", SPACES)
def test_random_masks_have_the_same_probability(space: str):
    problem = Problem.create(N_LAYERS, 2, protect=[0], space=SPACES[space])
    rng = np.random.default_rng(0)
    n_draws = 4_000
    counts = Counter(problem.draw(rng) for _ in range(n_draws))
    share = 1 / problem.n_solutions
    assert set(counts) == {*problem.solutions()}
    deviation = (n_draws * share * (1 - share)) ** 0.5
    assert all(abs(count - n_draws * share) < 4 * deviation for count in counts.values())


def test_the_few_masks_of_almost_all_pairs_are_listed_without_the_others():
    problem = Problem.create(20, 18, space=SPACES["pairs"])
    solutions = [*problem.solutions()]
    assert len(solutions) == problem.n_solutions == 7_315
    assert solutions == sorted(solutions)
    assert all(map(problem.is_solution, solutions))


def test_a_solution_completes_any_legal_mask():
    """Sites in any order complete a mask, although the first ones may overlap or leave too little."""
    problem = Problem.create(N_LAYERS, 4, protect=["2a"], space=SPACES["pairs"])
    assert problem.n_solutions > 1
    for order in itertools.islice(itertools.permutations(problem.free), 0, None, 97):
        assert problem.is_solution(problem.completed(Mask(), order)), order
    assert problem.completed(Mask(), problem.free[:2]) == Mask.of(0), "too few sites are left over"


def test_sizes_that_do_not_fit_are_refused(sentences: Sentences):
    def create(remove: int, space: str, protect: list[int | str]) -> Problem:
        return Problem.create(N_LAYERS, remove, protect, space=SPACES[space])

    cases = [(5, "pairs", []), (3, "attention", [0, "2a", "4a"]), (10, "halves", []), (1, "mlp", [0, 1, 2, 3, 4])]
    cases += [(1, "pairs", ["5a"]), (1, "pairs", ["2x"])]
    sentences.refused_each(create, [dict(zip(("remove", "space", "protect"), case, strict=True)) for case in cases])


def test_a_space_of_halves_cannot_keep_groups_of_layers(sentences: Sentences):
    limits = PlaceLimits(group=2, reasons=("Runtime 1.0 derives which layers attend from their places, one in 2",))
    with sentences.refused(UserError):
        Problem.of_model(Sites.of_equal_layers(N_LAYERS), 1, limits=limits, space=SPACES["pairs"])


def test_a_space_stays_the_same_in_pickles_and_records() -> None:
    for space in SPACES.values():
        assert pickle.loads(pickle.dumps(space)) is space
        assert from_json(Space, to_json(space)) is space
    assert to_json(SPACES["pairs"]) == '"pairs"'


def test_a_space_is_one_entry(monkeypatch: pytest.MonkeyPatch):
    """A space of our own, of two neighbouring layers each, is searched by its entry alone."""

    def neighbours(layers: Sites) -> Sites:
        return layers.of_model(Site.joined(couple) for couple in itertools.pairwise(layers))

    space = Space("neighbours", "couple", "couples", 4, neighbours, keeps_blocks=True)
    monkeypatch.setitem(SPACES, "neighbours", space)
    problem = Problem.create(8, 2, protect=[0], space=SPACES["neighbours"])
    masks = {*map(problem.sites.mask_of, problem.solutions())}
    couples = [{layer, layer + 1} for layer in range(1, 7)]
    assert masks == {
        Mask.of(*couple, *other) for couple, other in itertools.combinations(couples, 2) if not couple & other
    }
    around = problem.children([Mask.of(3)])  # of the couple of layers 3 and 4
    assert [*map(str, map(problem.sites.mask_of, around))] == ["{1,2,3,4}", "{2,3,4,5}", "{3,4,5,6}", "{3,4,6,7}"]
    costs = np.random.default_rng(0).random(8)
    loss = ToyOracle(problem, lambda mask: float(costs[list(mask)].sum()))
    assert run_searcher(ExhaustiveSearcher(), problem, 0, loss) == min(masks, key=lambda mask: costs[list(mask)].sum())
