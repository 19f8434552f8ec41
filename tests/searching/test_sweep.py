import pytest
from scipy import stats

from raysearch.core.measure import PERPLEXITY
from raysearch.searching.sweep import Profile, Sweep


def profile(name, *losses):
    return Profile(name, PERPLEXITY, 1.0, losses, tuple(None if loss is None else 0.1 for loss in losses))


ONE = profile("one", 2.0, 1.5, 3.0, 1.5, 9.0)
OTHER = profile("other", 1.2, 1.1, None, 1.4, 1.3)
FLAT = profile("flat", 1.0, 1.0, 1.0, 1.0, 1.0)


def test_layers_that_are_missed_alike_share_a_rank_and_one_without_which_it_fails_comes_last():
    assert (ONE.ranking, ONE.ranks) == ([1, 3, 0, 2, 4], [3, 1, 4, 1, 5])
    assert (OTHER.ranking, OTHER.ranks) == ([1, 0, 4, 3, 2], [2, 1, 5, 4, 3])


def test_agreement():
    found, none = (Sweep("tiny", (ONE, other)).agreements(2)[0] for other in (OTHER, FLAT))
    expected = stats.spearmanr([2.0, 1.5, 3.0, 1.5, 9.0], [1.2, 1.1, 99, 1.4, 1.3]).statistic
    assert found.spearman == pytest.approx(expected)
    assert (found.shared, found.n_remove) == (1, 2)
    assert none.spearman is None, "what tells no layers apart agrees with nothing"
