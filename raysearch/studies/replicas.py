"""The Ray cluster of a study, and the replicas of one of its models. Both start when they are first needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from raysearch.cluster.options import ClusterOptions
from raysearch.studies.model_group import ModelGroup

if TYPE_CHECKING:  # these import Ray, which is not needed if the ledger has all results
    from raysearch.cluster.pool import RayPool, Replicas, StartedReplicas
    from raysearch.cluster.ray_cluster import RayCluster


class StudyCluster:
    """The Ray cluster of a study; a context manager that leaves it at the end.

    All models use it one after another. If models have different addresses, one cluster is left before the next is
    joined.

    Args:
        model_groups: The models.
        n_workers: How many processes train a model at the same time, each with the CPUs of a replica; 0 if none does.
    """

    def __init__(self, model_groups: Sequence[ModelGroup], n_workers: int) -> None:
        self._model_groups = model_groups
        self._n_workers = n_workers
        self._address: str | None = None
        self._ray: RayCluster | None = None

    def __enter__(self) -> StudyCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def join_running(self) -> None:
        """Join the clusters that the models name, so that it shows early whether they answer.

        Raises:
            UserError: A cluster does not answer.
        """
        for model_group in self._model_groups:
            if model_group.cluster.address is not None:
                self.join(model_group.cluster).wait()

    def join(self, options: ClusterOptions) -> RayCluster:
        """Return the cluster of a model, which is being joined, or started on this machine, if it is not joined yet.

        Args:
            options: The options of the model's replicas.
        """
        if self._ray is not None and self._address != options.address:
            self.leave()
        if self._ray is None:
            self._address = options.address
            self._ray = options.ray_cluster(self._most_cpus(options.address))
        return self._ray

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died."""
        if self._ray is not None:
            self._ray.check()

    def leave(self) -> None:
        """Leave the cluster, if it was joined."""
        if self._ray is not None:
            self._ray.close()
            self._ray = None

    def _most_cpus(self, address: str | None) -> int:
        """Return the largest number of CPUs that a model needs on the cluster of an address."""
        numbers = []
        for model_group in self._model_groups:
            options = model_group.cluster
            if options.address == address:
                n_replicas = options.replica_range(model_group.info, math.inf).max
                numbers.append(max(n_replicas, self._n_workers) * options.cpus_per_replica)
        return max(numbers)


class ModelReplicas:
    """The replicas of a model of a study; a context manager that ends them.

    Args:
        model_group: The model.
        cluster: The cluster of the study.
    """

    def __init__(self, model_group: ModelGroup, cluster: StudyCluster) -> None:
        self._model_group = model_group
        self._cluster = cluster
        self._started: StartedReplicas | None = None

    def __enter__(self) -> ModelReplicas:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is not None:
            self._started.close()

    def get(self) -> Replicas:
        """Return the replicas. The first call starts as many as fit, since several searches use them."""
        if self._started is None:
            options = self._model_group.cluster
            cluster = self._cluster.join(options)
            self._started = options.start(cluster, self._model_group.info, math.inf, is_shared=True)
        return self._started.replicas

    def open_pool(self) -> RayPool:
        """Return a pool of the replicas, which outlive it."""
        from raysearch.cluster.pool import RayPool

        return RayPool(self.get())
