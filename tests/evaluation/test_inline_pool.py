"""The pool of one replica in this process keeps the contract of pools."""

import weakref

import pytest

from raysearch.evaluation.inline_pool import InlinePool
from tests.evaluation.pool_suite import PoolSuite, tiny_replica


@pytest.fixture(scope="module")
def used_replica():
    return tiny_replica()


class TestInlinePool(PoolSuite):
    @pytest.fixture(autouse=True)
    def _replica(self, used_replica):
        self.replica = used_replica

    def open_pool(self):
        return InlinePool(lambda: self.replica)

    def test_closing_frees_the_model(self, pool):
        new_pool = InlinePool(tiny_replica)
        self.check_answers(new_pool)
        assert new_pool._replica is not None
        model = weakref.ref(new_pool._replica.stack.model)
        new_pool.close()
        assert model() is None
