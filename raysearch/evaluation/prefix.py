"""Plans the cheapest exact method to run a round of masks: the prefix plan.

The hidden state after layer i depends only on what is kept up to layer i, so masks that agree up to i share that state.
A round's masks form a trie over their layers; walking it depth first runs each shared prefix once and holds one hidden
state per branch point:

    masks {1} {2} of three layers          steps
    0 ─┬─ 1 ────── score {2}               run 0 · hold · run 2 · score {1} · restore · run 1 · score {2}
       └────── 2 ─ score {1}               3 layer-forwards instead of 4

A mask may keep one half of a layer. So up to four sides meet at a layer: masks that remove it, that keep its attention,
that keep its MLP, and that keep all of it. A layer that stays is always run as a whole, never as one half and then the
other. So a loss has the same bits in every round, even if the layers are compiled. The attention is then run again for
the masks that keep it alone, which is little compared with the layers after it.

If masks are repaired by their scales, the state is multiplied before the first layer that stays after a cut. All masks
of a branch have removed the same layers before it, so they have the same factor.

The plan is pure data: it gives its own cost before anything runs. Of the sides of a branch, the side that holds the
most states runs last, so a plan of all single layers and pairs of layers holds only a few states at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raysearch.core.mask import Mask, Part
from raysearch.core.scale import Scales, factors_of
from raysearch.core.site import Run, Sites


class Op(Enum):
    """The kinds of steps. Each works on the current hidden state."""

    RUN = "run"  #: replace the state by the output of layer `index`, or of a half of it
    SCALE = "scale"  #: multiply the state by `factor`
    HOLD = "hold"  #: push a copy of the state on the stack
    RESTORE = "restore"  #: replace the state by the top of the stack, which is removed
    SCORE = "score"  #: the state is final: the objective computes the loss of mask `index` from it


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan.

    Args:
        op: The kind of the step.
        index: The layer for RUN, the position in `PrefixPlan.masks` for SCORE, else -1.
        part: The half of the layer for RUN; None for the whole layer.
        factor: The factor for SCALE.
    """

    op: Op
    index: int = -1
    part: Part | None = None
    factor: float = 1.0

    @property
    def run(self) -> Run:
        """What a RUN runs."""
        return Run(self.index, self.part)


@dataclass(frozen=True)
class PrefixPlan:
    """The steps that evaluate masks on one shard.

    Args:
        masks: Each mask once, in mask order.
        steps: The steps, in order.
        peak_held: The most hidden states held at once, in addition to the current one.
        layer_forwards: The cost of the layers and halves that run on the shard; what runs twice counts twice.
    """

    masks: tuple[Mask, ...]
    steps: tuple[Step, ...]
    peak_held: int
    layer_forwards: float


def naive_layer_forwards(masks: Iterable[Mask], sites: Sites) -> float:
    """Return the layer-forwards of one plain forward per mask.

    Args:
        masks: The masks.
        sites: The layers of the dense model.

    Returns:
        The sum over the masks of the cost of what remains.
    """
    return sum(sites.remaining_cost(mask) for mask in masks)


def plan_prefixes(
    masks: Iterable[Mask], sites: Sites, dense_first: bool = False, scales: Scales | None = None
) -> PrefixPlan:
    """Plan the depth-first walk over the trie of what the masks keep.

    Args:
        masks: The masks of a round, in any order; a repeated mask is planned once.
        sites: The layers of the dense model, with their halves if a mask has halves.
        dense_first: Whether the dense model is scored too, before all masks; this holds up to N additional states.
        scales: The factors of the masks' cuts; None for masks that are not repaired.

    Returns:
        The plan. Its cost is exact: at N = 32 all singles cost 527 layer-forwards (992 one by one), all singles and
        pairs 5,487 (15,872).
    """
    different = set(masks)
    if dense_first:
        different.add(Mask())
    ordered = tuple(sorted(different))
    factors = [{} if scales is None else factors_of(scales.of_mask(mask)) for mask in ordered]
    walk = _walk(_Trie(ordered, factors, sites.n_layers, dense_first), range(len(ordered)), 0)
    cost = sum(sites.run_cost(step.run) for step in walk.steps if step.op is Op.RUN)
    return PrefixPlan(ordered, tuple(walk.steps), walk.peak_held, cost)


class _Walk(NamedTuple):
    """Steps that score some masks, and the most hidden states that they hold at once."""

    steps: list[Step]
    peak_held: int


class _Trie(NamedTuple):
    """The masks of a walk."""

    masks: Sequence[Mask]
    factors: Sequence[Mapping[int, float]]  #: the factors of each mask's cuts, by the layer that runs after the cut
    n_layers: int
    dense_first: bool

    def steps_of(self, run: Run | None, group: Sequence[int]) -> list[Step]:
        """Return the steps of a layer for masks that agree on it and on all layers before it."""
        if run is None:
            return []
        step = Step(Op.RUN, run.layer, run.part)
        factor = self.factors[group[0]].get(run.layer)
        return [step] if factor is None else [Step(Op.SCALE, factor=factor), step]


def _walk(trie: _Trie, group: Sequence[int], layer: int) -> _Walk:
    """Return the steps for the masks with the indices `group`, which agree on all layers before `layer`."""
    steps: list[Step] = []
    while layer < trie.n_layers and group:
        groups: dict[Run | None, list[int]] = {}
        for index in group:
            groups.setdefault(Run.of(layer, trie.masks[index]), []).append(index)
        layer += 1
        if len(groups) == 1:
            for run in groups:
                steps += trie.steps_of(run, group)
            continue
        sides = []
        for run in sorted(groups, key=_place):
            side = _walk(trie, groups[run], layer)
            side.steps[:0] = trie.steps_of(run, groups[run])
            leads_to_dense = trie.dense_first and not trie.masks[groups[run][0]]  # the empty mask comes first
            sides.append((not leads_to_dense, side))
        *first_sides, last_side = [side for _, side in sorted(sides, key=lambda side: (side[0], side[1].peak_held))]
        for side in first_sides:
            steps += [Step(Op.HOLD), *side.steps, Step(Op.RESTORE)]
        peak_held = max(last_side.peak_held, *(side.peak_held + 1 for side in first_sides))
        return _Walk(steps + last_side.steps, peak_held)
    return _Walk(steps + [Step(Op.SCORE, index) for index in group], 0)


def _place(run: Run | None) -> int:
    """Return the place of a side among those that meet at a layer, in the order of `cutting.walk_order`."""
    return 0 if run is None else 1 + ("mlp", "attention", None).index(run.part)
