"""Numbers of replicas that make no sense are refused."""

import os
from pathlib import Path

import pytest

from raysearch.cluster.options import ClusterOptions, ReplicaRange
from raysearch.errors import UserError
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from tests.models.families import FAMILIES


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2), (0, 0)])
def test_ranges_that_are_none(least, most):
    with pytest.raises(UserError, match=rf"cluster.replicas={{min:{least},max:{most}}} is no range"):
        ReplicaRange(least, most)


def test_more_threads_than_the_cores_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    model = locate(ModelSpec("tiny", str(tmp_path), device="cpu"))
    ClusterOptions(cpus_per_replica=16).check_model(model)
    with pytest.raises(
        UserError, match="cluster.cpus_per_replica=1024 are more threads than the 2 cores .*; use 1 … 2"
    ):
        ClusterOptions(cpus_per_replica=1024).check_model(model)
