"""The cores and the memory of a container."""

import pytest

from raysearch.core import machine


def test_a_container_limits_cores_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    free = machine.memory_bytes()
    assert free > 2**20
    for limit, expected in (("3145728\n", 2**21), ("max\n", free), (f"{2**60}\n", free)):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("1572864\n")  # half a MiB of it is cached files
        (tmp_path / "memory.stat").write_text("anon 1048576\ninactive_file 524288\n")
        assert machine.memory_bytes() == pytest.approx(expected, rel=0.5 if expected is free else 0)
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert machine.n_cores() == 1
