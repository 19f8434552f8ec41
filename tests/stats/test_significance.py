from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from raysearch.stats.significance import holm


def test_holms_correction_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 40):
        p = rng.random(n) ** 3
        assert holm(p.tolist()) == pytest.approx(multipletests(p, method="holm")[1].tolist())
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []
