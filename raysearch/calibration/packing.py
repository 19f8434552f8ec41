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


def pack(batch: Batch, together: bool = False) -> Inputs:
    """Pack each sample's rows into one, padded on the right; ``attention_mask`` is [P, L, L].

    Packed `together`, samples share rows, each after the other, so that next to no row needs padding. They do not
    attend to each other; but attention looks at all tokens of a row, so a row is as long as the longest sample.
    """
    shared, offset, lengths = _layout(batch)
    row_of_sample, start = _share_rows(lengths) if together else (np.arange(len(lengths)), np.zeros_like(lengths))
    size = int(row_of_sample.max()) + 1, int(lengths.max())
    real = np.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    row, token = np.nonzero(real)
    sample = batch.sample_of_row[row]
    own = token >= shared[sample]
    place = np.zeros(batch.input_ids.shape, np.int64)  # of each token of the batch, in the flattened result
    place[real] = row_of_sample[sample] * size[1] + start[sample] + np.where(own, offset[row], 0) + token
    input_ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
    input_ids.flat[place[real]] = batch.input_ids[real]
    positions.flat[place[real]] = token
    # A number for each row's own tokens, for the shared ones of each sample, and for each token of padding. A token
    # attends to what has its own number, or that of its sample's shared tokens.
    branch = np.broadcast_to(-1 - np.arange(size[1], dtype=np.int32), size).copy()
    trunk = branch.copy()
    trunk.flat[place[real]] = len(batch.input_ids) + sample
    branch.flat[place[real]] = np.where(own, row, len(batch.input_ids) + sample)
    before = branch[:, None, :]
    attends = np.tril((branch[:, :, None] == before) | (trunk[:, :, None] == before))
    row, token = np.nonzero(batch.scored)
    return Inputs(input_ids, attends, positions, place[row, token - 1])


def _share_rows(lengths: _Counts) -> tuple[_Counts, _Counts]:
    """Return the row that each sample is put into and where it starts there, int64, [B]: first fit, longest first."""
    longest = int(lengths.max())
    row, start, free = np.zeros_like(lengths), np.zeros_like(lengths), np.full_like(lengths, longest)
    for sample in np.argsort(-lengths, kind="stable"):
        row[sample] = first = int(np.argmax(free >= lengths[sample]))
        start[sample] = longest - free[first]
        free[first] -= lengths[sample]
    return row, start


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

    The shared tokens of each [B]; how far each row's own tokens move to the right [R]; and the tokens of each [B].
    """
    of, ids, lengths = batch.sample_of_row, batch.input_ids, batch.lengths
    first = np.flatnonzero(np.diff(of, prepend=-1))  # row of each sample
    both = np.arange(ids.shape[1]) < np.minimum(lengths, lengths[first][of])[:, None]
    alike = np.cumprod(both & (ids == ids[first][of]), axis=1).sum(axis=1)
    shared = np.minimum.reduceat(alike, first)
    own = lengths - shared[of]
    before = own.cumsum() - own
    return shared, before - before[first][of], shared + np.add.reduceat(own, first)
