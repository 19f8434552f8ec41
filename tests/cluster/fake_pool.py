"""A pool in this process, driven by the scheduler of the Ray pool, whose replicas die on purpose."""

from copy import copy

import numpy as np

from raysearch.cluster.scheduler import Call, Scheduler
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.unit import MaskUnit
from tests.evaluation.pool_suite import tiny_replica


class ReplicaDied(BaseException):
    """A replica has died."""


def die():
    raise ReplicaDied("the machine is gone")


class FakePool(Pool):
    """Answers calls one by one, in a random order; each call takes a second of fake time.

    Replicas die at every third load, and in the first call of every unit of masks.
    """

    def __init__(self, n_replicas=3, seed=0):
        self._scheduler = Scheduler()
        self._n_replicas = n_replicas
        self.stats = self._scheduler.stats
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._replicas = {}
        self._loaded = tiny_replica()
        self._calls: list[Call] = []
        self._n_made = self._n_loads = 0
        self._tried = set()

    @property
    def n_replicas(self):
        return self._scheduler.n_replicas

    def run(self, jobs, calibrations=(), cutter=None):
        scheduler = self._scheduler
        by_fingerprint = {calibration.fingerprint: calibration for calibration in calibrations}
        scheduler.begin(jobs, cutter, self._now)
        while not scheduler.is_done:
            if scheduler.must_sync(self._now):
                self._sync()
            self._calls += scheduler.assign(self._now)
            self._now += 1
            scheduler.account_time(self._now)
            call = self._calls.pop(self._rng.integers(len(self._calls)))
            try:
                result = self._answer(call, by_fingerprint)
            except ReplicaDied as error:
                scheduler.lost(call, error)
            except Exception as error:
                scheduler.failed(call, error)
            else:
                scheduler.answered(call, result, self._now)
                yield (call.job, result) if call.is_awaited else None

    def close(self):
        self._replicas = {}

    def _sync(self):
        """Replace lost replicas."""
        for name in self._scheduler.demand().lost:
            self._replicas.pop(name, None)
        while len(self._replicas) < self._n_replicas:
            self._n_made += 1
            self._replicas[f"replica {self._n_made}"] = None
        self._calls += self._scheduler.sync(self._replicas, self._now)

    def _answer(self, call, calibrations):
        if call.job is None:
            self._n_loads += 1
            if self._n_loads % 3 == 0:
                die()
            self._replicas[call.replica] = copy(self._loaded)  # copies of one replica, whose model is checked once
            self._replicas[call.replica].calibrations = {}
            return "this machine"
        if isinstance(call.job, MaskUnit) and call.job not in self._tried:
            self._tried.add(call.job)
            die()
        replica = self._replicas[call.replica]
        if call.job.calibration in calibrations:
            replica.calibrations.setdefault(call.job.calibration, calibrations[call.job.calibration])
        return call.job.run(replica)
