"""There are as many replicas as there is work for, within the limits, and none that nobody needs for long."""

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
    """Stands still until the test moves it."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(fleet_module, "time", made)
    monkeypatch.setattr(Fleet, "_watch", lambda self: None)
    return made


@pytest.fixture
def killed(monkeypatch):
    """The actors that Ray was told to kill."""
    killed: list[str] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    return killed


@pytest.fixture
def make_fleet(killed):
    """Fleets of numbered strings, closed in the end."""
    fleets: list[Fleet] = []
    made: list[str] = []

    def make_actor(needs):
        made.append(f"actor {len(made)}")
        return made[-1]

    def make(least, most, idle_s=10.0):
        fleets.append(Fleet(least, most, Needs(cpus=1, gpus=0), idle_s, make_actor))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


def test_as_many_as_wanted_within_the_limits(make_fleet, clock):
    fleet = make_fleet(2, 4)
    assert len(fleet.sync("pool", Demand(0))) == 2
    assert len(fleet.sync("pool", Demand(3))) == 3
    assert len(fleet.sync("pool", Demand(99))) == 4


def test_pools_share_it(make_fleet, clock):
    fleet = make_fleet(0, 8)
    assert len(fleet.sync("one", Demand(2))) == 2
    assert len(fleet.sync("other", Demand(3))) == 5


def test_actors_are_awaited_where_there_is_work_and_none_has_loaded(make_fleet, clock):
    fleet = make_fleet(1, 8)
    assert not fleet.is_awaited(), "nobody wants any"
    fleet.sync("one", Demand(2))
    assert fleet.is_awaited()
    fleet.sync("other", Demand(3, ready=1))
    assert not fleet.is_awaited()


def test_those_not_wanted_for_a_while_are_let_go_but_not_the_busy(make_fleet, clock, killed):
    fleet = make_fleet(1, 4, idle_s=10)
    names = list(fleet.sync("pool", Demand(4)))
    fleet.sync("pool", Demand(1, names[3:]))
    clock.now += 9
    assert len(fleet.sync("pool", Demand(1, names[3:]))) == 4 and not killed
    clock.now += 1
    assert list(fleet.sync("pool", Demand(1, names[3:]))) == [names[3]]
    assert killed == ["actor 2", "actor 1", "actor 0"], "the newest first"


def test_work_in_between_makes_it_wait_anew(make_fleet, clock, killed):
    fleet = make_fleet(1, 3, idle_s=10)
    for wanted in (3, 0, 3, 0):
        assert len(fleet.sync("pool", Demand(wanted))) == 3
        clock.now += 9
    clock.now += 1
    assert len(fleet.sync("pool", Demand(0))) == 1


def test_a_pool_that_falls_silent_wants_nothing(make_fleet, clock):
    fleet = make_fleet(0, 4, idle_s=10)
    fleet.sync("silent", Demand(3))
    fleet.sync("heard", Demand(1))
    clock.now += 119
    assert len(fleet.sync("heard", Demand(1))) == 4
    clock.now += 2
    fleet.sync("heard", Demand(1))
    clock.now += 10
    assert len(fleet.sync("heard", Demand(1))) == 1


def test_the_lost_are_replaced_and_their_actors_ended(make_fleet, clock, killed):
    fleet = make_fleet(2, 2)
    lost, left = fleet.sync("pool", Demand(2))
    after = fleet.sync("pool", Demand(2, lost={lost, "nobody"}))
    assert len(after) == 2 and left in after and lost not in after
    assert killed == ["actor 0"]


def test_it_lets_go_by_itself(make_fleet, killed):
    fleet = make_fleet(0, 3, idle_s=0.1)
    fleet.sync("pool", Demand(3))
    fleet.sync("pool", Demand(0))
    wait_for(lambda: len(killed) == 3, 5)
    assert sorted(killed) == ["actor 0", "actor 1", "actor 2"]


def test_closed_it_has_none_and_makes_none(make_fleet, clock, killed):
    fleet = make_fleet(2, 2)
    fleet.sync("pool", Demand(2))
    fleet.close()
    fleet.close()
    assert killed == ["actor 0", "actor 1"]
    assert fleet.sync("pool", Demand(2)) == {}


def test_those_that_outlive_a_shared_one_are_interrupted(one_ray):
    fleet = shared_fleet(0, 1, Needs(cpus=1, gpus=0), idle_s=10)
    assert fleet.sync("pool", Demand(0)) == {}
    fleet.close()
    deadline = time.monotonic() + 30  # Ray ends its actor when it comes to it; until then it has no replicas to give
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() < deadline:
            assert fleet.sync("pool", Demand(1)) == {}
