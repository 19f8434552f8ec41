"""A study joins Ray once for all its models, and only if it needs replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from raysearch.cluster.sizing import ReplicaRange
from raysearch.studies.replicas import ModelReplicas, StudyCluster


class Cluster:
    """A cluster that a study joins; it records its life.

    Args:
        history: The records.
        address: Its address.
        cpus: The CPUs with which it was started.
    """

    def __init__(self, history: list[str], address: str | None, cpus: float) -> None:
        self.history = history
        self.address = address
        history.append(f"join {address} with {cpus:g} CPUs")

    def wait(self) -> None:
        self.history.append(f"wait for {self.address}")

    def close(self) -> None:
        self.history.append(f"leave {self.address}")


class Options:
    """The options of a model's replicas."""

    def __init__(self, history: list[str], address: str | None, n_replicas: int, cpus_per_replica: int = 1) -> None:
        self.history = history
        self.address = address
        self.n_replicas = n_replicas
        self.cpus_per_replica = cpus_per_replica
        self.start = Mock()

    def ray_cluster(self, cpus: float) -> Cluster:
        return Cluster(self.history, self.address, cpus)

    def replica_range(self, info: Any, n_units: float) -> ReplicaRange:
        return ReplicaRange(self.n_replicas, self.n_replicas)


def model_groups(*options: Options) -> Any:
    return [SimpleNamespace(model="tiny", cluster=each, info=None) for each in options]


def test_models_on_this_machine_share_one_ray_with_the_cpus_of_the_largest() -> None:
    history: list[str] = []
    first, second = model_groups(Options(history, None, 2), Options(history, None, 3, cpus_per_replica=2))
    with StudyCluster([first, second], n_workers=0) as cluster:
        cluster.join_running()
        cluster.check()
        assert history == [], "nothing is needed yet"
        assert cluster.join(first) is cluster.join(second)
    cluster.leave()
    assert history == ["join None with 6 CPUs", "leave None"]


def test_processes_that_train_have_cpus() -> None:
    history: list[str] = []
    (model_group,) = model_groups(Options(history, None, 2))
    with StudyCluster([model_group], n_workers=4) as cluster:
        cluster.join(model_group)
    assert history == ["join None with 4 CPUs", "leave None"]


def test_running_clusters_are_joined_at_once_and_one_after_another() -> None:
    history: list[str] = []
    first, second = model_groups(Options(history, "a:1", 1), Options(history, "b:1", 1))
    with StudyCluster([first, second], n_workers=0) as cluster:
        cluster.join_running()
        cluster.join(first)
        cluster.join(second)
    joined = [line for line in history if line.startswith("join")]
    assert joined == [f"join {address} with 1 CPUs" for address in ("a:1", "b:1", "a:1", "b:1")]
    assert history[:4] == ["join a:1 with 1 CPUs", "wait for a:1", "leave a:1", "join b:1 with 1 CPUs"]
    assert history[-1] == "leave b:1"


def test_replicas_start_once_when_they_are_needed_and_end_with_the_context() -> None:
    options: Any = Options([], None, 2)
    (model_group,) = model_groups(options)
    with StudyCluster([model_group], n_workers=0) as cluster:
        with ModelReplicas(model_group, cluster):
            pass
        assert not options.start.called
        with ModelReplicas(model_group, cluster) as replicas:
            assert replicas.get() is replicas.get()
        options.start.assert_called_once()
        options.start.return_value.close.assert_called_once_with()
