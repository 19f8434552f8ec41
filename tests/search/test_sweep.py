import pytest
from scipy import stats

from raysearch.core.measure import PERPLEXITY
from raysearch.search.sweep import Profile, Sweep


def profile(name, *losses):
    return Profile(name, PERPLEXITY, 1.0, losses, tuple(None if loss is None else 0.1 for loss in losses))


ONE = profile("one", 2.0, 1.5, 3.0, 1.5, 9.0)
OTHER = profile("other", 1.2, 1.1, None, 1.4, 1.3)
FLAT = profile("flat", 1.0, 1.0, 1.0, 1.0, 1.0)


def test_layers_that_are_missed_alike_share_a_rank():
    assert ONE.ranking == [1, 3, 0, 2, 4]
    assert ONE.ranks == [3, 1, 4, 1, 5]


def test_a_layer_without_which_it_fails_comes_last():
    assert OTHER.ranking == [1, 0, 4, 3, 2] and OTHER.ranks[2] == 5


def test_agreement():
    [found] = Sweep("tiny", (ONE, OTHER)).agreements(2)
    expected = stats.spearmanr([2.0, 1.5, 3.0, 1.5, 9.0], [1.2, 1.1, 99, 1.4, 1.3]).statistic
    assert found.spearman == pytest.approx(expected)
    assert (found.shared, found.n_remove) == (1, 2)


def test_what_tells_no_layers_apart_agrees_with_nothing():
    [found] = Sweep("tiny", (ONE, FLAT)).agreements(3)
    assert found.spearman is None
