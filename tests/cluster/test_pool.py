"""The same numbers from any number of replicas, whatever happens to them."""

import functools
import os
import signal
import threading
import time
from contextlib import closing, contextmanager

import pytest
import ray

from raysearch.cluster.actor import Recipe, own_versions
from raysearch.cluster.bounds import Bounds
from raysearch.cluster.fleet import Fleet, Needs
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Survey, Unit
from raysearch.models.shared_weights import pack, unpack
from raysearch.models.stack import LayerStack

MASKS = tuple(Mask.of(*layers) for layers in [(), (0,), (1,), (2,), (3,), (1, 2), (0, 3)])


def make_shared_replica(calibration, packed, kind=Replica):
    return kind(LayerStack(unpack(*packed)), [calibration])


class SlowReplica(Replica):
    """Gives a test time to kill it."""

    def evaluate(self, task, calibration=None):
        time.sleep(0.4)
        return super().evaluate(task, calibration)


class BrokenReplica(Replica):
    """Fails on one shard, always."""

    def evaluate(self, task, calibration=None):
        if task.shard == 1:
            raise RuntimeError("this shard is cursed")
        return super().evaluate(task, calibration)


class RefusingReplica(Replica):
    """Cannot be made."""

    def __init__(self, *args):
        raise UserError("model=x cannot be used; use another")


class DyingReplica(Replica):
    """Takes its process with it."""

    def evaluate(self, task, calibration=None):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def _ray():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def units(calibration):
    name, shards = calibration.fingerprint, range(calibration.n_shards)
    surveys = [Survey(name, 0, Statistic.TAYLOR), *(Survey(name, shard, Statistic.GATE_GRADIENTS) for shard in shards)]
    return [*(Unit(name, shard, MASKS) for shard in shards), *surveys]


@contextmanager
def pool_of(model, calibration, n_replicas, kind=Replica):
    make_replica = functools.partial(make_shared_replica, calibration, kind=kind)
    recipe = [ray.put(Recipe(make_replica, pack(model), own_versions()))]
    fleet = Fleet(Bounds(n_replicas, n_replicas), Needs(cpus=1, gpus=0), idle_s=60)
    with closing(RayPool(Replicas(fleet, recipe, n_replicas), fleet.close)) as pool:
        yield pool


def answers(pool, units):
    """Every loss, and every statistic, as bytes."""
    done = [answer for answer in pool.run(units) if answer is not None]
    return {(unit.shard, subject): rows.tobytes() for unit, result in done for subject, rows in result.values.items()}


@pytest.fixture
def inline_answers(make_replica, units):
    return answers(InlinePool(make_replica), units)


@pytest.mark.parametrize("n_replicas", [1, 2, 3])
def test_any_number_of_replicas_gives_the_same_bits(model, calibration, units, inline_answers, n_replicas):
    with pool_of(model, calibration, n_replicas) as pool:
        assert answers(pool, units) == inline_answers
        assert answers(pool, units[:1]).items() <= inline_answers.items(), "a pool serves round after round"


def test_a_round_that_was_given_up_does_not_answer_the_next(model, calibration, units, inline_answers):
    with pool_of(model, calibration, 2, SlowReplica) as pool:
        given_up = pool.run(units[:3])
        assert next(answer for answer in given_up if answer is not None)
        given_up.close()
        assert [unit for unit, _ in filter(None, pool.run(units[3:4]))] == units[3:4]
        assert answers(pool, units) == inline_answers


def test_a_killed_replica_is_replaced_and_its_unit_redone(model, calibration, units, inline_answers):
    with pool_of(model, calibration, 2, SlowReplica) as pool:
        answers(pool, units[:1])  # the first is loaded
        victim = ray.get(next(iter(pool._actors.values())).pid.remote())
        killer = threading.Timer(0.2, os.kill, [victim, signal.SIGKILL])
        killer.start()
        assert answers(pool, units) == inline_answers
        killer.join()


def test_idle_replicas_that_died_together_fail_a_unit_once(model, calibration, units, inline_answers):
    with pool_of(model, calibration, 4) as pool:
        while pool.n_replicas < 4:
            answers(pool, units)
        for actor in list(pool._actors.values()):
            os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
        assert answers(pool, units[:1]).items() <= inline_answers.items()
        assert pool.report.units_redone == 1


def test_a_unit_that_always_fails_ends_with_its_cause(model, calibration, units):
    said = r"7 mask\(s\) on shard 1 failed 3 times.*RuntimeError: this shard is cursed"
    with pool_of(model, calibration, 2, BrokenReplica) as pool, pytest.raises(EvaluationError, match=said):
        answers(pool, units)


def test_a_unit_that_always_kills_its_replica_ends_with_its_cause(model, calibration, units):
    with pool_of(model, calibration, 1, DyingReplica) as pool, pytest.raises(EvaluationError, match="failed 3 times"):
        answers(pool, units)


def test_a_model_that_cannot_be_used_is_the_users_error(model, calibration, units):
    with (
        pool_of(model, calibration, 2, RefusingReplica) as pool,
        pytest.raises(UserError, match="model=x cannot be used"),
    ):
        answers(pool, units)


def test_closing_twice_is_harmless(model, calibration):
    with pool_of(model, calibration, 1) as pool:
        pool.close()
