from itertools import combinations, pairwise

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.padding import cut_by_length
from tests.calibration.test_packing import batch_of

LENGTHS = (3, 4, 5, 40, 41, 90, 400, 401, 3)  # the last by no order


def items():
    """Items of two choices, of which the longer have the lengths above; packed, they have two tokens more."""
    return batch_of(*([[*range(length)], [*range(length - 2), 500, 501]] for length in LENGTHS))


def texts(*batches):
    return [ids[:n].tolist() for batch in batches for ids, n in zip(batch.input_ids, batch.lengths, strict=True)]


@pytest.mark.parametrize("packed", [False, True])
def test_costs_the_least_of_all_cuts(packed):
    n = len(LENGTHS)
    rows = 1 if packed else 2
    second_choice = 2 if packed else 0

    def cost(stops):
        return sum(64 + rows * (b - a) * (max(LENGTHS[a:b]) + second_choice) for a, b in pairwise([0, *stops, n]))

    cuts = [stops for count in range(n) for stops in combinations(range(1, n), count)]
    parts = cut_by_length(items(), packed, pass_tokens=64)
    assert cost(np.cumsum([part.n_samples for part in parts[:-1]]).tolist()) == min(map(cost, cuts))
    assert 1 < len(parts) < n


def test_keeps_all_samples_in_order():
    assert texts(*cut_by_length(items(), packed=False, pass_tokens=64)) == texts(items())


def test_samples_of_one_length_stay_together():
    batch = Batch.of([[1, 2, 3]] * 50, [[False, True, True]] * 50)
    assert cut_by_length(batch, packed=False, pass_tokens=64) == [batch]
