"""How many replicas there are, and the memory that each of them needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raysearch.calibration.calibration import SHARD_TOKENS
from raysearch.errors import UserError
from raysearch.evaluation.pool import PoolSize
from raysearch.models.spec import MAX_COPIED_BYTES, ModelInfo

_BYTES_OF_A_REPLICA = 2**30  # the memory of a replica on a CPU without its model, mostly torch
_STATES_OF_A_SHARD = 16  # how many hidden states of the largest shard a replica holds at once
#: 2**28 logits at once (see `raysearch.calibration.objectives.base`), in 16 bits and in float32.
_BYTES_OF_LOGITS_ON_GPU = 2**28 * (2 + 4)


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


def fitting_replicas(info: ModelInfo, cpus: int, gpus: float, resources: Mapping[str, float]) -> float:
    """Return how many replicas of a model some resources allow; a fraction if not even one fits.

    Args:
        info: The model.
        cpus: The CPUs of each replica.
        gpus: The GPUs of each replica, if the model is on a GPU.
        resources: ``CPU``, ``GPU``, and ``memory`` in bytes; without ``memory`` it does not limit the number.

    Returns:
        The number, which the caller rounds; less than 1 if not even one replica fits.
    """
    if info.model.on_gpu:
        return resources.get("GPU", 0) / (gpus or 1)
    free_bytes = resources.get("memory", math.inf) - info.weight_bytes
    return min(resources.get("CPU", 0) // cpus, free_bytes / _cpu_replica_bytes(info))


def pool_size(info: ModelInfo, n_replicas: int) -> PoolSize:
    """Return the size of a pool.

    Args:
        info: The model.
        n_replicas: The number of replicas.

    Returns:
        The number of replicas, and their memory in bytes.
    """
    if info.model.on_gpu:
        return PoolSize(n_replicas, 0, info.weight_bytes + _state_bytes(info) + _BYTES_OF_LOGITS_ON_GPU)
    return PoolSize(n_replicas, info.weight_bytes, _cpu_replica_bytes(info))


def _cpu_replica_bytes(info: ModelInfo) -> int:
    """Return the memory of a replica on a CPU, in bytes, without the weights that replicas of a machine share."""
    copy_bytes = info.weight_bytes if info.weight_bytes <= MAX_COPIED_BYTES else 0
    return _BYTES_OF_A_REPLICA + _state_bytes(info) + copy_bytes


def _state_bytes(info: ModelInfo) -> int:
    """Return the memory of the hidden states that a replica holds, in bytes."""
    width = info.n_streams * info.hidden_size
    return _STATES_OF_A_SHARD * SHARD_TOKENS * width * info.weight_bytes // info.parameters
