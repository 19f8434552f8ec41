"""The Ray cluster of a study, and the replicas of one of its models. Both start when they are first needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from raysearch.cluster.options import ClusterOptions
from raysearch.cluster.sizing import ReplicaRange
from raysearch.models.spec import ModelSpec
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
                self.join(model_group).wait()

    def join(self, model_group: ModelGroup) -> RayCluster:
        """Return the cluster of a model, which is being joined, or started on this machine, if it is not joined yet.

        Args:
            model_group: The model.
        """
        options = model_group.cluster
        if self._ray is not None and self._address != options.address:
            self.leave()
        if self._ray is None:
            self._address = options.address
            self._ray = options.ray_cluster(self._most_cpus(options.address))
        return self._ray

    def start(self, model_group: ModelGroup) -> StartedReplicas:
        """Start as many replicas of a model as fit, since several searches use them at the same time.

        Args:
            model_group: The model.

        Raises:
            UserError: Replicas cannot be started.
        """
        options = model_group.cluster
        local_range = self._local_ranges[model_group.model, options]
        cluster = self.join(model_group)
        return options.start(cluster, model_group.info, math.inf, local_range, is_shared=True)

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died."""
        if self._ray is not None:
            self._ray.check()

    def leave(self) -> None:
        """Leave the cluster, if it was joined."""
        if self._ray is not None:
            self._ray.close()
            self._ray = None

    @cached_property
    def _local_ranges(self) -> Mapping[tuple[ModelSpec, ClusterOptions], ReplicaRange]:
        """The range of the number of replicas of each model on this machine, by its memory before Ray starts."""
        return {
            (model_group.model, model_group.cluster): model_group.cluster.replica_range(model_group.info, math.inf)
            for model_group in self._model_groups
        }

    def _most_cpus(self, address: str | None) -> int:
        """Return the largest number of CPUs that a model needs on the cluster of an address."""
        numbers = []
        for (_, options), local_range in self._local_ranges.items():
            if options.address == address:
                numbers.append(max(local_range.max, self._n_workers) * options.cpus_per_replica)
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
        """Return the replicas; the first call starts them."""
        if self._started is None:
            self._started = self._cluster.start(self._model_group)
        return self._started.replicas

    def open_pool(self) -> RayPool:
        """Return a pool of the replicas, which outlive it."""
        from raysearch.cluster.pool import RayPool

        return RayPool(self.get())
