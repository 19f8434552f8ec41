"""The cores and the memory of a container."""

import pytest

from raysearch.core import machine


def test_a_container_limits_cores_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    free = machine.memory_bytes()
    assert free > 2**20
    for limit, found in (("1048576\n", 2**20), ("max\n", free), (f"{2**60}\n", free)):
        (tmp_path / "memory.max").write_text(limit)
        assert machine.memory_bytes() == pytest.approx(found, rel=0.5)
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert machine.n_cores() == 1
