"""Solvers for the sets of fixed size that minimise a quadratic model, exact if time allows.

    E(x) = sum_i linear_i x_i + sum_{i<j} pairs_ij x_i x_j,    x in {0, 1}^n,  sum_i x_i = size

This is an Ising model of fixed magnetisation (Jansen et al. 2026, arXiv 2602.00161). Three functions find its lowest
states. `enumerate_lowest` is exact and takes a second or two for 10^8 states. `swap_lowest` takes milliseconds and
proves nothing. `prove_lowest` takes as long as its time limit allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, vstack

from raysearch.searchers.toolbox.subsets import swaps

Array = NDArray[np.float64]
State = tuple[int, ...]

_CHUNK = 1 << 17  # energies held at once
_BLOCK = 1 << 17  # states of a half held at once
_STARTS = 200  # local searches
_EPSILON = 1e-12  # relative to the energy scale: a smaller change is a rounding error
_OPTIMAL = 0  # scipy's status codes
_INFEASIBLE = 2


@dataclass(frozen=True, eq=False)
class Ising:
    """A quadratic model of binary variables."""

    linear: Array  #: one coefficient per variable [n]
    pairs: Array  #: symmetric couplings with a zero diagonal [n, n]; the values of forbidden pairs are not used
    forbidden: NDArray[np.bool_]  #: pairs that no state may contain, symmetric [n, n]

    @property
    def couplings(self) -> Array:
        """The couplings; those of forbidden pairs are so high that any state without such a pair has a lower energy."""
        allowed = np.where(self.forbidden, 0.0, self.pairs)
        penalty = 1.0 + 2 * np.abs(self.linear).sum() + np.abs(allowed).sum()
        return np.where(self.forbidden, penalty, allowed)

    def part(self, variables: slice) -> Ising:
        """Return the model of some of the variables alone."""
        inside = (variables, variables)
        return Ising(self.linear[variables], self.pairs[inside], self.forbidden[inside])

    def energies(self, rows: Array) -> Array:
        """Return the energy of each state [m, n] of zeros and ones."""
        return rows @ self.linear + 0.5 * np.einsum("mn,mn->m", rows @ self.couplings, rows)

    def sorted_states(self, states: Sequence[State]) -> list[tuple[float, State]]:
        """Return the distinct allowed states with their energies, lowest first."""
        allowed = [state for state in dict.fromkeys(states) if self._is_allowed(state)]
        return sorted(zip(self.energies(as_rows(allowed, len(self.linear))).tolist(), allowed, strict=True))

    def _is_allowed(self, state: State) -> bool:
        return not any(self.forbidden[i, j] for i, j in combinations(state, 2))


@dataclass(frozen=True)
class LowestStates:
    """The lowest states that a solver found."""

    states: tuple[State, ...]  #: ascending tuples, lowest energy first; fewer than requested only if no more exist
    energies: tuple[float, ...]
    proven: int  #: how many of the first states are proven to be the lowest
    gap: float  #: the largest possible improvement on the first unproven state, relative to its energy; 0 if all proven

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, State]], proven: int, gap: float = 0.0) -> LowestStates:
        """Build it from pairs of energy and state.

        Args:
            pairs: The energies and states, lowest first.
            proven: How many of the first states are proven to be the lowest.
            gap: The relative gap of the first unproven state.

        Returns:
            The states and energies as separate tuples.
        """
        return cls(tuple(state for _, state in pairs), tuple(energy for energy, _ in pairs), proven, gap)


def enumerate_lowest(model: Ising, size: int, count: int) -> LowestStates:
    """Return the lowest states, by computing the energies of all states as matrix products.

    The variables are split into two halves; E = E(left) + E(right) + left^T pairs right. If states tie for the last
    place, those enumerated first are kept.

    Args:
        model: The energy of a state.
        size: How many variables of a state are 1.
        count: How many states to return.

    Returns:
        The states, lowest first, all of them proven.
    """
    n = len(model.linear)
    half = n // 2
    couplings = model.couplings
    penalised = Ising(model.linear, couplings, np.zeros_like(model.forbidden))  # the couplings contain the penalty
    left_model = penalised.part(slice(half))
    right_model = penalised.part(slice(half, n))
    lowest: list[State] = []
    energies = np.zeros(0)
    blocks = (
        (lefts, rights)
        for n_left in range(max(0, size - (n - half)), min(size, half) + 1)
        for lefts in _in_blocks(combinations(range(half), n_left))
        for rights in _in_blocks(combinations(range(half, n), size - n_left))
    )
    for lefts, rights in blocks:
        left_rows = as_rows(lefts, n)[:, :half]
        right_rows = as_rows(rights, n)[:, half:]
        # Two more columns add the energies of the halves within the same product.
        left_side = np.column_stack([left_rows, left_model.energies(left_rows), np.ones(len(lefts))])
        across = couplings[:half, half:] @ right_rows.T
        right_side = np.vstack([across, np.ones(len(rights)), right_model.energies(right_rows)])
        step = max(1, _CHUNK // len(rights))
        for begin in range(0, len(lefts), step):
            block = (left_side[begin : begin + step] @ right_side).ravel()
            worst = energies.max() if len(energies) >= count else np.inf
            below = np.flatnonzero(block < worst)
            if len(below) > count:
                below = below[np.argpartition(block[below], count - 1)[:count]]
            lowest += [lefts[begin + index // len(rights)] + rights[index % len(rights)] for index in below.tolist()]
            energies = np.append(energies, block[below])
            best = np.argsort(energies, kind="stable")[:count]
            lowest = [lowest[index] for index in best]
            energies = energies[best]
    states = model.sorted_states(lowest)
    return LowestStates.of(states, proven=len(states))


def _in_blocks(states: Iterator[State]) -> Iterator[list[State]]:
    """Yield states in lists that are small enough to be held in memory as rows."""
    while block := list(islice(states, _BLOCK)):
        yield block


def swap_lowest(model: Ising, size: int, count: int, rng: np.random.Generator) -> LowestStates:
    """Find local minima under swaps from many random starts, then follow the swap neighbours of the lowest states.

    Every swap neighbour of a returned state is returned too, or has a higher energy than the last one. This proves
    nothing about states further away.

    Args:
        model: The energy of a state.
        size: How many variables of a state are 1.
        count: How many states to return.
        rng: It draws the starts.

    Returns:
        The states, lowest first, none of them proven.
    """
    n = len(model.linear)
    rows = descend(model, as_rows([tuple(rng.permutation(n)[:size].tolist()) for _ in range(_STARTS)], n))
    lowest = model.sorted_states(as_states(rows))[:count]
    closed: set[State] = set()
    while open_states := [state for _, state in lowest if state not in closed]:
        closed.update(open_states)
        near = swaps(as_rows(open_states, n)).reshape(-1, n)
        energies = model.energies(near)
        worst = lowest[-1][0] if len(lowest) >= count else np.inf
        near = near[energies <= worst]
        lowest = model.sorted_states([state for _, state in lowest] + as_states(near))[:count]
    return LowestStates.of(lowest, proven=0, gap=np.inf)


def prove_lowest(model: Ising, size: int, count: int, candidates: LowestStates, time_limit_s: float) -> LowestStates:
    """Prove the lowest states one after another by mixed-integer programming, as many as time allows.

    A proof holds to 1e-6 of the largest coefficient, the solver's tolerance. The states that are not proven are the
    lowest candidates. These are at least as good as the best state of HiGHS when it is stopped.

    Args:
        model: The energy of a state.
        size: How many variables of a state are 1.
        count: How many states to return.
        candidates: The states that `swap_lowest` found.
        time_limit_s: The time limit of all proofs together.

    Returns:
        The states, lowest first: the proven ones, then the lowest candidates.
    """
    scale = max(np.abs(model.linear).max(), np.abs(model.pairs[~model.forbidden]).max(initial=0.0)) or 1.0
    program = _Program(model, size, scale)
    deadline = time.monotonic() + time_limit_s
    proven: list[State] = []
    gap = 0.0
    while len(proven) < count:
        state, bound = program.solve(proven, deadline - time.monotonic())
        if state is None:
            # The distance from the lowest unproven candidate down to the bound.
            pairs = zip(candidates.energies, candidates.states, strict=True)
            unproven = [energy for energy, candidate in pairs if candidate not in proven]
            gap = (unproven[0] - bound) / max(abs(unproven[0]), 1e-12 * scale) if unproven else 0.0
            break
        proven.append(state)
    states = model.sorted_states([*proven, *candidates.states])[:count]
    return LowestStates.of(states, len(proven), max(0.0, gap))


def descend(model: Ising, rows: Array) -> Array:
    """Return the local minima that steepest descent by swaps reaches.

    Args:
        model: The energy of a state.
        rows: The states from which it starts, as zeros and ones [m, n].

    Returns:
        One local minimum for each state [m, n].
    """
    rows = rows.copy()
    couplings = model.couplings
    scale = np.abs(model.linear).max() + np.abs(couplings).max()
    active = np.arange(len(rows))
    while len(active):
        inside = rows[active] > 0
        field = model.linear + rows[active] @ couplings
        # Removing i and adding j changes the energy by field_j - field_i - couplings_ij.
        change = field[:, None, :] - field[:, :, None] - couplings
        change[~inside[:, :, None] | inside[:, None, :]] = np.inf
        best = change.reshape(len(active), -1).argmin(axis=1)
        removed, added = np.divmod(best, rows.shape[1])
        down = change[np.arange(len(active)), removed, added] < -_EPSILON * scale
        active = active[down]
        rows[active, removed[down]] = 0
        rows[active, added[down]] = 1
    return rows


def as_rows(states: Sequence[State], n: int) -> Array:
    """Return states as rows of zeros and ones [m, n].

    Args:
        states: The states, all of the same size.
        n: The number of variables.

    Returns:
        The rows, float64.
    """
    rows = np.zeros((len(states), n))
    if states:
        np.put_along_axis(rows, np.array(states, dtype=np.intp).reshape(len(states), -1), 1.0, axis=1)
    return rows


def as_states(rows: Array) -> list[State]:
    """Return rows of zeros and ones as ascending tuples."""
    return [tuple(np.flatnonzero(row > 0.5).tolist()) for row in rows]


class _Program:
    """The mixed-integer program over x_1 … x_n and y_ij for i < j.

    A product x_i x_j becomes a variable y_ij with y_ij <= x_i, y_ij <= x_j and y_ij >= x_i + x_j - 1 (Fortet 1960). As
    exactly `size` of the x are 1, multiplying that equation by x_i gives the valid rows

        sum_{j != i} y_ij = (size - 1) x_i

    (the first level of Sherali and Adams 1990). These rows make the proof several times faster.
    """

    def __init__(self, model: Ising, size: int, scale: float) -> None:
        self._size = size
        self._scale = scale
        self._n = n = len(model.linear)
        first, second = np.triu_indices(n, 1)
        forbidden = model.forbidden[first, second]
        self._cost = np.concatenate([model.linear, np.where(forbidden, 0.0, model.pairs[first, second])]) / scale
        self._bounds = Bounds(0.0, np.concatenate([np.ones(n), np.where(forbidden, 0.0, 1.0)]))
        self._integrality = np.concatenate([np.ones(n), np.zeros(len(first))])

        x = np.arange(n)  # the columns of the x, and of the y
        y = n + np.arange(len(first))
        row = np.arange(len(first))
        unit = np.ones(len(first))
        upper_first = self._rows(len(first), (row, y, unit), (row, first, -unit))
        upper_second = self._rows(len(first), (row, y, unit), (row, second, -unit))
        # A forbidden y_ij is bounded by 0, so its row is x_i + x_j <= 1.
        lower = self._rows(len(first), (row, first, unit), (row, second, unit), (row, y, -unit))
        cardinality = self._rows(1, (np.zeros(n, dtype=np.intp), x, np.ones(n)))
        lifted = self._rows(n, (first, y, unit), (second, y, unit), (x, x, np.full(n, 1.0 - size)))
        self._constraints = [
            LinearConstraint(vstack([upper_first, upper_second]), -np.inf, 0.0),
            LinearConstraint(lower, -np.inf, 1.0),
            LinearConstraint(cardinality, size, size),
            LinearConstraint(lifted, 0.0, 0.0),
        ]

    def solve(self, excluded: Sequence[State], time_limit_s: float) -> tuple[State | None, float]:
        """Find the lowest state that is not excluded.

        Args:
            excluded: States that may not be returned. The row sum_{i in S} x_i <= size - 1 excludes a state S.
            time_limit_s: The time limit of the solver.

        Returns:
            The state, or None if it is not proven; and a lower bound of its energy. The bound is infinite if all states
            are excluded, and minus infinite if there was no time to find a bound.
        """
        if time_limit_s <= 0:
            return None, -np.inf
        constraints = [*self._constraints]
        if excluded:
            rows = np.repeat(np.arange(len(excluded)), self._size)
            columns = np.array(excluded, dtype=np.intp).ravel()
            cuts = self._rows(len(excluded), (rows, columns, np.ones(len(columns))))
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

    def _rows(self, count: int, *entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> csr_matrix:
        """Return sparse rows over all variables. Entries are (rows, columns, values)."""
        rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        return csr_matrix((values, (rows, columns)), shape=(count, len(self._cost)))
