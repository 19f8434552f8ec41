"""Where replicas live: how many, on what, and through which backend."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from raysearch.calibration.calibration import Calibration
from raysearch.cluster.bounds import Bounds
from raysearch.errors import UserError
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import make_replica
from raysearch.evaluation.unit import Pool
from raysearch.models.devices import check_device, resolve_device
from raysearch.models.loading import load_model, load_tokenizer
from raysearch.models.shared_weights import pack
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec

#: CPU threads of a replica; torch crashes where it is asked for many thousands.
_MOST_THREADS = 1024

if TYPE_CHECKING:
    from raysearch.cluster.pool import Replicas


@dataclass(frozen=True)
class ClusterOptions:
    """The replicas of a search. None of this changes a result but `cpus_per_replica`, which is part of the fingerprint.

    Args:
        backend: ``ray`` runs each replica as an actor; ``inline`` runs one in this process, with the same results.
        address: Of a Ray cluster that runs already: ``auto``, ``host:port`` or ``ray://host:port``; None to start Ray
            on this machine.
        replicas: How many; or ``auto``: as many as the CPUs, or GPUs, allow and the shards can keep busy; or bounds,
            between which they come and go with the work.
        cpus_per_replica: CPU threads of a replica. 1 is best on a CPU, since shards give the parallelism.
        gpus_per_replica: GPUs of a replica, or ``auto``: one if the model runs on a GPU. Fractions share a GPU; over
            several the layers are spread.
        idle_s: Seconds after which a replica that is not needed is let go, down to the least.
        unit_timeout_s: Seconds after which a replica that does not answer is replaced, or ``auto``; see
            `TimeoutPolicy`.
    """

    backend: Literal["ray", "inline"] = "ray"
    address: str | None = None
    replicas: int | Literal["auto"] | Bounds = "auto"
    cpus_per_replica: int = 1
    gpus_per_replica: float | Literal["auto"] = "auto"
    idle_s: float = 300.0
    unit_timeout_s: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.replicas, int) and self.replicas < 1:
            raise UserError(f"cluster.replicas={self.replicas} runs nothing; use 1 or more, or auto")
        if self.backend == "inline" and self.replicas not in ("auto", 1):
            raise UserError(
                f"cluster.replicas={self.replicas} needs cluster.backend=ray; cluster.backend=inline runs one replica"
            )
        if self.backend == "inline" and self.address is not None:
            raise UserError(
                f"cluster.address={self.address} needs cluster.backend=ray; cluster.backend=inline runs in this process"
            )
        if self.address is not None and not re.fullmatch(r"auto|(ray://)?[^/\s]+:\d{1,5}", self.address):
            raise UserError(
                f"cluster.address={self.address} is no address; use auto, host:port or ray://host:port, or leave it out"
            )
        if not 1 <= self.cpus_per_replica <= _MOST_THREADS:
            raise UserError(
                f"cluster.cpus_per_replica={self.cpus_per_replica} is no thread count; use 1 … {_MOST_THREADS}"
            )
        if self.gpus_per_replica != "auto" and self.gpus_per_replica < 0:
            raise UserError(f"cluster.gpus_per_replica={self.gpus_per_replica} is negative; use 0 or more, or auto")
        if self.gpus_per_replica != "auto" and self.gpus_per_replica > 1 and self.gpus_per_replica % 1:
            raise UserError(
                f"cluster.gpus_per_replica={self.gpus_per_replica} splits a GPU; above 1, use a whole number"
            )
        if self.idle_s < 0:
            raise UserError(f"cluster.idle_s={self.idle_s:g} is negative; use 0 or more seconds")
        if self.unit_timeout_s != "auto" and self.unit_timeout_s <= 0:
            raise UserError(f"cluster.unit_timeout_s={self.unit_timeout_s:g} leaves no time; use seconds, or auto")

    def place(self, model: ModelSpec) -> ModelSpec:
        """The model as replicas elsewhere hold it: where those have GPUs, on these, whatever this machine has."""
        has_gpus = self.address is not None and self.gpus_per_replica != "auto" and self.gpus_per_replica > 0
        return replace(model, device="cuda") if has_gpus and model.device == "auto" else model

    def check(self, model: ModelSpec) -> None:
        """Refuses a cluster that is not there, and replicas for which there are not the GPUs: Ray would wait for ever.

        Raises:
            UserError: No cluster answers, or there are too few GPUs.
        """
        on_gpu = resolve_device(model) != "cpu"
        gpus, there = self.gpus(on_gpu), torch.cuda.device_count()
        if self.backend == "ray" and gpus and not on_gpu:
            raise UserError(
                f"cluster.gpus_per_replica={gpus:g} asks for GPUs, but the model runs on the CPU; "
                "use cluster.gpus_per_replica=auto, or model.device=cuda where there is a GPU"
            )
        if self.address is not None:
            from raysearch.cluster.session import join_ray

            join_ray(self.address, 0)()
            return  # GPUs may come with the nodes
        check_device(model)
        wanted = self.replicas.min if isinstance(self.replicas, Bounds) else self.replicas
        if self.backend == "ray" and (gpus > there or (wanted != "auto" and gpus * wanted > there)):
            raise UserError(
                f"cluster.replicas={wanted} with {gpus:g} GPUs each need more than the {there} that torch sees; "
                "use cluster.replicas=auto, or a smaller cluster.gpus_per_replica, so that replicas share a GPU"
            )

    def bounds(self, on_gpu: bool, n_shards: int, room: Mapping[str, float] | None = None) -> Bounds:
        """How many replicas to start: those asked for, or as many as fit and have a shard to work on.

        Args:
            on_gpu: Whether the model runs on a GPU.
            n_shards: The shards.
            room: What the cluster has, by kind; None for this machine.
        """
        if isinstance(self.replicas, Bounds):
            return self.replicas
        if self.replicas != "auto":
            return Bounds(self.replicas, self.replicas)
        room = room or {"CPU": os.cpu_count() or 1, "GPU": torch.cuda.device_count()}
        fit = room.get("CPU", 0) // self.cpus_per_replica
        if on_gpu:
            fit = room.get("GPU", 0) / (self.gpus(on_gpu) or 1)
        n_replicas = max(1, min(int(fit), n_shards))
        return Bounds(n_replicas, n_replicas)

    def gpus(self, on_gpu: bool) -> float:
        """GPUs that each replica reserves."""
        return float(on_gpu) if self.gpus_per_replica == "auto" else self.gpus_per_replica


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas as Ray actors, and what ends them.

    Args:
        replicas: For pools.
        close: Frees them, and Ray if it was started for them. Calling it twice is harmless.
    """

    replicas: Replicas
    close: Callable[[], None]


def open_pool(
    options: ClusterOptions, model: ModelSpec, calibrations: Sequence[Calibration], n_units: int | None = None
) -> Pool:
    """Loads replicas for one evaluation, which end with it.

    Args:
        options: How many, and on what.
        model: The model.
        calibrations: What they are asked about.
        n_units: What there is to keep them busy; None for the shards.
    """
    if options.backend == "inline":
        return InlinePool(lambda: make_replica(model, calibrations, options.cpus_per_replica))
    from raysearch.cluster.pool import RayPool  # Ray takes a second to import

    group = start_replicas(options, model, calibrations, n_units)
    return RayPool(group.replicas, group.close)


def start_replicas(
    options: ClusterOptions,
    model: ModelSpec,
    calibrations: Sequence[Calibration],
    n_units: int | None = None,
    *,
    shared: bool = False,
) -> ReplicaGroup:
    """Loads replicas as Ray actors.

    On a CPU the model is loaded once, its weights travel to each machine once, and all replicas there share them. On
    GPUs each replica loads its own copy straight onto its device: from the hub's cache of its node, or, where replicas
    are elsewhere and the model is a folder here, from what travels as on a CPU.

    Args:
        options: How many, and on what.
        model: The model.
        calibrations: What they are asked about.
        n_units: What there is to keep them busy; None for the shards.
        shared: Whether pools in other processes use them too.
    """
    import ray

    from raysearch.cluster.actor import Recipe, own_versions
    from raysearch.cluster.fleet import Fleet, Needs, shared_fleet
    from raysearch.cluster.pool import Replicas
    from raysearch.cluster.session import join_ray, room

    on_gpu = resolve_device(model) != "cpu"
    n_units = sum(calibration.n_shards for calibration in calibrations) if n_units is None else n_units
    needs = Needs(options.cpus_per_replica, options.gpus(on_gpu))
    leave = join_ray(options.address, options.bounds(on_gpu, n_units).max * needs.cpus)
    try:
        bounds = options.bounds(on_gpu, n_units, None if options.address is None else room())
        travels = not on_gpu or (options.address is not None and not locate(model.name, model.path).is_hub)
        packed = pack(load_model(model, device="cpu")) if travels else None
        tokenizer = load_tokenizer(model) if travels and options.address is not None else None
        there = replace(model, device="cuda") if on_gpu else model  # an actor sees the GPUs that Ray gave it
        make = functools.partial(make_replica, there, calibrations, options.cpus_per_replica, tokenizer, needs.gpus > 1)
        recipe = [ray.put(Recipe(make, packed, own_versions()))]  # kept: what nobody refers to is evicted
        del packed
        fleet = shared_fleet(bounds, needs, options.idle_s) if shared else Fleet(bounds, needs, options.idle_s)
    except BaseException:
        leave()
        raise

    def close() -> None:
        fleet.close()
        recipe.clear()
        leave()

    return ReplicaGroup(Replicas(fleet, recipe, bounds.max, options.unit_timeout_s), functools.cache(close))
