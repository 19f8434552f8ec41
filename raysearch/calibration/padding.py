"""Cuts a batch of samples by length, so that a model computes few tokens of padding."""

from __future__ import annotations

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.packing import packed_lengths


def cut_by_length(batch: Batch, packed: bool, pass_tokens: int) -> list[Batch]:
    """Cut a batch into batches with the least total cost of padding and of passes through the layers.

    Args:
        batch: The samples, best in order of length; the order stays.
        packed: Whether the rows of a sample will be packed into one.
        pass_tokens: The cost of a pass, as the number of tokens that take as long to compute.

    Returns:
        The batches, in the order of the samples. Together they contain each sample once.
    """
    n = batch.n_samples
    if packed:
        rows = np.ones(n, np.int64)
        widths = np.array(packed_lengths(batch))
    else:
        rows = np.bincount(batch.sample_of_row)
        widths = np.zeros(n, np.int64)
        np.maximum.at(widths, batch.sample_of_row, batch.lengths)
    if widths.min() == widths.max():
        return [batch]
    rows_before = np.concatenate([[0], rows.cumsum()])
    least_costs = np.zeros(n + 1)  # of the samples before each place
    starts = np.zeros(n + 1, np.int64)  # of the last part of the cut with that cost
    for stop in range(1, n + 1):
        widest = np.maximum.accumulate(widths[:stop][::-1])[::-1]
        costs = least_costs[:stop] + widest * (rows_before[stop] - rows_before[:stop]) + pass_tokens  # by last start
        least_costs[stop] = costs.min()
        starts[stop] = costs.argmin()
    parts: list[Batch] = []
    stop = n
    while stop:
        start = int(starts[stop])
        parts.append(batch.samples(start, stop))
        stop = start
    return parts[::-1]
