"""Which replica does which job, and when a unit is cut, tried again or given up, without Ray and without a clock."""

import pytest

from raysearch.assessment.harness import TaskJob
from raysearch.cluster.scheduler import Demand, Scheduler, TimeoutPolicy
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.unit import MaskUnit, StatisticUnit, UnitResult
from tests.cluster.fake_pool import FakePool, die
from tests.evaluation.pool_suite import ReplicaLossSuite
from tests.sentences import Sentences


class TestFakePool(ReplicaLossSuite):
    """The contract of pools holds if replicas die all the time."""

    lose_replica = staticmethod(die)

    def open_pool(self):
        return FakePool()


def unit(n_masks, calibration="a", shard=0):
    return MaskUnit(calibration, shard, tuple(Mask.of(layer) for layer in range(n_masks)))


UNITS = [unit(3, shard=shard) for shard in range(4)]
JOB = TaskJob(Mask.of(1), "piqa", None, None, None, 8)


def result(seconds=1.0):
    return UnitResult({}, 1, 1, 1, None, seconds)


def loaded(*names, jobs=UNITS, cutter=None, **options):
    """A scheduler whose replicas have loaded the model at time 0, when a round begins."""
    scheduler = Scheduler(**options)
    scheduler.begin(jobs, cutter, 0)
    for call in scheduler.sync(names, 0):
        scheduler.answered(call, f"node of {call.replica}", 0)
    return scheduler


def pairs(calls):
    return {call.replica: call.job for call in calls}


def test_new_replicas_load_and_then_pull():
    scheduler = Scheduler()
    scheduler.begin(UNITS, None, 0)
    assert scheduler.must_sync(0)
    assert scheduler.assign(0) == []
    first, second = scheduler.sync(["one", "two"], 0)
    assert (first.job, second.job, scheduler.n_replicas) == (None, None, 0)
    scheduler.answered(second, "node", 5)
    (call,) = scheduler.assign(5)
    assert (call.replica, call.job) == ("two", UNITS[0])
    scheduler.answered(first, "node", 6)
    scheduler.answered(call, result(), 6)
    assert pairs(scheduler.assign(6)) == {"two": UNITS[1], "one": UNITS[2]}
    assert scheduler.n_replicas == 2
    assert not scheduler.is_done


def test_a_round_is_done_when_all_jobs_are_answered():
    scheduler = loaded("one", jobs=UNITS[:2])
    for number in range(2):
        assert not scheduler.is_done
        (call,) = scheduler.assign(number)
        scheduler.answered(call, result(), number)
    assert scheduler.is_done
    assert scheduler.stats.replicas[0].units == 2


def test_it_syncs_every_second_and_immediately_after_a_loss():
    scheduler = loaded("one", "two")
    scheduler.begin(UNITS, None, 10)
    assert scheduler.must_sync(10)
    scheduler.sync(["one", "two"], 10)
    assert not scheduler.must_sync(10.9)
    assert scheduler.must_sync(11)
    call, _ = scheduler.assign(10)
    scheduler.lost(call, OSError("gone"))
    assert scheduler.must_sync(10)


def test_demand_counts_waiting_jobs_and_busy_replicas():
    scheduler = loaded("one", "two", "three", jobs=UNITS[:1])
    assert scheduler.demand() == Demand(3, ["one", "two", "three"], set(), ready=3)
    (call,) = scheduler.assign(0)
    assert scheduler.demand() == Demand(1, ["three"], set(), ready=3)
    scheduler.lost_idle("one")
    scheduler.lost(call, OSError("gone"))
    assert scheduler.demand() == Demand(3, ["two"], {"one", "three"}, ready=2)
    scheduler.sync(["two"], 0)
    assert scheduler.demand().lost == set()


def test_a_replica_that_the_fleet_has_ended_is_not_used():
    scheduler = loaded("one", "two")
    calls = scheduler.assign(0)
    scheduler.sync(["one"], 0)
    for call in calls:
        scheduler.answered(call, result(), 1)
    assert scheduler.n_replicas == 1
    assert list(pairs(scheduler.assign(1))) == ["one"]


def test_a_failed_job_goes_first_and_ends_the_round_at_the_third_failure(sentences: Sentences):
    scheduler = loaded("one")
    for attempt in range(3):
        (call,) = scheduler.assign(attempt)
        assert call.job == UNITS[0]
        if attempt < 2:
            scheduler.failed(call, RuntimeError("odd"))
    with sentences.refused(EvaluationError):
        scheduler.lost(call, OSError("gone"))
    assert scheduler.stats.units_redone == 3


def test_a_failed_job_goes_to_another_replica():
    scheduler = loaded("one", "two", "three", jobs=UNITS[:1])
    tried = []
    for _ in range(2):
        (call,) = scheduler.assign(0)
        tried.append(call.replica)
        scheduler.failed(call, RuntimeError("odd"))
    assert tried == ["three", "two"]
    assert scheduler.demand().lost == set()


def test_a_replica_whose_cuda_is_broken_is_replaced():
    scheduler = loaded("one", "two", jobs=UNITS[:1])
    (call,) = scheduler.assign(0)
    scheduler.failed(call, RuntimeError("CUDA error: device-side assert triggered"))
    assert scheduler.demand().lost == {"two"}
    assert pairs(scheduler.assign(0)) == {"one": UNITS[0]}


def test_an_error_of_the_user_is_raised_at_once(sentences: Sentences):
    scheduler = loaded("one", jobs=[JOB])
    (call,) = scheduler.assign(0)
    with sentences.refused(UserError):
        scheduler.failed(call, UserError("no such file"))
    assert scheduler.idle == ("one",)


def test_a_call_of_an_earlier_round_only_keeps_its_replica_busy():
    scheduler = loaded("one", "two", "three", jobs=UNITS[:2])
    old, second_old = scheduler.assign(0)
    scheduler.begin(UNITS[2:3], None, 0)
    (new,) = scheduler.assign(0)
    assert not old.is_awaited
    assert new.is_awaited
    scheduler.lost(old, OSError("gone"))
    scheduler.failed(second_old, UserError("no such file"))
    scheduler.answered(new, result(), 0)
    assert scheduler.is_done
    assert scheduler.stats.units_redone == 0


def test_replicas_that_keep_dying_while_they_load_end_the_round(sentences: Sentences):
    scheduler = Scheduler()
    scheduler.begin(UNITS, None, 0)
    with sentences.refused(EvaluationError):
        for number in range(6):
            for call in scheduler.sync([f"{number} one", f"{number} two"], 0):
                scheduler.lost(call, OSError("The actor died.\n\tpid: 7\ngone"))
    assert number == 2, "three deaths for each replica"


def test_a_replica_that_loads_resets_the_count_of_losses():
    scheduler = Scheduler()
    scheduler.begin(UNITS, None, 0)
    for number in range(12):
        (call,) = scheduler.sync([str(number)], 0)
        if number % 3 == 2:
            scheduler.answered(call, "node", 0)
        else:
            scheduler.lost(call, OSError("gone"))


def halves(unit, replicas):
    """Cut off the first mask as an end, and the rest in two."""
    end, first, second = (MaskUnit(unit.calibration, unit.shard, (mask,)) for mask in unit.masks)
    return [first, second], [end]


def test_the_last_units_are_cut_for_idle_replicas():
    scheduler = loaded("one", cutter=halves)
    order = []
    while not scheduler.is_done:
        (call,) = scheduler.assign(0)
        order.append((call.job.shard, *call.job.masks))
        scheduler.answered(call, result(), 0)
    whole = [(shard, *UNITS[0].masks) for shard in (0, 1)]
    parts = [(shard, Mask.of(layer)) for shard in (2, 3) for layer in (1, 2)]
    assert order == [*whole, *parts, (2, Mask.of(0)), (3, Mask.of(0))], "the last two units per replica are cut"


def test_units_are_cut_for_replicas_that_are_loading_but_not_for_those_without_a_process():
    def cut_for(n_postponed):
        cuts = []

        def whole(job, replicas):
            cuts.append(replicas)
            return [job], []

        scheduler = Scheduler()
        scheduler.begin(UNITS[:2], whole, 0)
        first, *loading_calls = scheduler.sync([f"replica {number}" for number in range(8)], 0)
        for loading in loading_calls[:n_postponed]:
            scheduler.postpone(loading, 1)
        scheduler.answered(first, "node", 5)
        scheduler.assign(5)
        for loading in loading_calls:
            scheduler.begun(loading)
        scheduler.answered(loading_calls[-1], "node", 6)
        scheduler.assign(6)
        return cuts

    assert cut_for(0) == [4, 7], "the first ready replica of eight leaves work for the others"
    assert cut_for(7) == [0.5, 7]


def test_without_a_cutter_nothing_is_cut_and_statistics_are_never_cut():
    scheduler = loaded("one", "two")
    statistic = StatisticUnit("a", 0, Statistic.TAYLOR)
    for units, cutter in ([UNITS[0]], None), ([statistic], halves):
        scheduler.begin(units, cutter, 0)
        (call,) = scheduler.assign(0)
        assert call.job is units[0]
        scheduler.answered(call, result(), 0)


def test_calls_that_began_long_ago_are_overdue():
    scheduler = loaded("one", "two", unit_timeout_s=7.5)
    first, second = scheduler.assign(0)
    assert scheduler.overdue(7.4) == []
    scheduler.postpone(second, 1)
    assert scheduler.overdue(7.5) == [(first, 7.5)]
    (loading,) = scheduler.sync(["one", "two", "three"], 8)
    scheduler.postpone(loading, 100)
    assert [call for call, _ in scheduler.overdue(3699)] == [first, second]
    assert [call for call, _ in scheduler.overdue(3700)] == [first, second, loading]


def test_only_the_time_of_ready_replicas_counts():
    scheduler = Scheduler()
    scheduler.begin(UNITS[:1], None, 0)
    (loading,) = scheduler.sync(["one"], 0)
    scheduler.account_time(3)
    scheduler.answered(loading, "node", 3)
    (call,) = scheduler.assign(3)
    scheduler.account_time(7)
    scheduler.answered(call, result(seconds=2.0), 7)
    (replica,) = scheduler.stats.replicas
    assert scheduler.stats.waiting_seconds == 3
    assert scheduler.stats.busy_share == 0.5
    assert (replica.node, replica.busy_s, replica.present_s) == ("node", 2, 4)


@pytest.mark.parametrize(
    ("unit_timeout_s", "learned", "limits"),
    [
        pytest.param("auto", [], [(unit(1), 86400)], id="a day for the first job"),
        pytest.param(7.5, [], [(None, 3600)], id="an hour to load, whatever the limit of units"),
        pytest.param(
            "auto",
            [(unit(4), 40), (unit(1), 30), (unit(2), 2)],
            [(unit(1), 300), (unit(5), 1500)],
            id="ten times the longest",
        ),
        pytest.param("auto", [(unit(1), 0.01)], [(unit(3), 60)], id="at least a minute"),
        pytest.param(
            "auto",
            [(unit(1), 1)],
            [(unit(1, "b"), 86400), (StatisticUnit("a", 0, Statistic.TAYLOR), 86400)],
            id="other kinds are independent",
        ),
        pytest.param(7.5, [], [(JOB, 86400)], id="other jobs have a day"),
        pytest.param(7.5, [(JOB, 1000)], [(JOB, 10_000)], id="other jobs learn their limit"),
        pytest.param(7.5, [(unit(1), 1000)], [(unit(1), 7.5), (unit(100), 7.5)], id="a fixed limit stays"),
    ],
)
def test_how_long_a_job_may_take(unit_timeout_s, learned, limits):
    timeouts = TimeoutPolicy(unit_timeout_s)
    for job, seconds in learned:
        timeouts.learn(job, seconds)
    assert limits == [(job, timeouts.limit_s(job)) for job, _ in limits]
