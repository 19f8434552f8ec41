import pytest
from scipy import stats

from raysearch.core.measure import PERPLEXITY
from raysearch.searching.sweep import Profile, Sweep


def profile(name, *losses):
    return Profile(name, PERPLEXITY, 1.0, losses, tuple(None if loss is None else 0.1 for loss in losses))


FIRST = profile("one", 2.0, 1.5, 3.0, 1.5, 9.0)
SECOND = profile("other", 1.2, 1.1, None, 1.4, 1.3)
FLAT = profile("flat", 1.0, 1.0, 1.0, 1.0, 1.0)


def sweep_of(*profiles: Profile, model: str = "tiny") -> Sweep:
    return Sweep(model, profiles, tuple("01234"))


def test_equal_losses_have_equal_ranks_and_failures_are_last():
    assert (FIRST.ranking, FIRST.ranks) == ([1, 3, 0, 2, 4], [3, 1, 4, 1, 5])
    assert (SECOND.ranking, SECOND.ranks) == ([1, 0, 4, 3, 2], [2, 1, 5, 4, 3])


def test_agreement():
    agreement, undefined = (sweep_of(FIRST, profile).agreements(2)[0] for profile in (SECOND, FLAT))
    expected = stats.spearmanr([2.0, 1.5, 3.0, 1.5, 9.0], [1.2, 1.1, 99, 1.4, 1.3]).statistic
    assert agreement.spearman == pytest.approx(expected)
    assert (agreement.shared, agreement.n_remove) == (1, 2)
    assert undefined.spearman is None, "equal losses have no rank correlation"
