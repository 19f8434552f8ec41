"""The expected cost of a search on an empty ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysearch.core.site import Sites
from raysearch.evaluation.pool import PoolSize
from raysearch.searching.target import TargetLimits


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round on an empty ledger. Forwards are passes over the whole calibration.

    Args:
        masks: The number of masks.
        layer_forwards: Layer-forwards of the prefix plan.
        head_forwards: How many times the final norm and the head run.
        naive_layer_forwards: Layer-forwards of one full forward per mask.
        estimated: Whether only the number of masks is certain.
    """

    masks: int
    layer_forwards: int
    head_forwards: int
    naive_layer_forwards: int
    estimated: bool = False


@dataclass(frozen=True)
class SearchForecast:
    """The cost of a search on an empty ledger.

    Args:
        rounds: The cost of each round; None if it cannot be forecast.
        head_cost: The cost of a head-forward, in layer-forwards, estimated from the parameters.
        by_budget: Whether the search may end before the last round, when its budget is spent.
        screened: Whether screening may make the search cheaper.
        open_ended: Whether the losses decide how many masks and rounds there are.
        trainings: How many masks are recovered, after the rounds or after the stages.
        training_steps: The steps of each recovery, the largest number if `in_stages`; 0 if it is not known.
        in_stages: Whether the rounds are those of several searches, each with a recovery after it.
        seconds: The time of the rounds on this machine, with the replicas of `pool`, in s; None if it is not known.
        time_source: What `seconds` was measured on, or why it is None; a clause to follow a comma.
        pool: The replicas and their memory; None if the data were not read.
        target: What the target leaves of the masks; None without a target.
    """

    rounds: list[RoundCost] | None
    head_cost: float = 0.0
    by_budget: bool = False
    screened: bool = False
    open_ended: bool = False
    trainings: int = 0
    training_steps: int = 0
    in_stages: bool = False
    seconds: float | None = None
    time_source: str = ""
    pool: PoolSize | None = None
    target: TargetLimits | None = None

    def n_passes(self, sites: Sites) -> float:
        """Return the cost of the largest round on a shard, in forwards of the whole model; infinite if not known.

        Args:
            sites: The sites of the model.
        """
        if self.rounds is None:
            return math.inf
        return max((cost.layer_forwards for cost in self.rounds), default=0) / sites.total_cost

    @property
    def cost(self) -> float | None:
        """The cost of all rounds and their heads, in layer-forwards; None if it cannot be forecast."""
        if self.rounds is None:
            return None
        return sum(cost.layer_forwards + self.head_cost * cost.head_forwards for cost in self.rounds)
