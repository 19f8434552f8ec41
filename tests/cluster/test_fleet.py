"""There are as many replicas as there is work for, within the limits, and superfluous replicas end after a while."""

import time
from types import SimpleNamespace

import pytest
import ray

from raysearch.cluster import fleet as fleet_module
from raysearch.cluster.fleet import Fleet, Needs, shared_fleet
from raysearch.cluster.scheduler import Demand
from tests.processes import wait_for


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until the test moves it."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(fleet_module, "time", clock)
    monkeypatch.setattr(Fleet, "_watch", lambda self: None)
    return clock


@pytest.fixture
def killed(monkeypatch):
    """The actors that were killed."""
    killed: list[str] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    return killed


@pytest.fixture
def make_fleet(killed):
    """A function that makes fleets of numbered strings; they are closed after the test."""
    fleets: list[Fleet] = []
    actors: list[str] = []

    def make_actor(needs):
        actors.append(f"actor {len(actors)}")
        return actors[-1]

    def make(least, most, idle_s=10.0):
        fleets.append(Fleet(least, most, Needs(cpus=1, gpus=0), idle_s, make_actor))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


def test_there_are_as_many_actors_as_demanded_within_the_limits(make_fleet, clock):
    fleet = make_fleet(2, 4)
    assert len(fleet.sync("pool", Demand(0))) == 2
    assert len(fleet.sync("pool", Demand(3))) == 3
    assert len(fleet.sync("pool", Demand(99))) == 4


def test_pools_share_a_fleet(make_fleet, clock):
    fleet = make_fleet(0, 8)
    assert len(fleet.sync("one", Demand(2))) == 2
    assert len(fleet.sync("other", Demand(3))) == 5


def test_actors_are_awaited_if_there_is_work_and_none_has_loaded(make_fleet, clock):
    fleet = make_fleet(1, 8)
    assert not fleet.is_awaited(), "there is no demand"
    fleet.sync("one", Demand(2))
    assert fleet.is_awaited()
    fleet.sync("other", Demand(3, ready=1))
    assert not fleet.is_awaited()


def test_superfluous_actors_end_after_a_while_but_not_busy_ones(make_fleet, clock, killed):
    fleet = make_fleet(1, 4, idle_s=10)
    names = list(fleet.sync("pool", Demand(4)))
    fleet.sync("pool", Demand(1, names[3:]))
    clock.now += 9
    assert len(fleet.sync("pool", Demand(1, names[3:]))) == 4
    assert not killed
    clock.now += 1
    assert list(fleet.sync("pool", Demand(1, names[3:]))) == [names[3]]
    assert killed == ["actor 2", "actor 1", "actor 0"], "newest first"


def test_work_in_between_restarts_the_idle_time(make_fleet, clock, killed):
    fleet = make_fleet(1, 3, idle_s=10)
    for n_replicas in (3, 0, 3, 0):
        assert len(fleet.sync("pool", Demand(n_replicas))) == 3
        clock.now += 9
    clock.now += 1
    assert len(fleet.sync("pool", Demand(0))) == 1


def test_the_demand_of_a_pool_that_no_longer_syncs_is_forgotten(make_fleet, clock):
    fleet = make_fleet(0, 4, idle_s=10)
    fleet.sync("silent", Demand(3))
    fleet.sync("heard", Demand(1))
    clock.now += 119
    assert len(fleet.sync("heard", Demand(1))) == 4
    clock.now += 2
    fleet.sync("heard", Demand(1))
    clock.now += 10
    assert len(fleet.sync("heard", Demand(1))) == 1


def test_lost_actors_are_killed_and_replaced(make_fleet, clock, killed):
    fleet = make_fleet(2, 2)
    lost, remaining = fleet.sync("pool", Demand(2))
    after = fleet.sync("pool", Demand(2, lost={lost, "nobody"}))
    assert len(after) == 2
    assert remaining in after
    assert lost not in after
    assert killed == ["actor 0"]


def test_idle_actors_end_without_a_sync(make_fleet, killed):
    fleet = make_fleet(0, 3, idle_s=0.1)
    fleet.sync("pool", Demand(3))
    fleet.sync("pool", Demand(0))
    wait_for(lambda: len(killed) == 3, 5)
    assert sorted(killed) == ["actor 0", "actor 1", "actor 2"]


def test_a_closed_fleet_has_no_actors_and_makes_none(make_fleet, clock, killed):
    fleet = make_fleet(2, 2)
    fleet.sync("pool", Demand(2))
    fleet.close()
    fleet.close()
    assert killed == ["actor 0", "actor 1"]
    assert fleet.sync("pool", Demand(2)) == {}


def test_a_pool_that_outlives_a_shared_fleet_is_interrupted(one_ray):
    fleet = shared_fleet(0, 1, Needs(cpus=1, gpus=0), idle_s=10)
    assert fleet.sync("pool", Demand(0)) == {}
    fleet.close()
    deadline = time.monotonic() + 30  # Ray needs some time to end its actor; until then the fleet is empty
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() < deadline:
            assert fleet.sync("pool", Demand(1)) == {}
