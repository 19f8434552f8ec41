"""Whatever becomes of the MLflow server, a search finds the same, and MLflow has all of it in the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mlflow import MlflowClient

from raysearch.cli.displays import SearchDisplay
from raysearch.tracking.mlflow.tracker import MlflowTracker
from tests.cli.conftest import Outcome, Run, World
from tests.cli.found import found
from tests.faults.conftest import Server
from tests.tracking.conftest import get

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),  # MLflow's own calls
]

Serve = Callable[..., Server]
TRIALS = 1 + 5 + 4 + 3


def warnings(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if line.startswith("warning:")]


def same(result: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two searches found the same, bit for bit."""
    keys = ("search_id", "removed", "removal_order", "dense_loss", "loss", "path", "evaluations")
    return [result[key] for key in keys] == [other[key] for key in keys]


@pytest.fixture
def words(world: World) -> list[str]:
    """Three rounds of a greedy search."""
    return ["search", *world.search(tracking=None, remove=3), "--json"]


@pytest.fixture
def undisturbed(run: Run, words: list[str]) -> dict[str, Any]:
    """What it finds when nobody records it."""
    return found(run(*words, "tracking=none", "store=undisturbed"))


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


@pytest.fixture
def after_round(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Does something as soon as a round is done, once, before the search goes on."""

    def arrange(number: int, act: Callable[[], object]) -> None:
        usual, left = SearchDisplay.round_done, [act]

        def round_done(self: SearchDisplay, summary: Any) -> None:
            usual(self, summary)
            if summary.round == number and left:
                left.pop()()

        monkeypatch.setattr(SearchDisplay, "round_done", round_done)

    return arrange


def check_complete(url: str, result: dict[str, Any]) -> dict[str, float]:
    """One parent run, whose metrics these are, and a finished child for each trial, once."""
    client = MlflowClient(url)
    experiment = client.get_experiment_by_name("raysearch")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    mine = [run for run in runs if run.data.tags.get("raysearch.search_id") == result["search_id"]]
    [parent] = mine
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(int(child.data.tags["raysearch.trial_index"]) for child in children) == list(range(TRIALS))
    assert {run.info.status for run in [parent, *children]} == {"FINISHED"}
    assert all(run.data.params and "loss" in run.data.metrics for run in [parent, *children])
    history = client.get_metric_history(parent.info.run_id, "round_best_loss")
    assert [point.step for point in history] == [1, 2, 3]
    assert len(client.get_metric_history(parent.info.run_id, "loss")) == 1
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"config.yaml", "data.json", "trials.csv", "mask_map.png", "best_so_far.png", "loss_by_size.png"}
    metrics: dict[str, float] = parent.data.metrics
    return metrics


@pytest.mark.parametrize(("killed_after", "repair"), [(0, "sync"), (2, "resume"), (3, "search")])
def test_a_server_that_is_killed_and_back_later(
    run: Run,
    words: list[str],
    undisturbed: dict[str, Any],
    serve: Serve,
    after_round: Callable[..., None],
    killed_after: int,
    repair: str,
) -> None:
    server = serve()
    if killed_after:
        server.start()
        after_round(killed_after, partial(server.send, signal.SIGKILL))
    outcome = run(*words, f"tracking.uri={server.url}")
    assert same(found(outcome), undisturbed)
    [warning] = warnings(outcome)
    assert server.url in warning and warning.endswith(f"raysearch sync {undisturbed['search_id']}")
    server.start()
    again = words if repair == "search" else [repair, "latest", "--json"]
    result = found(run(*again, *([f"tracking.uri={server.url}"] if repair == "search" else [])))
    assert result["mlflow_run_id"] is not None
    check_complete(server.url, undisturbed)


def test_a_server_that_restarts_meanwhile_gets_all_of_it(
    run: Run, words: list[str], undisturbed: dict[str, Any], serve: Serve, after_round: Callable[..., None]
) -> None:
    server = serve()
    server.start()

    def restart() -> None:
        time.sleep(1)  # some of the round is written
        server.send(signal.SIGKILL)
        server.start()

    after_round(2, restart)
    outcome = run(*words, f"tracking.uri={server.url}")
    result = found(outcome)
    assert same(result, undisturbed) and len(warnings(outcome)) <= 1
    assert check_complete(server.url, undisturbed)["seconds"] == result["seconds"], "none is counted twice"


def test_a_server_that_hangs_holds_up_nothing_for_long(
    run: Run,
    words: list[str],
    undisturbed: dict[str, Any],
    serve: Serve,
    after_round: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout_s = 4.0  # the default is 25 s
    monkeypatch.setattr("raysearch.tracking.mlflow.tracker.MlflowTracker", partial(MlflowTracker, timeout_s=timeout_s))
    server = serve()
    server.start()
    after_round(1, partial(server.send, signal.SIGSTOP))
    outcome = run(*words, f"tracking.uri={server.url}")  # which ends while the server hangs
    result = found(outcome)
    assert same(result, undisturbed)
    [warning] = warnings(outcome)
    assert f"nothing was written for {timeout_s:g} s" in warning
    server.send(signal.SIGCONT)
    assert get(f"{server.url}/health", wait_s=20) == b"OK"
    assert found(run("sync", "latest", "--json"))["missing"] > 0
    assert found(run("sync", "latest", "--json"))["missing"] == 0
    assert check_complete(server.url, undisturbed)["seconds"] == result["seconds"], "none is counted twice"


def test_a_server_that_answers_too_late_has_nothing_twice(
    run: Run,
    words: list[str],
    undisturbed: dict[str, Any],
    serve: Serve,
    after_round: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    server = serve()
    server.start()

    def pause() -> None:
        server.send(signal.SIGSTOP)
        time.sleep(3)  # MLflow has asked for the same twice by then
        server.send(signal.SIGCONT)

    after_round(1, pause)
    outcome = run(*words, f"tracking.uri={server.url}")
    assert same(found(outcome), undisturbed) and len(warnings(outcome)) <= 1, "an answer cut off is not asked for again"
    check_complete(server.url, undisturbed)
