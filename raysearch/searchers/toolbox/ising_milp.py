"""The lowest states of an Ising model of fixed size, proven by mixed-integer programming (HiGHS, through scipy).

A product x_i x_j becomes a variable y_ij with y_ij <= x_i, y_ij <= x_j and y_ij >= x_i + x_j - 1 (Fortet 1960). As
exactly `size` of the x are 1, multiplying that equation by x_i gives the valid rows

    sum_{j != i} y_ij = (size - 1) x_i

(the first level of Sherali and Adams 1990), which shorten the proof several times. After each state the row
sum_{i in S} x_i <= size - 1 cuts it off, and the next solve proves the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, vstack

from raysearch.searchers.toolbox.ising import Ising, LowestStates, State

_OPTIMAL, _INFEASIBLE = 0, 2  # scipy's status codes


def prove_lowest(model: Ising, size: int, count: int, candidates: LowestStates, time_limit_s: float) -> LowestStates:
    """Proves the `count` lowest states one after another, as many as time allows.

    Args:
        model: The model.
        size: How many variables are 1.
        count: How many states are wanted.
        candidates: States already known, from `swap_lowest`: what is returned beyond the proof, and at least as good as
            anything HiGHS has in hand when it is stopped.
        time_limit_s: For all solves together.

    Returns:
        The lowest of what HiGHS proved and of the candidates. A proof holds to 1e-6 of the largest coefficient, the
        solver's tolerance.
    """
    scale = max(np.abs(model.linear).max(), np.abs(model.pairs[~model.forbidden]).max(initial=0.0)) or 1.0
    program = _Program(model, size, scale)
    deadline = time.monotonic() + time_limit_s
    proven: list[State] = []
    gap = 0.0
    while len(proven) < count:
        found, bound = program.solve(proven, deadline - time.monotonic())
        if found is None:
            # What the bound allows below the lowest state that is known but not proven.
            rest = [energy for energy, state in _known(candidates) if state not in proven]
            gap = (rest[0] - bound) / max(abs(rest[0]), 1e-12 * scale) if rest else 0.0
            break
        proven.append(found)
    states = model.sorted_states([*proven, *candidates.states])[:count]
    return LowestStates.of(states, len(proven), max(0.0, gap))


def _known(candidates: LowestStates) -> list[tuple[float, State]]:
    return list(zip(candidates.energies, candidates.states, strict=True))


class _Program:
    """The linear program over x_1 … x_n and y_ij for i < j."""

    def __init__(self, model: Ising, size: int, scale: float) -> None:
        self._n = n = len(model.linear)
        first, second = np.triu_indices(n, 1)
        forbidden = model.forbidden[first, second]
        self._scale = scale
        self._cost = np.concatenate([model.linear, np.where(forbidden, 0.0, model.pairs[first, second])]) / scale
        self._size = size
        self._bounds = Bounds(0.0, np.concatenate([np.ones(n), np.where(forbidden, 0.0, 1.0)]))
        self._integrality = np.concatenate([np.ones(n), np.zeros(len(first))])

        each, y = np.arange(len(first)), n + np.arange(len(first))
        one = np.ones(len(first))
        width = n + len(first)
        upper_first = _matrix(len(first), width, (each, y, one), (each, first, -one))
        upper_second = _matrix(len(first), width, (each, y, one), (each, second, -one))
        # A forbidden y_ij is held at 0, so this row says x_i + x_j <= 1 there.
        lower = _matrix(len(first), width, (each, first, one), (each, second, one), (each, y, -one))
        cardinality = _matrix(1, width, (np.zeros(n, dtype=np.intp), np.arange(n), np.ones(n)))
        lifted = _matrix(
            n, width, (first, y, one), (second, y, one), (np.arange(n), np.arange(n), np.full(n, 1.0 - size))
        )
        self._constraints = [
            LinearConstraint(vstack([upper_first, upper_second]), -np.inf, 0.0),
            LinearConstraint(lower, -np.inf, 1.0),
            LinearConstraint(cardinality, size, size),
            LinearConstraint(lifted, 0.0, 0.0),
        ]

    def solve(self, cut: Sequence[State], time_limit_s: float) -> tuple[State | None, float]:
        """The lowest state that is not cut off, and a lower bound of its energy; no state if that is not proven.

        The bound is infinite when no state is left, and minus infinite when there was no time to find one.
        """
        if time_limit_s <= 0:
            return None, -np.inf
        constraints = list(self._constraints)
        if cut:
            rows = np.repeat(np.arange(len(cut)), self._size)
            columns = np.array(cut, dtype=np.intp).ravel()
            cuts = _matrix(len(cut), len(self._cost), (rows, columns, np.ones(len(columns))))
            constraints.append(LinearConstraint(cuts, -np.inf, self._size - 1.0))
        result = milp(
            self._cost,
            integrality=self._integrality,
            bounds=self._bounds,
            constraints=constraints,
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
        if result.status == _INFEASIBLE:
            return None, np.inf
        if result.status != _OPTIMAL:
            bound = result.mip_dual_bound
            return None, -np.inf if bound is None else float(bound) * self._scale
        chosen = np.flatnonzero(result.x[: self._n] > 0.5)
        return tuple(chosen.tolist()), float(result.fun) * self._scale


def _matrix(height: int, width: int, *entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> csr_matrix:
    """A sparse matrix of entries given as (rows, columns, values)."""
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    return csr_matrix((values, (rows, columns)), shape=(height, width))
