"""Replicas as Ray actors give the same numbers as a replica in this process, even if they die."""

import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass

import pytest
import ray

from raysearch.cluster.actor import Recipe, installed_versions
from raysearch.cluster.fleet import Fleet, Needs
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.errors import UserError
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.models.shared_weights import attach, detach
from raysearch.models.stack import LayerStack
from raysearch.testing.objective_suite import tiny_model
from tests.evaluation.pool_suite import ReplicaLossSuite, units_on
from tests.sentences import Sentences

ONE_CPU = Needs(cpus=1, gpus=0)


def make_shared_replica(detached):
    return Replica(LayerStack(attach(*detached)))


def kill_own_process():
    os.kill(os.getpid(), signal.SIGKILL)


class FirstOf(Fleet):
    """The first few replicas of a fleet."""

    def __init__(self, fleet, n_replicas):
        self.fleet = fleet
        self.n_replicas = n_replicas

    def sync(self, pool, demand):
        return dict([*self.fleet.sync(pool, demand).items()][: self.n_replicas])


@pytest.fixture(scope="module")
def fleet(one_ray):
    """Two actors for all tests, since each takes seconds to start."""
    fleet = Fleet(2, 2, ONE_CPU, idle_s=60)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def recipe(one_ray):
    return [ray.put(Recipe(make_shared_replica, detach(tiny_model()), installed_versions()))]


class TestRayPool(ReplicaLossSuite):
    lose_replica = staticmethod(kill_own_process)

    @pytest.fixture(autouse=True)
    def _actors(self, fleet, recipe):
        self.fleet = fleet
        self.recipe = recipe

    def open_pool(self, n_replicas=2):
        return RayPool(Replicas(FirstOf(self.fleet, n_replicas), self.recipe, n_replicas))

    @pytest.mark.parametrize("n_replicas", [1, 2])
    def test_any_number_of_replicas_gives_the_same_bits(self, pool, n_replicas):
        few = self.open_pool(n_replicas)
        while few.n_replicas < n_replicas:  # actors have loaded the model, but each pool must call them
            self.check_answers(few)
        self.check_answers(few)

    def test_idle_replicas_that_died_together_fail_a_unit_once(self, pool):
        two = self.open_pool(2)
        while two.n_replicas < 2:
            self.check_answers(two)
        for actor in list(two._actors.values()):
            os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
        assert len([*filter(None, two.run(units_on(self.calibration)[:1], [self.calibration]))]) == 1
        assert two.stats.units_redone == 1

    def test_a_replica_that_works_for_another_pool_is_not_given_up(self, pool, tmp_path):
        class Busy(Job):
            """Runs until a file exists; it is sent to the actor by value."""

            def run(self, replica):
                while not (tmp_path / "enough").exists():
                    time.sleep(0.01)

        waiting_pool = self.open_pool(1)
        units = units_on(self.calibration)
        self.check_answers(waiting_pool)
        (actor,) = waiting_pool._actors.values()
        busy = actor.run.remote("another", self.recipe, Busy(), [])
        while ray.get(actor.works_for.remote())[0] != "another":
            time.sleep(0.01)
        answers = waiting_pool.run(units, [self.calibration])
        assert next(answers) is None
        waiting_pool._end_overdue(time.monotonic() + 1e6)
        (tmp_path / "enough").touch()
        ray.get(busy)
        assert len([*filter(None, answers)]) == len(units)
        assert waiting_pool.stats.units_redone == 0
        assert [*waiting_pool._actors.values()] == [actor]

    def test_a_replica_gets_its_next_job_before_the_answer_is_yielded(self, pool, tmp_path):
        @dataclass(frozen=True)
        class Touching(Job):
            """Makes a file; it is sent to the actor by value."""

            number: int

            def run(self, replica):
                (tmp_path / str(self.number)).touch()

        answers = filter(None, self.open_pool(1).run([Touching(number) for number in range(2)]))
        next(answers)
        for _ in range(6000):
            if (tmp_path / "1").exists():
                break
            time.sleep(0.01)
        assert (tmp_path / "1").exists()
        assert len([*answers]) == 1

    def test_a_model_that_cannot_be_used_is_the_users_error(self, pool, sentences: Sentences):
        def refuse(detached):  # sent to the actor by value, so that the actor imports nothing for it
            raise UserError("model=x cannot be used; use another")

        fleet = Fleet(1, 1, ONE_CPU, idle_s=60)
        recipe = [ray.put(Recipe(refuse, None, installed_versions()))]
        refusing = RayPool(Replicas(fleet, recipe, 1))
        with closing(fleet), sentences.refused(UserError):
            list(refusing.run(units_on(self.calibration)))
