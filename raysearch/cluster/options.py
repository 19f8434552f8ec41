"""The options of the replicas: their number, their resources, and their backend.

torch and Ray are imported when replicas start, so that a search that the ledger answers needs neither.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from typing_extensions import override

from raysearch.calibration.calibration import SHARD_TOKENS
from raysearch.core.machine import memory_bytes, n_cores
from raysearch.core.options import Options
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool, PoolFactory, PoolSize
from raysearch.models.devices import check_device, check_fused_head, n_gpus
from raysearch.models.spec import MAX_COPIED_BYTES, LocatedModel, ModelInfo, ModelSpec

_MOST_THREADS = 1024  # of a replica; torch crashes with many thousands
_BYTES_OF_A_REPLICA = 2**30  # the memory of a replica on a CPU without its model, mostly torch
_STATES_OF_A_SHARD = 16  # how many hidden states of the largest shard a replica holds at once
#: 2**28 logits at once (see `raysearch.calibration.objectives.base`), in 16 bits and in float32.
_BYTES_OF_LOGITS_ON_GPU = 2**28 * (2 + 4)
#: The most threads of a replica for each core of the machine; with more, it only switches between threads.
THREADS_OF_A_CORE = 8

if TYPE_CHECKING:
    from raysearch.cluster.pool import Replicas


def _memory_of_replica(info: ModelInfo) -> int:
    """Return the memory of a replica on a CPU, in bytes, without the weights that replicas of a machine share."""
    copy = info.weight_bytes if info.weight_bytes <= MAX_COPIED_BYTES else 0
    return _BYTES_OF_A_REPLICA + _states(info) + copy


def _states(info: ModelInfo) -> int:
    """Return the memory of the hidden states that a replica holds, in bytes."""
    return _STATES_OF_A_SHARD * SHARD_TOKENS * info.hidden_size * info.weight_bytes // info.parameters


@dataclass(frozen=True)
class ReplicaRange:
    """The range of the number of replicas.

    Args:
        min: How many replicas stay if there is nothing to do.
        max: The largest number of replicas; those above `min` start and end with the work.

    Raises:
        UserError: It is not a range.
    """

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max or self.max < 1:
            raise UserError(f"cluster.replicas={self} is not a range; use 0 <= min <= max, and a max of 1 or more")

    def __str__(self) -> str:
        return f"{{min:{self.min},max:{self.max}}}"


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas as Ray actors, for any number of pools.

    Args:
        replicas: The actors.
        close: Ends them, and Ray if it was started for them; calling it twice is harmless.
        check: Raises an `EvaluationError` if Ray has died.
    """

    replicas: Replicas
    close: Callable[[], None]
    check: Callable[[], None]


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

    @override
    def check_cluster(self) -> None:
        if self.address is not None:
            from raysearch.cluster.connection import join_ray

            join_ray(self.address, 0)()

    def replica_range(self, info: ModelInfo, n_units: float, room: Mapping[str, float] | None = None) -> ReplicaRange:
        """Return how many replicas to start: the configured number or range, or as many as fit and can be kept busy.

        Args:
            info: The model.
            n_units: How many replicas the work can keep busy.
            room: The resources of the cluster: ``CPU``, ``GPU``, and ``memory`` in bytes; None for this machine's.
        """
        if isinstance(self.replicas, ReplicaRange):
            return self.replicas
        if self.replicas != "auto":
            return ReplicaRange(self.replicas, self.replicas)
        room = room or {"CPU": n_cores(), "GPU": n_gpus(), "memory": memory_bytes()}
        if info.model.on_gpu:
            fit = room.get("GPU", 0) / (self.gpus(True) or 1)
        else:
            in_memory = (room.get("memory", math.inf) - info.weight_bytes) / _memory_of_replica(info)
            fit = min(room.get("CPU", 0) // self.cpus_per_replica, in_memory)
        n_replicas = max(1, int(min(fit, n_units)))
        return ReplicaRange(n_replicas, n_replicas)

    def gpus(self, on_gpu: bool) -> float:
        """Return how many GPUs each replica reserves, for a model that is on a GPU or not."""
        return float(on_gpu) if self.gpus_per_replica == "auto" else self.gpus_per_replica

    @override
    def size(self, info: ModelInfo, n_units: float) -> PoolSize:
        n_replicas = 1 if self.backend == "inline" else self.replica_range(info, n_units).max
        if info.model.on_gpu:
            return PoolSize(n_replicas, 0, info.weight_bytes + _states(info) + _BYTES_OF_LOGITS_ON_GPU)
        return PoolSize(n_replicas, info.weight_bytes, _memory_of_replica(info))

    @override
    def open(self, info: ModelInfo, n_units: float) -> Pool:
        if self.backend == "inline":
            return self._open_inline(info)
        from raysearch.cluster.connection import RayStartError  # Ray takes a second to import
        from raysearch.cluster.pool import RayPool

        try:
            group = self.start(info, n_units)
        except RayStartError as error:
            if self.replicas not in ("auto", 1) or self.gpus(info.model.on_gpu) > 1:
                raise  # one replica in this process is not what the user configured
            warnings.warn(f"{error.cause}; one replica in this process evaluates the masks instead", stacklevel=2)
            return self._open_inline(info)
        return RayPool(group.replicas, group.close, group.check)

    def _open_inline(self, info: ModelInfo) -> Pool:
        from raysearch.evaluation.inline_pool import InlinePool
        from raysearch.evaluation.replica import make_replica

        return InlinePool(lambda: make_replica(info.model, self.cpus_per_replica))

    def start(self, info: ModelInfo, n_units: float, *, shared: bool = False) -> ReplicaGroup:
        """Start replicas as Ray actors.

        On a CPU, the model is loaded once, its weights are sent to each machine once, and all replicas of a machine
        share them. The exception is a GGUF file in the cache: replicas share its weights by mapping the file, and this
        process needs no torch.
        On GPUs, each replica loads its own copy: from the hub's cache of its machine, or, if the model is a folder of
        this machine and replicas may be on others, from weights that are sent.
        If replicas may be on other machines, each replica of a hub model with its own code reads the model itself.

        Args:
            info: The model.
            n_units: How many replicas the work can keep busy.
            shared: Whether pools in other processes use the replicas, too.

        Raises:
            UserError: The model does not fit, or replicas cannot be started.
        """
        import ray

        from raysearch.cluster.actor import Recipe, installed_versions, make_replica_in_actor
        from raysearch.cluster.connection import joining_ray, room
        from raysearch.cluster.fleet import Fleet, Needs, RemoteFleet, shared_fleet
        from raysearch.cluster.pool import Replicas

        model = info.model
        on_gpu = model.on_gpu
        needs = Needs(self.cpus_per_replica, self.gpus(on_gpu))
        local_range = self.replica_range(info, n_units)
        if self.address is not None or ray.is_initialized():  # replicas may be on other machines
            sends_weights = not on_gpu or (self.address is not None and not model.is_hub)
            # Other machines must download the code, too.
            sends_weights &= not (model.is_hub and model.trust_remote_code)
        else:
            sends_weights = not on_gpu and not model.is_copy

        @functools.cache
        def replicas() -> ReplicaRange:
            return local_range if self.address is None else self.replica_range(info, n_units, room())

        def make_fleet() -> Fleet | RemoteFleet:
            make = shared_fleet if shared else Fleet
            return make(replicas().min, replicas().max, needs, self.idle_s)

        detached = tokenizer = None
        cpus = local_range.max * needs.cpus
        with joining_ray(self.address, cpus, make_fleet) as joined:  # imports and reading take place at the same time
            if sends_weights:
                from raysearch.models.loading import load_model, load_tokenizer
                from raysearch.models.shared_weights import detach

                detached = detach(load_model(model, device="cpu"))
                tokenizer = None if self.address is None else load_tokenizer(model)
            fleet, leave, check = joined()
            placed_model = replace(model, device="cuda") if on_gpu else model  # an actor sees the GPUs that Ray gave it
            make_replica = functools.partial(
                make_replica_in_actor, placed_model, self.cpus_per_replica, tokenizer, needs.gpus > 1
            )
            # The reference is kept until the end, or Ray would evict the recipe.
            recipe = [ray.put(Recipe(make_replica, detached, installed_versions(model.fused_head)))]
            del detached

        def close() -> None:
            recipe.clear()
            leave()

        return ReplicaGroup(Replicas(fleet, recipe, replicas().max, self.unit_timeout_s), functools.cache(close), check)
