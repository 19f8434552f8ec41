"""Packs the choices of an item into one row, so that their prompt is computed once.

    rows of an item          packed                          position of each token
    Q u e s t  A             Q u e s t  A  B b b             0 1 2 3 4  5  5 6 7
    Q u e s t  B b b         A attends to the prompt and itself, B to the prompt and what is before it in B

The tokens that an item's rows begin with in common are shared. Each token attends to the same tokens and has the same
position as in a row of its own. So the states equal those of plain rows in a model whose layers use attention masks and
positions alone; `LayerStack.packs` checks a model for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch, Inputs


def pack(batch: Batch) -> Inputs:
    """Pack each sample's rows into one.

    Returns:
        One row per sample, padded on the right; ``attention_mask`` is [B, L, L].
    """
    samples = [*_samples(batch)]
    packed = [_pack_sample(texts) for _, texts in samples]
    length = max(len(ids) for ids, _, _ in packed)
    input_ids = np.zeros((len(packed), length), np.int64)
    positions = np.zeros((len(packed), length), np.int64)
    attends = np.broadcast_to(np.eye(length, dtype=np.bool_), (len(packed), length, length)).copy()  # padding to itself
    place = np.zeros(batch.input_ids.shape, np.int64)  # of each token of the batch, in the flattened result
    for index, ((rows, _), (ids, starts, shared)) in enumerate(zip(samples, packed, strict=True)):
        input_ids[index, : len(ids)] = ids
        for row, start, end in zip(rows, starts, [*starts[1:], len(ids)], strict=True):
            own = np.concatenate([np.arange(shared), np.arange(start, end)])  # the row's tokens, in the packed one
            positions[index, own] = np.arange(len(own))
            attends[index, own[:, None], own] = np.tril(np.ones((len(own), len(own)), np.bool_))
            place[row, : len(own)] = index * length + own
    row, token = np.nonzero(batch.scored)
    return Inputs(input_ids, attends, positions, place[row, token - 1])


def packed_lengths(batch: Batch) -> list[int]:
    """Return the tokens of each sample, packed."""
    if batch.choices is None:
        return batch.lengths.tolist()
    return [n_packed(texts) for _, texts in _samples(batch)]


def n_packed(rows: Sequence[Sequence[int]]) -> int:
    """Return how many tokens the rows of a sample take together, packed."""
    return sum(map(len, rows)) - n_shared(*rows) * (len(rows) - 1)


def n_shared(*rows: Sequence[object]) -> int:
    """Return how many tokens or words some rows begin with in common."""
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*rows, strict=False)))


def _samples(batch: Batch) -> Iterator[tuple[npt.NDArray[np.int64], list[list[int]]]]:
    """Yield the rows of each sample, and their tokens without padding."""
    for rows in np.split(np.arange(len(batch.input_ids)), np.flatnonzero(np.diff(batch.sample_of_row)) + 1):
        yield rows, [batch.input_ids[row, : batch.lengths[row]].tolist() for row in rows]


def _pack_sample(texts: Sequence[list[int]]) -> tuple[list[int], list[int], int]:
    """Return the tokens of a sample's packed row, the start of each row's own tokens, and the number of shared ones."""
    shared = n_shared(*texts)
    ids, starts = texts[0][:shared], list[int]()
    for text in texts:
        starts.append(len(ids))
        ids += text[shared:]
    return ids, starts, shared
