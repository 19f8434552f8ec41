"""Sets of fixed size that minimise a quadratic model, exactly where that is possible.

    E(x) = sum_i linear_i x_i + sum_{i<j} pairs_ij x_i x_j,    x in {0, 1}^n,  sum_i x_i = size

an Ising model of fixed magnetisation (Jansen et al. 2026, arXiv 2602.00161). Three ways to its lowest states:

- `enumerate_lowest`: every state, as products of two halves; exact, a second or two for 10^8 states.
- `swap_lowest`: local search by swaps from random starts, then the neighbours of the lowest until those are closed;
  no proof, but in milliseconds.
- `raysearch.searchers.toolbox.ising_milp.prove_lowest`: mixed-integer programming, one state after another.

Not a searcher: the solvers of `cbo`, which chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = tuple[int, ...]

_CHUNK = 1 << 17  # energies held at once
_STARTS = 200  # local searches
_EPSILON = 1e-12  # of the energy scale: less is rounding, not progress


@dataclass(frozen=True, eq=False)
class Ising:
    """The model.

    Args:
        linear: One coefficient a variable [n].
        pairs: Symmetric couplings with a zero diagonal [n, n]; what stands at a forbidden place is not read.
        forbidden: Pairs that no state may hold together, symmetric [n, n].
    """

    linear: Array
    pairs: Array
    forbidden: NDArray[np.bool_]

    @property
    def couplings(self) -> Array:
        """The couplings, with forbidden ones so high that any state without them is lower."""
        allowed = np.where(self.forbidden, 0.0, self.pairs)
        wall = 1.0 + 2 * np.abs(self.linear).sum() + np.abs(allowed).sum()
        return np.where(self.forbidden, wall, allowed)

    def part(self, variables: slice) -> Ising:
        """The model of some of the variables alone."""
        inside = (variables, variables)
        return Ising(self.linear[variables], self.pairs[inside], self.forbidden[inside])

    def energies(self, rows: Array) -> Array:
        """The energy of each state [m, n] of zeros and ones."""
        energies: Array = rows @ self.linear + 0.5 * np.einsum("mn,mn->m", rows @ self.couplings, rows)
        return energies

    def sorted_states(self, states: Sequence[State]) -> list[tuple[float, State]]:
        """The allowed ones of some states with their energies, lowest first, each once."""
        allowed = [
            state for state in dict.fromkeys(states) if not any(self.forbidden[i, j] for i, j in combinations(state, 2))
        ]
        return sorted(zip(self.energies(as_rows(allowed, len(self.linear))).tolist(), allowed, strict=True))


@dataclass(frozen=True)
class LowestStates:
    """What a solver found.

    Args:
        states: Ascending tuples of variables, of lowest energy first; fewer than asked for only where no more exist.
        energies: Their energies.
        proven: How many of the first are proven to be the lowest ones.
        gap: How far below the first unproven state one could still lie, relative to its energy; 0 when all are proven.
    """

    states: tuple[State, ...]
    energies: tuple[float, ...]
    proven: int
    gap: float

    @classmethod
    def of(cls, found: Sequence[tuple[float, State]], proven: int, gap: float = 0.0) -> LowestStates:
        """From pairs of energy and state, lowest first."""
        return cls(tuple(state for _, state in found), tuple(energy for energy, _ in found), proven, gap)


def enumerate_lowest(model: Ising, size: int, count: int) -> LowestStates:
    """Scans all states as matrix products: with the variables in two halves, E = E(left) + E(right) + left pairs right.

    Of states that tie for the last place, those scanned first are kept.
    """
    n = len(model.linear)
    half, couplings = n // 2, model.couplings
    free_of_walls = Ising(model.linear, couplings, np.zeros_like(model.forbidden))  # the couplings carry the walls
    left, right = free_of_walls.part(slice(half)), free_of_walls.part(slice(half, n))
    found: list[State] = []
    energies = np.zeros(0)
    for n_left in range(max(0, size - (n - half)), min(size, half) + 1):
        lefts = list(combinations(range(half), n_left))
        rights = list(combinations(range(half, n), size - n_left))
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


def swap_lowest(model: Ising, size: int, count: int, rng: np.random.Generator) -> LowestStates:
    """Local minima under swaps from many random starts, then swap neighbours of the `count` lowest until none is new.

    Every swap neighbour of a returned state is returned too or lies higher than the last; that proves nothing of states
    further away.
    """
    n = len(model.linear)
    rows = descend(model, as_rows([tuple(rng.permutation(n)[:size].tolist()) for _ in range(_STARTS)], n))
    found = model.sorted_states(as_states(rows))[:count]
    closed: set[State] = set()
    while open_states := [state for _, state in found if state not in closed]:
        closed.update(open_states)
        near = np.concatenate([neighbours(row) for row in as_rows(open_states, n)])
        energies = model.energies(near)
        worst = found[-1][0] if len(found) >= count else np.inf
        near = near[energies <= worst]
        found = model.sorted_states([state for _, state in found] + as_states(near))[:count]
    return LowestStates.of(found, proven=0, gap=np.inf)


def descend(model: Ising, rows: Array) -> Array:
    """Steepest descent by swaps from each of some states [m, n], all at once."""
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


def neighbours(row: Array) -> Array:
    """Every state that exchanges one variable at 1 for one at 0 [size (n - size), n]."""
    ones, zeros = np.flatnonzero(row > 0), np.flatnonzero(row == 0)
    out, back = (grid.ravel() for grid in np.meshgrid(ones, zeros, indexing="ij"))
    rows = np.repeat(row[None], len(out), axis=0)
    rows[np.arange(len(out)), out], rows[np.arange(len(out)), back] = 0, 1
    return rows


def as_rows(states: Sequence[State], n: int) -> Array:
    """States as rows of zeros and ones [m, n]."""
    rows = np.zeros((len(states), n))
    if states:
        np.put_along_axis(rows, np.array(states, dtype=np.intp).reshape(len(states), -1), 1.0, axis=1)
    return rows


def as_states(rows: Array) -> list[State]:
    """Rows of zeros and ones as ascending tuples."""
    return [tuple(np.flatnonzero(row > 0.5).tolist()) for row in rows]
