"""Solvers for the sets of fixed size that minimise a quadratic model, exactly where that is possible.

    E(x) = sum_i linear_i x_i + sum_{i<j} pairs_ij x_i x_j,    x in {0, 1}^n,  sum_i x_i = size

an Ising model of fixed magnetisation (Jansen et al. 2026, arXiv 2602.00161). Three ways to its lowest states:
`enumerate_lowest` is exact and takes a second or two for 10^8 states, `swap_lowest` milliseconds without a proof, and
`prove_lowest` as long as it may.
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
_EPSILON = 1e-12  # of the energy scale: less is rounding, not progress
_OPTIMAL, _INFEASIBLE = 0, 2  # scipy's status codes


@dataclass(frozen=True, eq=False)
class Ising:
    """A quadratic model of binary variables."""

    linear: Array  #: one coefficient per variable [n]
    pairs: Array  #: symmetric couplings with a zero diagonal [n, n]; values at forbidden places are not read
    forbidden: NDArray[np.bool_]  #: pairs that no state may hold together, symmetric [n, n]

    @property
    def couplings(self) -> Array:
        """The couplings, with forbidden ones so high that any state without them has a lower energy."""
        allowed = np.where(self.forbidden, 0.0, self.pairs)
        wall = 1.0 + 2 * np.abs(self.linear).sum() + np.abs(allowed).sum()
        return np.where(self.forbidden, wall, allowed)

    def part(self, variables: slice) -> Ising:
        """Return the model of some of the variables alone."""
        inside = (variables, variables)
        return Ising(self.linear[variables], self.pairs[inside], self.forbidden[inside])

    def energies(self, rows: Array) -> Array:
        """Return the energy of each state [m, n] of zeros and ones."""
        return rows @ self.linear + 0.5 * np.einsum("mn,mn->m", rows @ self.couplings, rows)

    def sorted_states(self, states: Sequence[State]) -> list[tuple[float, State]]:
        """Return the allowed ones among some states with their energies, lowest first, each once."""
        allowed = [
            state for state in dict.fromkeys(states) if not any(self.forbidden[i, j] for i, j in combinations(state, 2))
        ]
        return sorted(zip(self.energies(as_rows(allowed, len(self.linear))).tolist(), allowed, strict=True))


@dataclass(frozen=True)
class LowestStates:
    """The lowest states that a solver found."""

    states: tuple[State, ...]  #: ascending tuples, lowest energy first; fewer than requested only where no more exist
    energies: tuple[float, ...]
    proven: int  #: how many of them, from the first on, are proven to be the lowest
    gap: float  #: how far below the first unproven state one could still lie, relative to its energy; 0 when all are

    @classmethod
    def of(cls, found: Sequence[tuple[float, State]], proven: int, gap: float = 0.0) -> LowestStates:
        """Build from pairs of energy and state, lowest first."""
        return cls(tuple(state for _, state in found), tuple(energy for energy, _ in found), proven, gap)


def enumerate_lowest(model: Ising, size: int, count: int) -> LowestStates:
    """Scan all states as matrix products: with the variables in two halves, E = E(left) + E(right) + left pairs right.

    Of states that tie for the last place, those scanned first are kept.
    """
    n = len(model.linear)
    half, couplings = n // 2, model.couplings
    free_of_walls = Ising(model.linear, couplings, np.zeros_like(model.forbidden))  # the couplings carry the walls
    left, right = free_of_walls.part(slice(half)), free_of_walls.part(slice(half, n))
    found: list[State] = []
    energies = np.zeros(0)
    blocks = (
        (lefts, rights)
        for n_left in range(max(0, size - (n - half)), min(size, half) + 1)
        for lefts in _in_blocks(combinations(range(half), n_left))
        for rights in _in_blocks(combinations(range(half, n), size - n_left))
    )
    for lefts, rights in blocks:
        left_rows, right_rows = as_rows(lefts, n)[:, :half], as_rows(rights, n)[:, half:]
        # Two more columns add the energies of the halves within the same product.
        left_side = np.column_stack([left_rows, left.energies(left_rows), np.ones(len(lefts))])
        across = couplings[:half, half:] @ right_rows.T
        right_side = np.vstack([across, np.ones(len(rights)), right.energies(right_rows)])
        step = max(1, _CHUNK // len(rights))
        for begin in range(0, len(lefts), step):
            block = (left_side[begin : begin + step] @ right_side).ravel()
            worst = energies.max() if len(energies) >= count else np.inf
            below = np.flatnonzero(block < worst)
            if len(below) > count:
                below = below[np.argpartition(block[below], count - 1)[:count]]
            found += [lefts[begin + index // len(rights)] + rights[index % len(rights)] for index in below.tolist()]
            energies = np.append(energies, block[below])
            best = np.argsort(energies, kind="stable")[:count]
            found, energies = [found[index] for index in best], energies[best]
    states = model.sorted_states(found)
    return LowestStates.of(states, proven=len(states))


def _in_blocks(states: Iterator[State]) -> Iterator[list[State]]:
    """Yield states in lists that memory holds as rows."""
    while block := list(islice(states, _BLOCK)):
        yield block


def swap_lowest(model: Ising, size: int, count: int, rng: np.random.Generator) -> LowestStates:
    """Find local minima under swaps from many random starts, then follow swap neighbours of the lowest `count`.

    Every swap neighbour of a returned state is returned too or lies higher than the last; that proves nothing of states
    further away.
    """
    n = len(model.linear)
    rows = descend(model, as_rows([tuple(rng.permutation(n)[:size].tolist()) for _ in range(_STARTS)], n))
    found = model.sorted_states(as_states(rows))[:count]
    closed: set[State] = set()
    while open_states := [state for _, state in found if state not in closed]:
        closed.update(open_states)
        near = swaps(as_rows(open_states, n)).reshape(-1, n)
        energies = model.energies(near)
        worst = found[-1][0] if len(found) >= count else np.inf
        near = near[energies <= worst]
        found = model.sorted_states([state for _, state in found] + as_states(near))[:count]
    return LowestStates.of(found, proven=0, gap=np.inf)


def prove_lowest(model: Ising, size: int, count: int, candidates: LowestStates, time_limit_s: float) -> LowestStates:
    """Prove the `count` lowest states one after another by mixed-integer programming, as many as time allows.

    The time limit is that of all solves together. A proof holds to 1e-6 of the largest coefficient, the solver's
    tolerance. Beyond what HiGHS proved, the states are the lowest of the candidates, which come from `swap_lowest`:
    those are at least as good as anything HiGHS has in hand when it is stopped.
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
            known = zip(candidates.energies, candidates.states, strict=True)
            rest = [energy for energy, state in known if state not in proven]
            gap = (rest[0] - bound) / max(abs(rest[0]), 1e-12 * scale) if rest else 0.0
            break
        proven.append(found)
    states = model.sorted_states([*proven, *candidates.states])[:count]
    return LowestStates.of(states, len(proven), max(0.0, gap))


def descend(model: Ising, rows: Array) -> Array:
    """Return the local minima that steepest descent by swaps reaches from some states [m, n]."""
    rows, couplings = rows.copy(), model.couplings
    scale = np.abs(model.linear).max() + np.abs(couplings).max()
    active = np.arange(len(rows))
    while len(active):
        inside = rows[active] > 0
        field = model.linear + rows[active] @ couplings
        # Taking i out and j in changes the energy by field_j - field_i - couplings_ij.
        change = field[:, None, :] - field[:, :, None] - couplings
        change[~inside[:, :, None] | inside[:, None, :]] = np.inf
        best = change.reshape(len(active), -1).argmin(axis=1)
        out, back = np.divmod(best, rows.shape[1])
        down = change[np.arange(len(active)), out, back] < -_EPSILON * scale
        active, out, back = active[down], out[down], back[down]
        rows[active, out], rows[active, back] = 0, 1
    return rows


def as_rows(states: Sequence[State], n: int) -> Array:
    """Return states as rows of zeros and ones [m, n]."""
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

    (the first level of Sherali and Adams 1990), which shorten the proof several times.
    """

    def __init__(self, model: Ising, size: int, scale: float) -> None:
        self._size, self._scale = size, scale
        self._n = n = len(model.linear)
        first, second = np.triu_indices(n, 1)
        forbidden = model.forbidden[first, second]
        self._cost = np.concatenate([model.linear, np.where(forbidden, 0.0, model.pairs[first, second])]) / scale
        self._bounds = Bounds(0.0, np.concatenate([np.ones(n), np.where(forbidden, 0.0, 1.0)]))
        self._integrality = np.concatenate([np.ones(n), np.zeros(len(first))])

        each, y = np.arange(len(first)), n + np.arange(len(first))
        one, x = np.ones(len(first)), np.arange(n)
        upper_first = self._rows(len(first), (each, y, one), (each, first, -one))
        upper_second = self._rows(len(first), (each, y, one), (each, second, -one))
        # A forbidden y_ij is held at 0, so this row says x_i + x_j <= 1 there.
        lower = self._rows(len(first), (each, first, one), (each, second, one), (each, y, -one))
        cardinality = self._rows(1, (np.zeros(n, dtype=np.intp), x, np.ones(n)))
        lifted = self._rows(n, (first, y, one), (second, y, one), (x, x, np.full(n, 1.0 - size)))
        self._constraints = [
            LinearConstraint(vstack([upper_first, upper_second]), -np.inf, 0.0),
            LinearConstraint(lower, -np.inf, 1.0),
            LinearConstraint(cardinality, size, size),
            LinearConstraint(lifted, 0.0, 0.0),
        ]

    def solve(self, cut: Sequence[State], time_limit_s: float) -> tuple[State | None, float]:
        """Return the lowest state that is not cut off, and a lower bound of its energy; no state if it is not proven.

        A state S is cut off by the row sum_{i in S} x_i <= size - 1. The bound is infinite when no state is left, and
        minus infinite when there was no time to find one.
        """
        if time_limit_s <= 0:
            return None, -np.inf
        constraints = [*self._constraints]
        if cut:
            rows, columns = np.repeat(np.arange(len(cut)), self._size), np.array(cut, dtype=np.intp).ravel()
            cuts = self._rows(len(cut), (rows, columns, np.ones(len(columns))))
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
        """Return sparse rows over all variables, of entries given as (rows, columns, values)."""
        rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        return csr_matrix((values, (rows, columns)), shape=(count, len(self._cost)))
