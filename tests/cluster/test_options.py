"""Numbers of replicas that make no sense are refused."""

import pytest

from raysearch.cluster.options import ReplicaRange
from raysearch.errors import UserError


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2), (0, 0)])
def test_ranges_that_are_none(least, most):
    with pytest.raises(UserError, match=rf"cluster.replicas={{min:{least},max:{most}}} is no range"):
        ReplicaRange(least, most)
