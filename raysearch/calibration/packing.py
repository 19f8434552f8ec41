"""Packs the choices of an item into one row, so that their prompt is computed once.

    rows of an item          packed                          position of each token
    Q u e s t  A             Q u e s t  A  B b b             0 1 2 3 4  5  5 6 7
    Q u e s t  B b b         A attends to the prompt and itself, B to the prompt and what is before it in B

The tokens that an item's rows begin with in common are shared. Each token attends to the same tokens and has the same
position as in a row of its own. So the states equal those of plain rows in a model whose layers use attention masks and
positions alone; `LayerStack.packs` checks a model for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch, Inputs

_Counts = npt.NDArray[np.int64]


def pack(batch: Batch) -> Inputs:
    """Pack each sample's rows into one.

    Returns:
        One row per sample, padded on the right; ``attention_mask`` is [B, L, L].
    """
    shared, starts, lengths = _layout(batch)
    size = len(lengths), int(lengths.max())
    real = np.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    row, token = np.nonzero(real)
    own = token >= shared[batch.sample_of_row[row]]
    place = np.zeros(batch.input_ids.shape, np.int64)  # of each token of the batch, in the flattened result
    place[real] = batch.sample_of_row[row] * size[1] + np.where(own, starts[row], 0) + token
    input_ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
    input_ids.flat[place[real]] = batch.input_ids[real]
    positions.flat[place[real]] = token
    # 0 where all rows of a sample share a token, a number above for each row, and one below for each token of padding.
    branch = np.broadcast_to(-1 - np.arange(size[1], dtype=np.int32), size).copy()
    branch.flat[place[real]] = np.where(own, row + 1, 0)
    after, before = branch[:, :, None], branch[:, None, :]
    attends = np.tril((after == before) | ((before == 0) & (after > 0)))
    row, token = np.nonzero(batch.scored)
    return Inputs(input_ids, attends, positions, place[row, token - 1])


def packed_lengths(batch: Batch) -> list[int]:
    """Return the tokens of each sample, packed."""
    *_, lengths = _layout(batch)
    return lengths.tolist()


def n_packed(rows: Sequence[Sequence[int]]) -> int:
    """Return how many tokens the rows of a sample take together, packed."""
    return sum(map(len, rows)) - n_shared(*rows) * (len(rows) - 1)


def n_shared(*rows: Sequence[object]) -> int:
    """Return how many tokens or words some rows begin with in common."""
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*rows, strict=False)))


def _layout(batch: Batch) -> tuple[_Counts, _Counts, _Counts]:
    """Return how samples are packed, int64.

    Returns:
        The shared tokens of each sample, [B]; by how many tokens each row's own ones move to the right, [R]; and the
        tokens of each sample, [B].
    """
    of, ids, lengths = batch.sample_of_row, batch.input_ids, batch.lengths
    first = np.flatnonzero(np.diff(of, prepend=-1))  # row of each sample
    both = np.arange(ids.shape[1]) < np.minimum(lengths, lengths[first][of])[:, None]
    alike = np.cumprod(both & (ids == ids[first][of]), axis=1).sum(axis=1)
    shared = np.minimum.reduceat(alike, first)
    own = lengths - shared[of]
    before = own.cumsum() - own
    return shared, before - before[first][of], shared + np.add.reduceat(own, first)
