"""Packs the choices of an item into one row, so that their prompt is computed once.

    rows of an item          packed                          position of each token
    Q u e s t  A             Q u e s t  A  B b b             0 1 2 3 4  5  5 6 7
    Q u e s t  B b b         A attends to the prompt and A, B b b to the prompt and the tokens before them in B b b

The tokens that all rows of an item begin with are stored once. Each token attends to the same tokens and has the same
position as in a plain row. So the states equal those of plain rows if the model's layers use attention masks and
positions alone; `raysearch.models.verification.packs` checks that for a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch, Inputs

_Counts = npt.NDArray[np.int64]


class _Layout(NamedTuple):
    """The packing of B samples, which have R rows."""

    n_shared: _Counts  #: tokens that all rows of a sample begin with, int64, [B]
    offsets: _Counts  #: how far the other tokens of each row move to the right, int64, [R]
    lengths: _Counts  #: tokens of each packed sample, int64, [B]


def pack(batch: Batch, together: bool = False) -> Inputs:
    """Pack each sample's rows into one row, padded on the right; ``attention_mask`` is [P, L, L].

    Args:
        batch: The samples.
        together: Whether several samples share a row, one after the other, so that rows need little padding. Samples do
            not attend to each other. A row is as long as the longest sample, because the cost of attention grows with
            the length of a row.

    Returns:
        The packed rows: token ids and positions [P, L], the attention mask [P, L, L], and the places of the predicting
        tokens.
    """
    layout = _layout(batch)
    if together:
        row_of_sample, start = _share_rows(layout.lengths)
    else:
        row_of_sample = np.arange(len(layout.lengths))
        start = np.zeros_like(layout.lengths)
    shape = int(row_of_sample.max()) + 1, int(layout.lengths.max())
    real = np.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    row, token = np.nonzero(real)
    sample = batch.sample_of_row[row]
    is_unshared = token >= layout.n_shared[sample]
    place = np.zeros(batch.input_ids.shape, np.int64)  # of each token of the batch, in the flattened result
    place[real] = (
        row_of_sample[sample] * shape[1] + start[sample] + np.where(is_unshared, layout.offsets[row], 0) + token
    )
    input_ids = np.zeros(shape, np.int64)
    input_ids.flat[place[real]] = batch.input_ids[real]
    positions = np.zeros(shape, np.int64)
    positions.flat[place[real]] = token
    # Each token has a branch: the number of its row; of its sample if it is shared; a unique number if it is padding.
    # A token attends to tokens of its branch, and to its trunk: the shared tokens of its sample.
    branch = np.broadcast_to(-1 - np.arange(shape[1], dtype=np.int32), shape).copy()
    trunk = branch.copy()
    trunk.flat[place[real]] = len(batch.input_ids) + sample
    branch.flat[place[real]] = np.where(is_unshared, row, len(batch.input_ids) + sample)
    branch_of_key = branch[:, None, :]
    attends = np.tril((branch[:, :, None] == branch_of_key) | (trunk[:, :, None] == branch_of_key))
    row, token = np.nonzero(batch.scored)
    return Inputs(input_ids, attends, positions, place[row, token - 1])


def _share_rows(lengths: _Counts) -> tuple[_Counts, _Counts]:
    """Return the row of each packed sample and its start in that row, int64, [B]: first fit, longest sample first."""
    longest = int(lengths.max())
    row = np.zeros_like(lengths)
    start = np.zeros_like(lengths)
    free = np.full_like(lengths, longest)
    for sample in np.argsort(-lengths, kind="stable"):
        first_fit = int(np.argmax(free >= lengths[sample]))
        row[sample] = first_fit
        start[sample] = longest - free[first_fit]
        free[first_fit] -= lengths[sample]
    return row, start


def packed_lengths(batch: Batch) -> list[int]:
    """Return the number of tokens of each packed sample."""
    return _layout(batch).lengths.tolist()


def n_packed(rows: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens of a packed sample that has these rows."""
    return sum(map(len, rows)) - n_shared(*rows) * (len(rows) - 1)


def n_shared(*rows: Sequence[object]) -> int:
    """Return the number of tokens or words that all rows begin with."""
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*rows, strict=False)))


def _layout(batch: Batch) -> _Layout:
    sample = batch.sample_of_row
    ids = batch.input_ids
    lengths = batch.lengths
    first_row = np.flatnonzero(np.diff(sample, prepend=-1))  # of each sample
    in_both_rows = np.arange(ids.shape[1]) < np.minimum(lengths, lengths[first_row][sample])[:, None]
    n_equal = np.cumprod(in_both_rows & (ids == ids[first_row][sample]), axis=1).sum(axis=1)
    shared = np.minimum.reduceat(n_equal, first_row)
    unshared = lengths - shared[sample]
    before = unshared.cumsum() - unshared
    return _Layout(shared, before - before[first_row][sample], shared + np.add.reduceat(unshared, first_row))
