"""Whatever becomes of the MLflow server, a search finds the same, and MLflow has all of it in the end."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from raysearch.cli.displays import SearchDisplay
from raysearch.searching.events import RoundEnded
from raysearch.tracking.mlflow.tracker import MlflowTracker
from tests.cli.answers import json_answer
from tests.cli.conftest import Outcome, Run, World
from tests.faults.conftest import Server
from tests.tracking.conftest import get
from tests.tracking.recorded import Recorded

pytestmark = [pytest.mark.faults, pytest.mark.slow]

TRIALS = 1 + 5 + 4 + 3


def warnings(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if line.startswith("warning:")]


def same(result: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two searches found the same, bit for bit."""
    keys = ("search_id", "removed", "removal_order", "dense_loss", "loss", "path", "evaluations")
    return [result[key] for key in keys] == [other[key] for key in keys]


@dataclass
class RecordedSearch:
    """Three rounds of a greedy search, which a server records in an experiment of the test's own.

    Args:
        run: Types a command.
        words: Those of the search.
        undisturbed: What it finds when nobody records it.
        server: MLflow's, which may run or not.
        experiment: The name of the experiment.
        patch: Undone after the test.
    """

    run: Run
    arguments: list[str]
    undisturbed: dict[str, Any]
    server: Server
    experiment: str
    patch: pytest.MonkeyPatch

    def disturb(self, after_round: int, act: Callable[[], object]) -> Outcome:
        """Run the search, do something once after a round, and assert that it finds the same."""
        usual = SearchDisplay.on_round_ended
        left = [act]

        def on_round_ended(display: SearchDisplay, event: RoundEnded) -> None:
            usual(display, event)
            if event.summary.round == after_round and left:
                left.pop()()

        self.patch.setattr(SearchDisplay, "on_round_ended", on_round_ended)
        outcome = self.run(*self.arguments, f"tracking.uri={self.server.url}")
        assert same(json_answer(outcome), self.undisturbed)
        return outcome

    def assert_complete(self, search_id: str | None = None) -> float:
        """Assert that MLflow has all of it once, and return the seconds that it took."""
        recorded = Recorded(self.server.url, self.experiment, search_id or self.undisturbed["search_id"])
        recorded.assert_complete(TRIALS)
        assert recorded.steps("progress/round_best_loss") == [1, 2, 3]
        assert len(recorded.steps("loss/pruned")) == 1
        seconds: float = recorded.parent.data.metrics["cost/seconds"]
        return seconds


@pytest.fixture
def search(
    run: Run, world: World, server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> RecordedSearch:
    experiment = re.sub(r"\W", "_", request.node.name)
    arguments = ["search", *world.search(tracking=None, tracking__experiment=experiment, remove=3), "--json"]
    undisturbed = json_answer(run(*arguments, "tracking.type=none", "store=undisturbed"))
    return RecordedSearch(run, arguments, undisturbed, server, experiment, monkeypatch)


@pytest.mark.parametrize(("killed_after", "repair"), [(2, "resume"), (3, "search")])
def test_a_server_that_is_killed_and_back_later(search: RecordedSearch, killed_after: int, repair: str) -> None:
    server = search.server
    server.start()
    [warning] = warnings(search.disturb(killed_after, partial(server.send, signal.SIGKILL)))
    assert server.url in warning
    assert warning.endswith(f"raysearch sync {search.undisturbed['search_id']}")
    server.start()
    again = [*search.arguments, f"tracking.uri={server.url}"] if repair == "search" else [repair, "latest", "--json"]
    assert json_answer(search.run(*again))["mlflow_run_id"] is not None
    search.assert_complete()


def test_a_server_that_hangs_holds_up_nothing_for_long(
    search: RecordedSearch, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout_s = 4.0  # the default is 25 s
    monkeypatch.setattr("raysearch.tracking.mlflow.tracker.MlflowTracker", partial(MlflowTracker, timeout_s=timeout_s))
    search.server.start()
    outcome = search.disturb(1, partial(search.server.send, signal.SIGSTOP))  # it ends while the server hangs
    [warning] = warnings(outcome)
    assert f"nothing was written for {timeout_s:g} s" in warning
    search.server.send(signal.SIGCONT)
    assert get(f"{search.server.url}/health", wait_s=20) == b"OK"
    assert json_answer(run("sync", "latest", "--json"))["missing"] > 0
    assert json_answer(run("sync", "latest", "--json"))["missing"] == 0
    assert search.assert_complete() == json_answer(outcome)["seconds"], "none is counted twice"


def test_a_server_that_answers_too_late_has_nothing_twice(
    search: RecordedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    search.server.start()

    def pause() -> None:
        search.server.send(signal.SIGSTOP)
        time.sleep(3)  # MLflow has asked for the same twice by then
        search.server.send(signal.SIGCONT)

    assert len(warnings(search.disturb(1, pause))) <= 1, "an answer cut off is not asked for again"
    search.assert_complete()
