"""Starts replicas of a model as Ray actors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import ray

from raysearch.cluster.actor import Recipe, installed_versions, make_replica_in_actor
from raysearch.cluster.fleet import Fleet, Needs, RemoteFleet, shared_fleet
from raysearch.cluster.pool import Replicas, StartedReplicas
from raysearch.cluster.ray_cluster import RayCluster
from raysearch.cluster.sizing import ReplicaRange
from raysearch.models.spec import LocatedModel

if TYPE_CHECKING:  # these import torch, which is not needed if replicas read the model's files
    from raysearch.models.shared_weights import Detached


@dataclass(frozen=True)
class ReplicaStarter:
    """Starts the replicas of one model on a cluster.

    Args:
        cluster: The cluster. It may not be joined yet.
        model: The model.
        needs: The resources of each replica.
        local_range: The range of the number of replicas on this machine.
        range_in: Returns the range of the number of replicas by the resources of a cluster that was joined by an
            address.
        idle_s: Seconds after which a replica that is not needed is ended.
        unit_timeout_s: The time limit of units (`raysearch.cluster.scheduler.TimeoutPolicy`).
        is_shared: Whether pools in other processes use the replicas, too.
    """

    cluster: RayCluster
    model: LocatedModel
    needs: Needs
    local_range: ReplicaRange
    range_in: Callable[[Mapping[str, float]], ReplicaRange]
    idle_s: float
    unit_timeout_s: float | Literal["auto"]
    is_shared: bool = False

    def start(self) -> StartedReplicas:
        """Start the replicas.

        Raises:
            UserError: Ray cannot be started or joined, or the weights cannot be read.
        """
        # The processes of the replicas start, and import their modules, while this process reads the weights.
        starting = self.cluster.when_joined(self._make_fleet)
        try:
            recipe = self._recipe()
            fleet = starting.result()
            # `Replicas` keeps the reference until the end, or Ray would evict the recipe.
            replicas = Replicas(fleet.actors, [ray.put(recipe)], fleet.most, self.unit_timeout_s)
        except BaseException:
            if starting.exception() is None and not self.cluster.has_died:  # the first one waits
                starting.result().actors.close()
            raise
        return StartedReplicas(replicas, self.cluster)

    def _make_fleet(self) -> _MadeFleet:
        replica_range = self.local_range
        if self.cluster.is_remote:
            replica_range = self.range_in(self.cluster.resources())
        make = shared_fleet if self.is_shared else Fleet
        return _MadeFleet(make(replica_range.min, replica_range.max, self.needs, self.idle_s), replica_range.max)

    def _recipe(self) -> Recipe:
        """Read the weights, if replicas do not read them themselves, and return how to make a replica."""
        model = self.model
        weights: Detached | None = None
        tokenizer: Any = None
        if self._sends_weights():
            from raysearch.models.loading import load_model, load_tokenizer
            from raysearch.models.shared_weights import detach

            weights = detach(load_model(model, device="cpu"))
            if self.cluster.is_remote:
                tokenizer = load_tokenizer(model)
        placed = replace(model, device="cuda") if model.on_gpu else model  # an actor sees the GPUs that Ray gave it
        make = functools.partial(make_replica_in_actor, placed, int(self.needs.cpus), tokenizer, self.needs.gpus > 1)
        return Recipe(make, weights, installed_versions(model.fused_head))

    def _sends_weights(self) -> bool:
        """Return whether this process reads the weights and sends them; if not, each replica reads the model's files.

        A copy of a GGUF file is not sent, because all replicas of this machine map it, except with an adapter, whose
        merged weights are in memory only. A model on GPUs is sent only if it is a folder of this machine, or has such
        an adapter, and replicas may be on others. Code of a hub's model is not sent, so replicas on other machines
        download the model with its code.
        """
        model = self.model
        has_adapter = model.adapter is not None
        if not self.cluster.spans_machines:
            return not model.on_gpu and (has_adapter or not model.is_copy)
        if model.is_hub and model.trust_remote_code:
            return False
        return not model.on_gpu or (self.cluster.is_remote and (has_adapter or not model.is_hub))


@dataclass(frozen=True)
class _MadeFleet:
    """A fleet, and the largest number of its actors."""

    actors: Fleet | RemoteFleet
    most: int
