"""A searcher of sites gets the statistics of its sites, and proposes masks of the model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Site, Sites
from raysearch.core.space import SPACES
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.angular_window import AngularWindowSearcher
from raysearch.searching.driver import run_searcher
from raysearch.searching.model_masks import statistic_of_sites
from raysearch.testing.searcher_suite import ToyOracle, additive_loss
from tests.sentences import Sentences

N = 5
LAYERS = Sites.of_equal_layers(N)


def test_scores_of_sites_are_sums_over_their_halves() -> None:
    of_halves = np.arange(10.0)[None]
    statistic = Statistic.TAYLOR_HALVES
    scores = {
        name: statistic_of_sites(statistic, of_halves, SPACES[name].select(LAYERS))[0].tolist() for name in SPACES
    }
    assert scores["halves"] == [*range(10)]
    assert scores["attention"] == [0, 2, 4, 6, 8]
    assert scores["mlp"] == [1, 3, 5, 7, 9]
    assert scores["pairs"] == [half + half + 1 for half in range(9)]
    assert scores["layers"] == scores["pairs"][::2]


def test_distances_of_sites_are_those_between_the_ends_of_windows() -> None:
    statistic = Statistic.ANGULAR_DISTANCE_LAST_HALVES
    distances = np.random.default_rng(0).random((2, 2 * N + 1, 2 * N + 1))
    of_pairs = statistic_of_sites(statistic, distances, SPACES["pairs"].select(LAYERS))
    for site in range(2 * N - 1):
        for size in range(1, 1 + (2 * N - site) // 2):
            window = np.diagonal(of_pairs, size, axis1=1, axis2=2)[:, site]
            np.testing.assert_array_equal(window, distances[:, site, site + 2 * size])
    of_halves = statistic_of_sites(statistic, distances, SPACES["halves"].select(LAYERS))
    np.testing.assert_array_equal(of_halves, distances)


def test_sites_of_several_layers_may_overlap() -> None:
    couples = LAYERS.of_model(Site.joined(couple) for couple in itertools.pairwise(LAYERS))
    scores = statistic_of_sites(Statistic.TAYLOR, np.array([[1.0, 10.0, 100.0, 1e3, 1e4]]), couples)
    assert scores.tolist() == [[11, 110, 1100, 11000]]
    distances = np.random.default_rng(0).random((2, N + 1, N + 1))
    of_couples = statistic_of_sites(Statistic.ANGULAR_DISTANCE_LAST, distances, couples)
    np.testing.assert_array_equal(of_couples[:, 0, 1], distances[:, 0, 2])
    np.testing.assert_array_equal(of_couples[:, 1, 3], distances[:, 1, 5])
    groups = LAYERS.in_groups(2)  # the last one has one layer
    assert statistic_of_sites(Statistic.TAYLOR, np.arange(5.0)[None], groups).tolist() == [[1, 5, 4]]
    of_groups = statistic_of_sites(Statistic.ANGULAR_DISTANCE_LAST, distances, groups)
    np.testing.assert_array_equal(of_groups, distances[:, [0, 2, 4, 5]][:, :, [0, 2, 4, 5]])


def test_a_window_of_pairs_may_begin_with_an_mlp() -> None:
    problem = Problem.create(N, 2, space=SPACES["pairs"])
    costs = [5.0, 1.0, 1.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0]  # of the halves
    oracle = ToyOracle(problem, lambda mask: sum(costs[half.position] for half in mask.all_halves))
    assert run_searcher(AngularWindowSearcher(), problem, 0, oracle) == Mask.of("0m", 1, "2a")


def test_windows_are_refused_if_other_halves_stay_within_them(sentences: Sentences) -> None:
    problem = Problem.create(N, 2, space=SPACES["attention"])
    with sentences.refused(UserError):
        run_searcher(AngularWindowSearcher(), problem, 0, ToyOracle(problem, additive_loss(problem, seed=0)))


@pytest.mark.parametrize("statistic", Statistic)
def test_a_statistic_of_halves_is_that_of_layers_with_more_numbers(statistic: Statistic) -> None:
    assert statistic.of_halves.of_layers is statistic.of_layers
    assert statistic.of_halves.by_sample == statistic.by_sample
    assert statistic.of_halves.passes == statistic.passes
    size = statistic.of_layers.shape(LAYERS)[0]
    assert statistic.of_halves.shape(LAYERS)[0] == size + N
