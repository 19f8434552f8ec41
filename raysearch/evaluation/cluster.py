"""Where replicas live: how many, on what, and through which backend."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from raysearch.calibration.calibration import Calibration
from raysearch.errors import UserError
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Pool
from raysearch.models.loading import ModelSpec, load_model, load_tokenizer, resolve_device
from raysearch.models.sharing import Packed, pack, unpack
from raysearch.models.stack import LayerStack

if TYPE_CHECKING:
    from raysearch.evaluation.ray_pool import ReplicaActors


@dataclass(frozen=True)
class ClusterOptions:
    """The replicas of a search. None of this changes a result but `cpus_per_replica`, which is part of the fingerprint.

    Args:
        backend: ``ray`` runs each replica as an actor; ``inline`` runs one in this process, with the same results.
        replicas: How many, or ``auto``: as many as the CPUs, or GPUs, allow and the shards can keep busy.
        cpus_per_replica: CPU threads of a replica. 1 is best on a CPU, since shards give the parallelism.
        gpus_per_replica: GPUs of a replica, or ``auto``: one if the model runs on a GPU. Fractions share a GPU.
    """

    backend: Literal["ray", "inline"] = "ray"
    replicas: int | Literal["auto"] = "auto"
    cpus_per_replica: int = 1
    gpus_per_replica: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.replicas != "auto" and self.replicas < 1:
            raise UserError(f"cluster.replicas={self.replicas} runs nothing; use 1 or more, or auto")
        if self.backend == "inline" and self.replicas not in ("auto", 1):
            raise UserError(
                f"cluster.replicas={self.replicas} needs cluster.backend=ray; cluster.backend=inline runs one replica"
            )
        if self.cpus_per_replica < 1:
            raise UserError(f"cluster.cpus_per_replica={self.cpus_per_replica} is no thread count; use 1 or more")
        if self.gpus_per_replica != "auto" and self.gpus_per_replica < 0:
            raise UserError(f"cluster.gpus_per_replica={self.gpus_per_replica} is negative; use 0 or more, or auto")

    def check(self, on_gpu: bool) -> None:
        """Refuses replicas for which there are not the GPUs: Ray would wait for those for ever.

        Raises:
            UserError: There are too few.
        """
        if self.backend == "inline":
            return
        gpus, there = self.gpus(on_gpu), torch.cuda.device_count()
        if gpus and not on_gpu:
            raise UserError(
                f"cluster.gpus_per_replica={gpus:g} asks for GPUs, but the model runs on the CPU; "
                "use cluster.gpus_per_replica=auto, or model.device=cuda where there is a GPU"
            )
        if gpus > there or (self.replicas != "auto" and gpus * self.replicas > there):
            raise UserError(
                f"cluster.replicas={self.replicas} with {gpus:g} GPUs each need more than the {there} that torch sees; "
                "use cluster.replicas=auto, or a smaller cluster.gpus_per_replica, so that replicas share a GPU"
            )

    def n_replicas(self, on_gpu: bool, n_shards: int) -> int:
        """How many replicas to start: those asked for, or as many as fit and have a shard to work on."""
        if self.replicas != "auto":
            return self.replicas
        fit = (os.cpu_count() or 1) // self.cpus_per_replica
        if on_gpu:
            fit = int(torch.cuda.device_count() / (self.gpus(on_gpu) or 1))
        return max(1, min(fit, n_shards))

    def gpus(self, on_gpu: bool) -> float:
        """GPUs that each replica reserves."""
        return float(on_gpu) if self.gpus_per_replica == "auto" else self.gpus_per_replica


def open_pool(options: ClusterOptions, model: ModelSpec, calibrations: Sequence[Calibration]) -> Pool:
    """Loads replicas for one judge, which end with it."""
    if options.backend == "inline":
        return InlinePool(lambda: make_replica(model, calibrations, options.cpus_per_replica))
    from raysearch.evaluation.ray_pool import RayPool  # Ray takes a second to import

    actors = start_replicas(options, model, calibrations)
    return RayPool(actors.replicas, actors.close)


def start_replicas(
    options: ClusterOptions, model: ModelSpec, calibrations: Sequence[Calibration], spare_cpus: int = 0
) -> ReplicaActors:
    """Loads replicas as Ray actors.

    On a CPU the model is loaded once and its weights are shared by all replicas of the machine; on GPUs each replica
    loads its own copy straight onto its device.

    Args:
        options: How many, and on what.
        model: The model.
        calibrations: What they are asked about.
        spare_cpus: CPUs that Ray is to have beside theirs, if it is started here.
    """
    from raysearch.evaluation.ray_pool import ReplicaActors

    on_gpu = resolve_device(model) != "cpu"
    if on_gpu:
        model = replace(model, device="cuda")  # an actor sees the GPUs that Ray gave it, and no others
    return ReplicaActors(
        functools.partial(make_replica, model, calibrations, options.cpus_per_replica),
        packed=None if on_gpu else pack(load_model(model)),
        n_replicas=options.n_replicas(on_gpu, sum(calibration.n_shards for calibration in calibrations)),
        cpus_per_replica=options.cpus_per_replica,
        gpus_per_replica=options.gpus(on_gpu),
        spare_cpus=spare_cpus,
    )


def make_replica(
    model: ModelSpec, calibrations: Sequence[Calibration], threads: int, packed: Packed | None = None
) -> Replica:
    """Makes a replica in this process, from shared weights if there are any, else from disk."""
    module = load_model(model) if packed is None else unpack(*packed)
    return Replica(LayerStack(module), calibrations, threads, functools.partial(load_tokenizer, model))
