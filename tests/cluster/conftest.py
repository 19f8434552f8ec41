"""A simulated Ray for tests of how Ray is started, joined, watched and left."""

from __future__ import annotations

import pytest
import ray

from raysearch.cluster.watch import ClusterHead, LocalRay
from tests.cluster.simulated_ray import SimulatedRay


@pytest.fixture
def simulated_ray(monkeypatch: pytest.MonkeyPatch) -> SimulatedRay:
    """A Ray that does not start. No test is in a cluster at its start, even if an earlier test has started Ray."""
    simulated = SimulatedRay()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", simulated.init)
    monkeypatch.setattr(ray, "shutdown", simulated.shutdown)
    for kind in (LocalRay, ClusterHead):
        monkeypatch.setattr(kind, "joined", lambda: simulated.processes)
    return simulated
