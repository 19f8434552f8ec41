"""The linear map that stands for removed layers: sums over tokens, and the regularised least squares that they solve.

A cut removes layers between a half that stays, which adds x to the hidden state, and the next half. The removed layers
added y. The map D, and the constant c, are the best prediction of y from x:

    minimise  sum over tokens of w |x D + c - y|^2 + ridge s |D|^2      s: the mean of the diagonal of sum w x x'

With the map, the half adds x + x D + c. Its output weights hold that: W -> (1 + D') W. The weight of a token is
w = 1 / |h|^2 with h the hidden state after the removed layers, since the norm that reads h divides by its size:
otherwise the few tokens with huge states, such as the first of a row, would decide the map alone.

Source: ReplaceMe (arXiv 2505.02819) has the map of the MLP's output, with the ridge toward 0 instead of 1 + D, and
without weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CutSums:
    """Sums over tokens, of which each has a weight w.

    Args:
        inputs: The sum of w [x, 1]' [x, 1], [d + 1, d + 1].
        products: The sum of w [x, 1]' y, [d + 1, d].
        targets: The sum of w y y, over all dimensions.
        growth: The sum of |h after| / |h before| the removed layers, without weights.
        n_tokens: The number of tokens.
    """

    inputs: Array
    products: Array
    targets: float
    growth: float
    n_tokens: int

    @classmethod
    def total(cls, parts: Iterable[CutSums]) -> CutSums:
        """Return the sum of parts, added in their order."""
        return functools.reduce(cls.plus, parts)

    def plus(self, other: CutSums) -> CutSums:
        """Return the sums over these tokens and those of `other`."""
        return CutSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def mean_growth(self) -> float:
        """The mean factor by which the removed layers change the size of a token's hidden state."""
        return self.growth / self.n_tokens

    def error(self, linear_map: LinearMap) -> float:
        """Return the squared error of a map on these tokens, as a share of that of predicting 0."""
        rows = np.vstack([linear_map.matrix, linear_map.constant])
        squared = self.targets - 2 * np.vdot(rows, self.products) + np.vdot(rows, self.inputs @ rows)
        return float(squared / self.targets)


@dataclass(frozen=True)
class LinearMap:
    """The map that stands for removed layers.

    Args:
        matrix: D, [d, d]; a row x of the half's output becomes x + x D.
        constant: c, [d]; zeros without a bias.
    """

    matrix: Array
    constant: Array


def solve(sums: CutSums, ridge: float, with_constant: bool) -> LinearMap:
    """Return the map with the least regularised squared error.

    Args:
        sums: The sums over the tokens to fit.
        ridge: The regularisation of the matrix, relative to the mean squared input; it is not applied to the constant.
        with_constant: Whether there is a constant.

    Returns:
        The map.
    """
    n_inputs = len(sums.inputs) - 1
    size = n_inputs + with_constant
    penalty = np.zeros(size)
    penalty[:n_inputs] = ridge * np.trace(sums.inputs[:n_inputs, :n_inputs]) / n_inputs
    matrix = sums.inputs[:size, :size] + np.diag(penalty)
    solution: Array = np.asarray(np.linalg.solve(matrix, sums.products[:size]), np.float64)
    constant = solution[n_inputs] if with_constant else np.zeros(n_inputs)
    return LinearMap(solution[:n_inputs], constant)


def solve_constant(sums: CutSums) -> LinearMap:
    """Return the map that is a constant alone: the weighted mean of what the removed layers added."""
    n_inputs = len(sums.inputs) - 1
    constant: Array = sums.products[n_inputs] / sums.inputs[n_inputs, n_inputs]
    return LinearMap(np.zeros((n_inputs, n_inputs)), constant)
