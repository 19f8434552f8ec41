"""The pool of one replica in this process keeps the contract of pools."""

import weakref

from raysearch.evaluation.inline_pool import InlinePool
from raysearch.testing.pool_suite import PoolSuite, tiny_replica


class TestInlinePool(PoolSuite):
    def open_pool(self):
        return InlinePool(tiny_replica)

    def test_closing_frees_the_model(self, pool):
        self.check_answers(pool)
        model = weakref.ref(pool._replica.stack.model)
        pool.close()
        assert model() is None
