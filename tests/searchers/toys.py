"""What the tests of single searchers share."""

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
    found, rounds = drive(searcher, problem, loss, seed)
    return found, [proposed.masks for proposed in rounds]


class StatisticOracle(ToyOracle):
    """A toy oracle whose statistics are given: the same rows, whichever is asked for."""

    def __init__(self, problem, rows, loss=lambda mask: float(len(mask))):
        super().__init__(problem, loss)
        self.rows, self.asked = np.array(rows, dtype=np.float64), []

    def measure(self, statistic):
        self.asked.append(statistic)
        return self.rows


def run_on(searcher, problem, rows, **kwargs):
    """The mask that a searcher finds where a statistic has these rows, and the oracle it asked."""
    oracle = StatisticOracle(problem, rows, **kwargs)
    return run_searcher(searcher, problem, 0, oracle), oracle
