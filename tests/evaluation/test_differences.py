"""The statistics of the differences between masks."""

import numpy as np

from raysearch.evaluation.differences import MaskDifference, SharedVariance


def test_similar_variances_count_for_degrees_of_freedom(subtests):
    rng = np.random.default_rng(0)
    for name, sigmas, least, most in (("similar", np.ones(40), 15, 20), ("different", np.exp(np.arange(40.0)), 0, 0.5)):
        with subtests.test(name):
            errors = [sigma * rng.standard_normal(8).std(ddof=1) for sigma in sigmas]
            shared = SharedVariance.of([MaskDifference(1.0, error, 7) for error in errors])
            assert least <= shared.degrees <= most
    assert SharedVariance.of([MaskDifference(1.0, 1.0, 7)]) == SharedVariance()
