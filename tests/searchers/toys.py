"""Helpers for the tests of single searchers."""

import numpy as np

from raysearch.core.mask import Mask
from raysearch.searchers.toolbox.subsets import all_masks
from raysearch.searching.driver import run_searcher
from raysearch.testing.searcher_suite import ToyOracle, drive


def cheapest(problem, loss):
    """The mask of the layers that cost least alone."""
    return Mask.of(*sorted(problem.free, key=lambda layer: loss(Mask.of(layer)))[: problem.n_remove])


def ranked(problem, loss):
    """All masks of M layers, best first."""
    return sorted(all_masks(problem), key=loss)


def rounds_of(searcher, problem, loss, seed=0):
    """The mask that a searcher finds on a toy loss, and the masks of each of its rounds."""
    mask, rounds = drive(searcher, problem, loss, seed)
    return mask, [proposed.masks for proposed in rounds]


class StatisticOracle(ToyOracle):
    """A toy oracle that answers every statistic with the same rows, and lists the requested statistics."""

    def __init__(self, problem, rows, loss=lambda mask: float(len(mask))):
        super().__init__(problem, loss)
        self.rows = np.array(rows, dtype=np.float64)
        self.statistics = []

    def measure(self, statistic):
        self.statistics.append(statistic)
        return self.rows


def run_on(searcher, problem, rows, **kwargs):
    """The mask that a searcher finds if every statistic has these rows, and the oracle."""
    oracle = StatisticOracle(problem, rows, **kwargs)
    return run_searcher(searcher, problem, 0, oracle), oracle
