"""The tests of the pool contract (`raysearch.evaluation.pool`).

A pool is tested by a subclass:

    class TestMyPool(PoolSuite):
        def open_pool(self):
            return MyPool(tiny_replica)

If its replicas can die, it is also tested by a subclass of `ReplicaLossSuite`.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool import MAX_ATTEMPTS, Pool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job, MaskUnit, StatisticUnit, Unit, UnitResult
from raysearch.models.stack import LayerStack
from raysearch.testing.objective_suite import VOCABULARY, tiny_model
from tests.sentences import Sentences

_N_LAYERS = 4
_MASKS = tuple(sorted(Mask.of(*layers) for layers in [(), (0,), (1,), (2,), (3,), (1, 2), (0, 3)]))

#: The bytes of values, by shard and subject.
Answers = dict[tuple[int, Any], bytes]


def tiny_replica() -> Replica:
    """Return a replica of the tiny model, without calibrations."""
    return Replica(LayerStack(tiny_model(_N_LAYERS)))


def tiny_calibration(name: str) -> Calibration:
    """Return a calibration of three shards, whose fingerprint depends on the name alone."""
    ids = np.random.default_rng(0).integers(VOCABULARY, size=(5, 12))
    batch = Batch.of(ids.tolist(), [[False, *[True] * 11]] * 5)
    return Calibration.create(PerplexityObjective(), batch, 2, {"name": name}, {})


def units_on(calibration: Calibration) -> list[Unit]:
    """Return units of masks and of statistics, on all shards."""
    name = calibration.fingerprint
    shards = range(calibration.n_shards)
    return [
        *(MaskUnit(name, shard, _MASKS) for shard in shards),
        StatisticUnit(name, 0, Statistic.TAYLOR),
        *(StatisticUnit(name, shard, Statistic.GATE_GRADIENTS) for shard in shards),
    ]


def answers_of(results: Iterable[tuple[Unit, UnitResult] | None]) -> Answers:
    """Return all values of a round, and fail if a value comes twice."""
    answers: Answers = {}
    for unit, result in filter(None, results):
        for subject, values in result.values.items():
            assert (unit.shard, subject) not in answers, f"{subject} on shard {unit.shard} came twice"
            answers[unit.shard, subject] = values.tobytes()
    return answers


@functools.cache
def expected_answers() -> Answers:
    """Return the values that a plain replica computes."""
    calibration = tiny_calibration("plain")
    replica = tiny_replica()
    replica.calibrations[calibration.fingerprint] = calibration
    return answers_of((unit, replica.evaluate(unit)) for unit in units_on(calibration))


@dataclass(frozen=True)
class TroubleJob(Job):
    """A job that fails, or ends its replica, in its first attempts, and records each attempt in a file."""

    file: Path  #: grows by a byte with each attempt
    attempts: int  #: the number of attempts that fail
    trouble: Callable[[], None]  #: raises an error, or ends the replica

    @override
    def run(self, replica: Replica) -> str:
        with self.file.open("ab") as file:
            file.write(b".")
        if self.n_attempts <= self.attempts:
            self.trouble()
        return "done"

    @property
    def n_attempts(self) -> int:
        """The number of attempts so far."""
        return self.file.stat().st_size

    def __str__(self) -> str:
        return "the job"


@dataclass(frozen=True)
class SlowUnit(Job):
    """A unit that takes a while."""

    unit: MaskUnit

    @property
    @override
    def calibration(self) -> str:
        return self.unit.calibration

    @override
    def run(self, replica: Replica) -> UnitResult:
        time.sleep(0.2)
        return replica.evaluate(self.unit)


@dataclass(frozen=True)
class CalibrationsJob(Job):
    """A job that returns the calibrations of its replica."""

    number: int  #: makes jobs different

    @override
    def run(self, replica: Replica) -> list[str]:
        return list(replica.calibrations)


def raise_error() -> None:
    """Fail like code with a defect."""
    raise RuntimeError("the disk\nis on fire")


def raise_user_error() -> None:
    """Fail because of a mistake that the user can correct."""
    raise UserError("data.path=x is not there; name another file")


class PoolSuite:
    """Tests that every pool must pass. Override `open_pool`."""

    calibration: Calibration

    def open_pool(self) -> Pool:
        """Return a pool of tiny replicas, which may have been used before."""
        raise NotImplementedError

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Iterator[Pool]:
        """A pool, and a calibration that its replicas have never seen."""
        self.calibration = tiny_calibration(str(tmp_path))
        with closing(self.open_pool()) as pool:
            yield pool

    def check_answers(self, pool: Pool) -> None:
        """Run a round, and compare its values with those of a plain replica, bit by bit."""
        assert answers_of(pool.run(units_on(self.calibration), [self.calibration])) == expected_answers()

    def test_every_unit_is_done_once_with_the_bits_of_a_plain_replica(self, pool: Pool) -> None:
        """No unit is lost, none comes twice, and the values are right."""
        self.check_answers(pool)
        assert pool.n_replicas >= 1

    def test_a_pool_serves_round_after_round(self, pool: Pool) -> None:
        """A round may be empty, and another one may follow."""
        assert [*filter(None, pool.run([]))] == []
        for _ in range(2):
            self.check_answers(pool)

    def test_cut_units_have_every_mask_once(self, pool: Pool) -> None:
        """A cutter changes neither the masks nor the values."""
        units = units_on(self.calibration)[:1]
        cutter = functools.partial(cut, sites=Sites.of_equal_layers(_N_LAYERS))
        answers = answers_of(pool.run(units, [self.calibration], cutter))
        assert answers == {(0, mask): expected_answers()[0, mask] for mask in _MASKS}

    def test_stats_count_what_was_done(self, pool: Pool) -> None:
        """Every unit is counted for the replica that computed it."""
        self.check_answers(pool)
        stats = pool.stats
        assert sum(replica.units for replica in stats.replicas) == len(units_on(self.calibration))
        assert 0 < stats.busy_share <= 1
        assert stats.waiting_seconds >= 0

    def test_a_job_that_fails_is_tried_again(self, pool: Pool, tmp_path: Path) -> None:
        """A job may fail in all attempts but the last."""
        job = TroubleJob(tmp_path / "attempts", MAX_ATTEMPTS - 1, raise_error)
        assert [*filter(None, pool.run([job]))] == [(job, "done")]
        assert job.n_attempts == MAX_ATTEMPTS
        assert pool.stats.units_redone == MAX_ATTEMPTS - 1

    def test_a_job_that_always_fails_ends_the_round_with_its_cause(
        self, pool: Pool, tmp_path: Path, sentences: Sentences
    ) -> None:
        """The error names the job and the cause, and the pool can be used again."""
        job = TroubleJob(tmp_path / "attempts", 99, raise_error)
        with sentences.refused(EvaluationError):
            list(pool.run([job, *units_on(self.calibration)], [self.calibration]))
        assert job.n_attempts == MAX_ATTEMPTS
        self.check_answers(pool)

    def test_an_error_of_the_user_arrives_as_it_is(self, pool: Pool, tmp_path: Path, sentences: Sentences) -> None:
        """A job that raises a `UserError` is not tried again, and the pool can be used again."""
        job = TroubleJob(tmp_path / "attempts", 99, raise_user_error)
        with sentences.refused(UserError):
            list(pool.run([job]))
        assert job.n_attempts == 1, "the job was tried again"
        self.check_answers(pool)

    def test_a_replica_gets_a_calibration_when_it_first_needs_it(self, pool: Pool) -> None:
        """A calibration arrives with the first unit on it."""
        name = self.calibration.fingerprint
        jobs = [CalibrationsJob(number) for number in range(6)]
        assert not any(name in calibrations for _, calibrations in filter(None, pool.run(jobs, [self.calibration])))
        self.check_answers(pool)
        assert any(name in calibrations for _, calibrations in filter(None, pool.run(jobs)))

    def test_a_round_that_was_given_up_does_not_answer_the_next(self, pool: Pool) -> None:
        """Results of an earlier round are not results of this round."""
        units = units_on(self.calibration)
        slow_units = [SlowUnit(unit) for unit in units if isinstance(unit, MaskUnit)]
        abandoned_round = pool.run(slow_units, [self.calibration])
        assert next(filter(None, abandoned_round))
        del abandoned_round  # closes the generator, like a `for` loop that ends early
        results = filter(None, pool.run(slow_units[:1], [self.calibration]))
        assert Counter(job for job, _ in results) == Counter(slow_units[:1])
        self.check_answers(pool)

    def test_closing_twice_is_harmless(self, pool: Pool) -> None:
        """A second `close` does nothing."""
        self.check_answers(pool)
        pool.close()
        pool.close()


class ReplicaLossSuite(PoolSuite):
    """Tests that a pool must pass if its replicas can die. Override `open_pool` and `lose_replica`."""

    @staticmethod
    def lose_replica() -> None:
        """End the replica that calls this function. The function must be picklable if the pool pickles jobs."""
        raise NotImplementedError

    def test_the_job_of_a_lost_replica_is_done_again(self, pool: Pool, tmp_path: Path) -> None:
        """Another replica does the job."""
        job = TroubleJob(tmp_path / "attempts", 1, self.lose_replica)
        assert [*filter(None, pool.run([job]))] == [(job, "done")]
        assert job.n_attempts == 2
        assert pool.stats.units_redone == 1
        self.check_answers(pool)

    def test_a_job_that_always_loses_its_replica_ends_the_round(
        self, pool: Pool, tmp_path: Path, sentences: Sentences
    ) -> None:
        """The error names the job, and the pool can be used again."""
        job = TroubleJob(tmp_path / "attempts", 99, self.lose_replica)
        with sentences.refused(EvaluationError):
            list(pool.run([job]))
        assert job.n_attempts == MAX_ATTEMPTS
        self.check_answers(pool)
