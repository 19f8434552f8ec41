"""Replicas start while the weights are read; after an error, none is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from raysearch.cluster import start
from raysearch.cluster import watch as watch_module
from raysearch.cluster.fleet import Needs
from raysearch.cluster.ray_cluster import RayCluster
from raysearch.cluster.sizing import ReplicaRange
from raysearch.cluster.start import ReplicaStarter
from raysearch.errors import EvaluationError, UserError
from raysearch.models import loading
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelSpec
from tests.cluster.simulated_ray import SimulatedRay
from tests.models.families import FAMILIES
from tests.sentences import Sentences


class FakeFleet:
    """A fleet without actors."""

    def __init__(self, least: int, most: int, needs: Needs, idle_s: float) -> None:
        self.n_closed = 0

    def close(self) -> None:
        self.n_closed += 1


@pytest.fixture
def fleets(simulated_ray: SimulatedRay, monkeypatch: pytest.MonkeyPatch) -> list[FakeFleet]:
    """The fleets that are made."""
    fleets: list[FakeFleet] = []

    def make(*args: Any) -> FakeFleet:
        fleets.append(FakeFleet(*args))
        return fleets[-1]

    monkeypatch.setattr(start, "Fleet", make)
    monkeypatch.setattr(ray, "put", lambda value: value)
    return fleets


@pytest.fixture
def model(tmp_path: Path) -> LocatedModel:
    """A model on the CPU with files."""
    FAMILIES["llama"]().save_pretrained(tmp_path)
    return locate(ModelSpec("tiny", str(tmp_path), device="cpu"))


def range_in(resources: Mapping[str, float]) -> ReplicaRange:
    pytest.fail("the replicas are on this machine")


def starter(cluster: RayCluster, model: LocatedModel) -> ReplicaStarter:
    return ReplicaStarter(cluster, model, Needs(1, 0), ReplicaRange(1, 2), range_in, idle_s=60, unit_timeout_s="auto")


def test_replicas_share_weights_that_are_sent_once(fleets: list[FakeFleet], model: LocatedModel) -> None:
    with RayCluster(None, 2) as cluster:
        started = starter(cluster, model).start()
        (recipe,) = started.replicas.recipe
        assert recipe.detached is not None
        assert started.replicas.most == 2
        started.close()
        started.close()
        assert started.replicas.recipe == [], "the weights are freed"
    assert [fleet.n_closed for fleet in fleets] == [1]


def test_replicas_of_a_copied_file_read_it_themselves(fleets: list[FakeFleet], model: LocatedModel) -> None:
    copy = replace(model, digest="0" * 64)
    assert copy.is_copy
    with RayCluster(None, 2) as cluster:
        (recipe,) = starter(cluster, copy).start().replicas.recipe
    assert recipe.detached is None


def test_weights_with_a_merged_adapter_are_sent(
    fleets: list[FakeFleet], model: LocatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of this machine has them."""
    merged = loading.load_model(model)
    monkeypatch.setattr(loading, "load_model", lambda model, device: merged)
    with RayCluster(None, 2) as cluster:
        (recipe,) = starter(cluster, replace(model, digest="0" * 64, adapter="lora")).start().replicas.recipe
    assert recipe.detached is not None


@pytest.mark.parametrize("error", [UserError("the weights are damaged"), KeyboardInterrupt()])
def test_no_replica_is_left_if_the_weights_cannot_be_read(
    error: BaseException, fleets: list[FakeFleet], model: LocatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(loading, "load_model", fail)
    with RayCluster(None, 2) as cluster:
        with pytest.raises(type(error)) as raised:
            starter(cluster, model).start()
        assert raised.value is error
        assert [fleet.n_closed for fleet in fleets] == [1]


def test_replicas_are_not_ended_if_ray_has_died(
    fleets: list[FakeFleet],
    model: LocatedModel,
    simulated_ray: SimulatedRay,
    monkeypatch: pytest.MonkeyPatch,
    sentences: Sentences,
) -> None:
    monkeypatch.setattr(watch_module, "_LOOK_S", 0.0)
    with RayCluster(None, 2) as cluster:
        started = starter(cluster, model).start()
        simulated_ray.processes.dead = "Ray's raylet on this machine"
        with sentences.refused(EvaluationError):
            cluster.check()
        started.close()
    assert [fleet.n_closed for fleet in fleets] == [0], "it would not answer"
