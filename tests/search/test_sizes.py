"""A range of sizes is one search, and finds what a search for each of them finds."""

from functools import partial

import pytest

from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem, sizes_of
from raysearch.errors import UserError
from raysearch.search.forecast import Forecaster
from raysearch.search.sizes import EachSize, for_sizes
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searchers.random_subset import RandomSubsetSearcher
from raysearch.testing.searcher_suite import drive, rugged_loss
from tests.cases import assert_refused

PROBLEM = Problem.create(7, "2..4", protect=[0])
LOSS = rugged_loss(PROBLEM, seed=3)


def proposed(rounds):
    return [mask for one in rounds for mask in one.masks]


def test_each_size_is_searched_as_if_for_it_alone():
    searcher = RandomSubsetSearcher(k=4)
    found, rounds = drive(for_sizes(searcher, range(2, 5)), PROBLEM, LOSS)
    alone = [drive(searcher, Problem.create(7, size, protect=[0]), LOSS) for size in (2, 3, 4)]
    assert proposed(rounds) == [mask for _, rounds in alone for mask in proposed(rounds)]
    assert found == alone[-1][0]


def test_beam_passes_through_every_size_in_one_run():
    searcher = BeamSearcher(width=2)
    assert for_sizes(searcher, range(2, 5)) is searcher
    _, rounds = drive(searcher, PROBLEM, LOSS)
    for size in (2, 3, 4):
        best = min((mask for mask in proposed(rounds) if len(mask) == size), key=LOSS)
        assert best == drive(searcher, Problem.create(7, size, protect=[0]), LOSS)[0]


def test_one_size_needs_no_wrapper():
    searcher = RandomSubsetSearcher()
    assert for_sizes(searcher, range(4, 5)) is searcher


def test_a_size_that_is_too_much_is_refused_before_anything_is_scored():
    def never(mask: Mask) -> float:
        raise AssertionError(f"{mask} was scored")

    with pytest.raises(UserError, match="searcher.limit=10 is below"):
        drive(EachSize(ExhaustiveSearcher(limit=10), range(1, 4)), Problem(7, 3), never)


def test_all_sizes_share_the_error_budget_of_screening():
    _, rounds = drive(for_sizes(RandomSubsetSearcher(k=4), range(2, 5)), PROBLEM, LOSS)
    assert [one.of for one in rounds] == [3, 3, 3]


def test_a_forecast_counts_every_size():
    searcher = for_sizes(ExhaustiveSearcher(), range(1, 4))
    costs = Forecaster().forecast(searcher, Problem(6, 3), seed=0, objectives=[PerplexityObjective()])
    assert costs is not None and sum(cost.masks for cost in costs) == 6 + 15 + 20


def test_what_a_user_asks_for():
    asked: dict[int | str, range] = {5: range(5, 6), "1..9": range(1, 10), "3..3": range(3, 4), "10..12": range(10, 13)}
    assert {remove: sizes_of(remove) for remove in asked} == asked


def test_what_no_user_can_have():
    cases = [
        ("9..1", "remove=9..1 runs backwards; use 1..9"),
        ("0..3", "remove=0..3 begins below 1; use 1..3"),
        ("1-9", "remove=1-9 should be a valid integer, or a range such as 1..9"),
        ("1...9", "remove=1...9 should be a valid integer, or a range"),
        ("1..7", "remove=1..7 leaves no layer of the 7 that the model has; use 1..6"),
    ]
    assert_refused(partial(Problem.create, 7), cases)
