"""Plans the cheapest exact method to run a round of masks: the prefix plan.

The hidden state after site i depends only on the sites kept up to i, so masks that agree up to i share that state. A
round's masks form a trie over their sites; walking it depth first runs each shared prefix once and holds one hidden
state per branch point:

    masks {1} {2} of three layers          steps
    0 ─┬─ 1 ────── score {2}               run 0 · hold · run 2 · score {1} · restore · run 1 · score {2}
       └────── 2 ─ score {1}               3 layer-forwards instead of 4

The plan is pure data: it gives its own cost before anything runs. Of the two sides of a branch, the side that holds
fewer states runs first, so a plan of all single layers and pairs of layers holds only a few states at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raysearch.core.mask import Mask
from raysearch.core.site import Sites


class Op(Enum):
    """The kinds of steps. Each works on the current hidden state."""

    RUN = "run"  #: replace the state by the output of site `index`
    HOLD = "hold"  #: push a copy of the state on the stack
    RESTORE = "restore"  #: replace the state by the top of the stack, which is removed
    SCORE = "score"  #: the state is final: the objective computes the loss of mask `index` from it


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan.

    Args:
        op: The kind of the step.
        index: The site for RUN, the position in `PrefixPlan.masks` for SCORE, else -1.
    """

    op: Op
    index: int = -1


@dataclass(frozen=True)
class PrefixPlan:
    """The steps that evaluate masks on one shard.

    Args:
        masks: Each mask once, in mask order.
        steps: The steps, in order.
        peak_held: The most hidden states held at once, in addition to the current one.
        layer_forwards: The cost of the sites that run on the shard; a site that runs twice counts twice.
    """

    masks: tuple[Mask, ...]
    steps: tuple[Step, ...]
    peak_held: int
    layer_forwards: float


def naive_layer_forwards(masks: Iterable[Mask], sites: Sites) -> float:
    """Return the layer-forwards of one plain forward per mask.

    Args:
        masks: The masks.
        sites: The sites of the dense model.

    Returns:
        The sum over the masks of the cost of the remaining sites.
    """
    return sum(sites.remaining_cost(mask) for mask in masks)


def plan_prefixes(masks: Iterable[Mask], sites: Sites, dense_first: bool = False) -> PrefixPlan:
    """Plan the depth-first walk over the trie of the masks' kept sites.

    Args:
        masks: The masks of a round, in any order; a repeated mask is planned once.
        sites: The sites of the dense model.
        dense_first: Whether the dense model is scored too, before all masks; this holds up to N additional states.

    Returns:
        The plan. Its cost is exact: at N = 32 all singles cost 527 layer-forwards (992 one by one), all singles and
        pairs 5,487 (15,872).
    """
    different = set(masks)
    if dense_first:
        different.add(Mask())
    ordered = tuple(sorted(different))
    walk = _walk(ordered, range(len(ordered)), 0, len(sites), dense_first)
    cost = sum(sites[step.index].cost for step in walk.steps if step.op is Op.RUN)
    return PrefixPlan(ordered, tuple(walk.steps), walk.peak_held, cost)


class _Walk(NamedTuple):
    """Steps that score some masks, and the most hidden states that they hold at once."""

    steps: list[Step]
    peak_held: int


def _walk(masks: Sequence[Mask], group: Sequence[int], site: int, n_sites: int, dense_first: bool) -> _Walk:
    """Return the steps for the masks with the indices `group`, which agree on all sites before `site`."""
    steps: list[Step] = []
    while site < n_sites and group:
        removing = [index for index in group if site in masks[index]]
        keeping = [index for index in group if site not in masks[index]]
        if removing and keeping:
            skip = _walk(masks, removing, site + 1, n_sites, dense_first)
            run = _walk(masks, keeping, site + 1, n_sites, dense_first)
            run.steps.insert(0, Step(Op.RUN, site))
            leads_to_dense = dense_first and not masks[keeping[0]]  # the empty mask is first in mask order
            if leads_to_dense or skip.peak_held > run.peak_held:
                first, second = run, skip
            else:
                first, second = skip, run
            peak_held = max(first.peak_held + 1, second.peak_held)
            return _Walk([*steps, Step(Op.HOLD), *first.steps, Step(Op.RESTORE), *second.steps], peak_held)
        if keeping:
            steps.append(Step(Op.RUN, site))
        site += 1
    return _Walk(steps + [Step(Op.SCORE, index) for index in group], 0)
