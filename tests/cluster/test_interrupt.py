"""The death of Ray interrupts the main thread."""

from __future__ import annotations

import threading
import time

import pytest

from raysearch.cluster import interrupt
from raysearch.cluster.interrupt import interrupted_by_death
from raysearch.errors import EvaluationError


class Death:
    """A Ray that dies when a test says so."""

    def __init__(self) -> None:
        self.has_died = False

    def check(self) -> None:
        if self.has_died:
            raise EvaluationError("Ray has died")


def never_dies() -> None:
    """The check of a connection that did not join the cluster."""


def test_a_death_is_raised_within_an_inner_context_of_a_connection_that_did_not_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupt, "_STUCK_S", 60.0)
    death = Death()
    with interrupted_by_death(death.check, pytest.fail), interrupted_by_death(never_dies, pytest.fail):
        death.has_died = True
        with pytest.raises(EvaluationError, match="Ray has died"):
            time.sleep(5)
        death.has_died = False


def test_an_error_that_follows_from_a_death_is_replaced_by_it() -> None:
    death = Death()
    with pytest.raises(EvaluationError, match="Ray has died"), interrupted_by_death(death.check, pytest.fail):
        death.has_died = True
        raise RuntimeError("the connection was reset")


def test_no_other_thread_is_interrupted() -> None:
    death = Death()
    death.has_died = True
    results: list[str] = []

    def work() -> None:
        with interrupted_by_death(death.check, pytest.fail):
            time.sleep(2 * interrupt._CHECK_S)
            results.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["done"]
