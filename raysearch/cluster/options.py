"""The options of the replicas: their number, their resources, and their backend.

torch and Ray are imported when replicas start, so that a search that the ledger answers needs neither.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from typing_extensions import override

from raysearch.cluster.sizing import ReplicaRange, fitting_replicas, pool_size
from raysearch.core.machine import memory_bytes, n_cores
from raysearch.core.options import Options
from raysearch.errors import UserError
from raysearch.evaluation.pool import JoinedCluster, Pool, PoolFactory, PoolSize
from raysearch.models.devices import check_device, check_fused_head, n_gpus
from raysearch.models.spec import LocatedModel, ModelInfo, ModelSpec

if TYPE_CHECKING:
    from raysearch.cluster.pool import StartedReplicas
    from raysearch.cluster.ray_cluster import RayCluster

_MOST_THREADS = 1024  # of a replica; torch crashes with many thousands
#: The most threads of a replica for each core of the machine; with more, it only switches between threads.
THREADS_OF_A_CORE = 8


@dataclass(frozen=True)
class ClusterOptions(Options, PoolFactory):
    """The replicas of a search. Only `cpus_per_replica` may change a result; it is part of the fingerprint.

    Args:
        backend: ``ray`` runs each replica as an actor; ``inline`` runs one in this process, with the same results.
        address: The address of a running Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``; None to start
            Ray on this machine.
        replicas: The number of replicas; or ``auto``: as many as the CPUs and the memory, or the GPUs, allow and the
            largest round can keep busy (`raysearch.evaluation.costs.n_units`); or a range, within which replicas start
            and end with the work.
        cpus_per_replica: CPU threads of a replica. 1 is best on a CPU, since shards give the parallelism.
        gpus_per_replica: GPUs of a replica, or ``auto``: one if the model runs on a GPU. Replicas with a fraction
            share a GPU; with several GPUs, the layers are distributed over them.
        idle_s: Seconds after which a replica that is not needed is ended, down to the range's `min`.
        unit_timeout_s: Seconds after which a replica that does not answer is replaced, or ``auto``, which learns from
            earlier answers (`raysearch.cluster.scheduler.TimeoutPolicy`).
    """

    section = "cluster"

    backend: Literal["ray", "inline"] = "ray"
    address: str | None = None
    replicas: PositiveInt | Literal["auto"] | ReplicaRange = "auto"
    cpus_per_replica: Annotated[int, Field(ge=1, le=_MOST_THREADS)] = 1
    gpus_per_replica: NonNegativeFloat | Literal["auto"] = "auto"
    idle_s: NonNegativeFloat = 300.0
    unit_timeout_s: PositiveFloat | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        inline = self.backend == "inline"
        gpus = 0 if self.gpus_per_replica == "auto" else self.gpus_per_replica
        super().__post_init__()
        if inline and self.replicas not in ("auto", 1):
            raise UserError(
                f"cluster.replicas={self.replicas} needs cluster.backend=ray; cluster.backend=inline runs one replica"
            )
        if inline and self.address is not None:
            raise UserError(
                f"cluster.address={self.address} needs cluster.backend=ray; cluster.backend=inline runs in this process"
            )
        if self.address is not None and not re.fullmatch(r"auto|(ray://)?[^/\s]+:\d{1,5}", self.address):
            remedy = "use auto, host:port or ray://host:port, or leave it out"
            raise UserError(f"cluster.address={self.address} is not an address; {remedy}")
        if gpus > 1 and gpus % 1:
            raise UserError(f"cluster.gpus_per_replica={gpus} splits a GPU; above 1, use a whole number")
        if inline and gpus > 1:
            raise UserError(
                f"cluster.gpus_per_replica={gpus:g} needs cluster.backend=ray; cluster.backend=inline loads the model "
                "onto one GPU"
            )

    def place(self, model: ModelSpec) -> ModelSpec:
        """Return the model with the device of replicas, if this follows from these options.

        The device is the CPU if replicas have no GPU, and a GPU if they have GPUs of other machines.
        """
        if model.device != "auto" or self.gpus_per_replica == "auto":
            return model
        if self.gpus_per_replica == 0:
            return replace(model, device="cpu")
        return model if self.address is None else replace(model, device="cuda")

    @override
    def check_model(self, model: LocatedModel) -> None:  # Ray would wait for ever
        if model.fused_head:
            check_fused_head(model.device)
        gpus = self.gpus(model.on_gpu)
        available = n_gpus() if gpus else 0
        if model.on_gpu and not gpus:
            raise UserError(
                f"cluster.gpus_per_replica=0 leaves replicas without a GPU, but model.device={model.device} needs "
                "one; use model.device=cpu, or cluster.gpus_per_replica=auto"
            )
        if self.backend == "ray" and (index := model.device.partition(":")[2]):
            raise UserError(
                f"model.device={model.device} names one GPU, but Ray gives each replica its own; use model.device=cuda "
                f"with CUDA_VISIBLE_DEVICES={index} in the environment, or cluster=inline"
            )
        if self.backend == "ray" and gpus and not model.on_gpu:
            raise UserError(
                f"cluster.gpus_per_replica={gpus:g} asks for GPUs, but the model runs on the CPU; "
                "use cluster.gpus_per_replica=auto, or model.device=cuda where there is a GPU"
            )
        if self.address is not None:
            return  # other nodes may have GPUs
        check_device(model.device)
        cores = n_cores()
        if self.cpus_per_replica > THREADS_OF_A_CORE * cores:
            raise UserError(
                f"cluster.cpus_per_replica={self.cpus_per_replica} are more threads than the {cores} cores of this "
                f"machine can run; use 1 … {cores}"
            )
        n_replicas = self.replicas.min if isinstance(self.replicas, ReplicaRange) else self.replicas
        needed = gpus if n_replicas == "auto" else max(gpus, gpus * n_replicas)
        if self.backend == "ray" and needed > available:
            raise UserError(
                f"cluster.replicas={n_replicas} with {gpus:g} GPUs each need more than the {available} that torch "
                "sees; use cluster.replicas=auto, or a smaller cluster.gpus_per_replica, so that replicas share a GPU"
            )

    def replica_range(
        self, info: ModelInfo, n_units: float, resources: Mapping[str, float] | None = None
    ) -> ReplicaRange:
        """Return how many replicas to start: the configured number or range, or as many as fit and can be kept busy.

        Args:
            info: The model.
            n_units: How many replicas the work can keep busy.
            resources: The resources of the cluster: ``CPU``, ``GPU``, and ``memory`` in bytes; None for this machine's.

        Returns:
            The smallest and the largest number of replicas.
        """
        if isinstance(self.replicas, ReplicaRange):
            return self.replicas
        if self.replicas != "auto":
            return ReplicaRange(self.replicas, self.replicas)
        resources = resources or {"CPU": n_cores(), "GPU": n_gpus(), "memory": memory_bytes()}
        fit = fitting_replicas(info, self.cpus_per_replica, self.gpus(info.model.on_gpu), resources)
        n_replicas = max(1, int(min(fit, n_units)))
        return ReplicaRange(n_replicas, n_replicas)

    def gpus(self, on_gpu: bool) -> float:
        """Return how many GPUs each replica reserves, for a model that is on a GPU or not."""
        return float(on_gpu) if self.gpus_per_replica == "auto" else self.gpus_per_replica

    @override
    def size(self, info: ModelInfo, n_units: float) -> PoolSize:
        n_replicas = 1 if self.backend == "inline" else self.replica_range(info, n_units).max
        return pool_size(info, n_replicas)

    @override
    def join(self) -> JoinedCluster:
        return _InlineCluster(self) if self.backend == "inline" else _ReplicaCluster(self)

    def ray_cluster(self, cpus: float) -> RayCluster:
        """Return the Ray cluster, which is being joined, or started on this machine.

        Args:
            cpus: How many CPUs a Ray on this machine has.
        """
        from raysearch.cluster.ray_cluster import RayCluster  # Ray takes a second to import

        return RayCluster(self.address, cpus)

    def start(
        self,
        cluster: RayCluster,
        info: ModelInfo,
        n_units: float,
        local_range: ReplicaRange,
        *,
        is_shared: bool = False,
    ) -> StartedReplicas:
        """Start replicas as Ray actors.

        On a CPU, the model is loaded once, its weights are sent to each machine once, and all replicas of a machine
        share them. The exception is a GGUF file in the cache: replicas share its weights by mapping the file, and this
        process needs no torch.
        On GPUs, each replica loads its own copy: from the hub's cache of its machine, or, if the model is a folder of
        this machine and replicas may be on others, from weights that are sent.
        If replicas may be on other machines, each replica of a hub model with its own code reads the model itself.

        Args:
            cluster: The cluster. It may not be joined yet.
            info: The model.
            n_units: How many replicas the work can keep busy.
            local_range: `replica_range` before the cluster is joined, since that takes memory; it is used on this
                machine.
            is_shared: Whether pools in other processes use the replicas, too.

        Returns:
            The started replicas.

        Raises:
            UserError: The model does not fit, or replicas cannot be started.
        """
        from raysearch.cluster.fleet import Needs
        from raysearch.cluster.start import ReplicaStarter

        needs = Needs(self.cpus_per_replica, self.gpus(info.model.on_gpu))
        range_in = functools.partial(self.replica_range, info, n_units)
        starter = ReplicaStarter(
            cluster=cluster,
            model=info.model,
            needs=needs,
            local_range=local_range,
            range_in=range_in,
            idle_s=self.idle_s,
            unit_timeout_s=self.unit_timeout_s,
            is_shared=is_shared,
        )
        return starter.start()


class _InlineCluster(JoinedCluster):
    """Opens pools of one replica in this process.

    Args:
        options: The options of the replica.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options

    @override
    def open(self, info: ModelInfo, n_units: float) -> Pool:
        from raysearch.evaluation.inline_pool import InlinePool
        from raysearch.evaluation.replica import make_replica

        return InlinePool(functools.partial(make_replica, info.model, self._options.cpus_per_replica))

    @override
    def close(self) -> None:
        """Do nothing."""


class _ReplicaCluster(JoinedCluster):
    """Opens pools of replicas on Ray. A running cluster is joined at once; a local Ray starts with the first pool.

    Args:
        options: The options of the replicas.

    Raises:
        UserError: No cluster answers at the address.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._ray: RayCluster | None = None
        if options.address is not None:
            self._ray = options.ray_cluster(cpus=0)
            try:
                self._ray.wait()
            except BaseException:
                self._ray.close()
                raise

    @override
    def open(self, info: ModelInfo, n_units: float) -> Pool:
        from raysearch.cluster.join import RayStartError
        from raysearch.cluster.pool import RayPool

        options = self._options
        local_range = options.replica_range(info, n_units)
        if self._ray is None:
            self._ray = options.ray_cluster(local_range.max * options.cpus_per_replica)
        try:
            started = options.start(self._ray, info, n_units, local_range)
        except RayStartError as error:
            if options.replicas not in ("auto", 1) or options.gpus(info.model.on_gpu) > 1:
                raise  # one replica in this process is not what the user configured
            warnings.warn(f"{error.cause}; one replica in this process evaluates the masks instead", stacklevel=2)
            return _InlineCluster(options).open(info, n_units)
        return RayPool(started.replicas, started)

    @override
    def close(self) -> None:
        if self._ray is not None:
            self._ray.close()
