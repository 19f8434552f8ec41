"""The pool of one replica in this process keeps the contract of pools."""

from raysearch.evaluation.inline_pool import InlinePool
from raysearch.testing.pool_suite import PoolSuite, tiny_replica


class TestInlinePool(PoolSuite):
    def open_pool(self):
        return InlinePool(tiny_replica)
