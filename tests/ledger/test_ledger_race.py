"""Processes that start at once on a ledger that does not exist yet."""

import threading
from contextlib import closing

from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger


def test_many_may_make_the_same_ledger_at_once(tmp_path):
    troubles: list[BaseException] = []

    def start(number: int, barrier: threading.Barrier) -> None:
        try:
            barrier.wait()
            with closing(Ledger(tmp_path / f"{number}.db")) as ledger, closing(Claims(ledger)) as claims:
                claims.take("cal", [])
        except BaseException as error:
            troubles.append(error)

    for number in range(20):  # without a lock about one in ten goes wrong
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=start, args=(number, barrier)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert troubles == []
