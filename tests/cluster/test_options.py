"""The number of replicas, and their devices; impossible options are refused."""

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from raysearch.cluster.options import ClusterOptions
from raysearch.cluster.sizing import ReplicaRange
from raysearch.errors import UserError
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.models.description import describe
from raysearch.models.source import locate
from raysearch.models.spec import ModelInfo, ModelSpec
from tests.models.families import FAMILIES
from tests.sentences import Sentences


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2), (0, 0)])
def test_impossible_ranges_are_refused(least, most, sentences: Sentences):
    with sentences.refused(UserError):
        ReplicaRange(least, most)


def test_the_device_follows_from_the_gpus_of_a_replica() -> None:
    def placed(device: str = "auto", address: str | None = None, gpus: float | Literal["auto"] = "auto") -> str:
        options = ClusterOptions(address=address, gpus_per_replica=gpus)
        return options.place(ModelSpec("tiny", "tiny", device=device)).device

    assert placed() == placed(gpus=2) == placed(address="auto") == "auto"
    assert placed(gpus=0) == placed(gpus=0, address="auto") == "cpu"
    assert placed(gpus=1, address="auto") == "cuda"
    assert placed("cpu", "auto", 1) == "cpu"


@pytest.fixture
def tiny(tmp_path: Path) -> ModelSpec:
    """A model with files."""
    FAMILIES["llama"]().save_pretrained(tmp_path)
    return ModelSpec("tiny", str(tmp_path), device="cpu")


def test_devices_that_replicas_do_not_have_are_refused(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    model = locate(replace(tiny, device="cuda:3"))
    ClusterOptions("inline").check_model(model)
    with sentences.refused(UserError):
        ClusterOptions().check_model(model)
    with sentences.refused(UserError):
        ClusterOptions(gpus_per_replica=0).check_model(model)
    with sentences.refused(UserError):
        ClusterOptions("inline", gpus_per_replica=4)


def test_a_running_cluster_is_joined_before_a_pool_is_opened(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have started Ray
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        options = ClusterOptions(address=f"127.0.0.1:{nobody.getsockname()[1]}")
        options.check_model(locate(tiny))
        with sentences.refused(UserError):
            options.join()


def test_there_are_as_many_replicas_as_cores_memory_and_work_allow(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysearch.cluster.options.n_cores", lambda: 64)
    monkeypatch.setattr("raysearch.cluster.options.memory_bytes", lambda: 32 * 2**30)
    small = describe(tiny)
    mid = replace(small, parameters=600_000_000, hidden_size=1024, dtype="bfloat16")
    large = replace(small, parameters=8_000_000_000, hidden_size=4096, dtype="bfloat16")

    def replicas(info: ModelInfo, n_units: int = 1000, resources: Mapping[str, float] | None = None) -> int:
        replica_range = ClusterOptions().replica_range(info, n_units, resources)
        assert replica_range.min == replica_range.max
        return replica_range.max

    assert replicas(small) == 31  # each needs little more than 1 GiB
    assert replicas(mid) == 13  # in addition 1.1 GiB of weights in another layout, and 0.25 GiB of hidden states
    assert replicas(large) == 8  # 14.9 GiB are shared; 1 GiB of hidden states
    assert replicas(replace(large, parameters=20_000_000_000)) == 1
    assert replicas(small, n_units=3) == 3
    assert replicas(large, resources={"CPU": 24.0, "memory": 2.0**40}) == 24
    assert ClusterOptions(replicas=50).replica_range(large, 1).max == 50


def test_more_threads_than_the_cores_can_run_are_refused(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("raysearch.cluster.options.n_cores", lambda: 2)
    model = locate(tiny)
    ClusterOptions(cpus_per_replica=16).check_model(model)
    with sentences.refused(UserError):
        ClusterOptions(cpus_per_replica=1024).check_model(model)


def test_if_ray_does_not_start_one_replica_in_this_process_is_used(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", fails)
    info = describe(tiny)
    with pytest.warns(UserWarning) as caught:
        pool = ClusterOptions().join().open(info, 8)
    sentences.check(str(caught[0].message))
    assert isinstance(pool, InlinePool)
    pool.close()
    with sentences.refused(UserError):
        ClusterOptions(replicas=2).join().open(info, 8)
