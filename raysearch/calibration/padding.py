"""Cuts batches of samples of many lengths, so that few of the tokens that a model computes are padding."""

from __future__ import annotations

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.packing import packed_lengths


def cut_by_length(batch: Batch, packed: bool, pass_tokens: int) -> list[Batch]:
    """Cut a batch, best ordered by length, into the batches that cost the least, padding and passes together.

    Args:
        batch: The samples; they stay in their order.
        packed: Whether the rows of a sample will be packed into one.
        pass_tokens: How many tokens more take as long as another pass through the layers.
    """
    n = batch.n_samples
    if packed:
        rows, widths = np.ones(n, np.int64), np.array(packed_lengths(batch))
    else:
        rows, widths = np.bincount(batch.sample_of_row), np.zeros(n, np.int64)
        np.maximum.at(widths, batch.sample_of_row, batch.lengths)
    if widths.min() == widths.max():
        return [batch]
    rows_before = np.concatenate([[0], rows.cumsum()])
    costs = np.zeros(n + 1)  # of the first samples, cut in the best way
    starts = np.zeros(n + 1, np.int64)  # of the last part then
    for stop in range(1, n + 1):
        widest = np.maximum.accumulate(widths[:stop][::-1])[::-1]
        ways = costs[:stop] + widest * (rows_before[stop] - rows_before[:stop]) + pass_tokens
        costs[stop], starts[stop] = ways.min(), ways.argmin()
    parts, stop = list[Batch](), n
    while stop:
        start = int(starts[stop])
        parts.append(batch.samples(start, stop))
        stop = start
    return parts[::-1]
