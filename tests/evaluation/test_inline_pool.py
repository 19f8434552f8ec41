"""The pool of one replica in this process keeps the contract of pools."""

import weakref

import pytest

from raysearch.evaluation.inline_pool import InlinePool
from raysearch.testing.pool_suite import PoolSuite, tiny_replica


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
        own = InlinePool(tiny_replica)
        self.check_answers(own)
        assert own._replica is not None
        model = weakref.ref(own._replica.stack.model)
        own.close()
        assert model() is None
