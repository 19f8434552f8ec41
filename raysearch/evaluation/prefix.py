"""Plans the cheapest exact way of running a round of masks: the prefix plan.

The hidden state after layer i depends only on the layers kept up to i, so masks that agree up to i share that state. A
round's masks form a trie over their layers; walking it depth first runs each shared prefix once and holds one hidden
state per branch point:

    masks {1} {2} of three layers          steps
    0 ─┬─ 1 ────── score {2}               run 0 · hold · run 2 · score {1} · restore · run 1 · score {2}
       └────── 2 ─ score {1}               3 layer-forwards instead of 4

The plan is pure data: it names its own cost before anything runs. Of the two sides of a branch the one that needs fewer
held states goes first, so singles and pairs never hold more than a handful at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from raysearch.core.mask import Mask


class Op(Enum):
    """The kinds of steps, by what they do with the current hidden state."""

    RUN = "run"  #: replace it by layer `index`'s output
    HOLD = "hold"  #: push a copy on the stack
    RESTORE = "restore"  #: pop the top of the stack into its place
    SCORE = "score"  #: it is final: hand it to the objective for mask `index`


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction; `index` is a layer for RUN and a position in `PrefixPlan.masks` for SCORE, else -1."""

    op: Op
    index: int = -1


@dataclass(frozen=True)
class PrefixPlan:
    """The steps that evaluate `masks` on one shard, in order."""

    masks: tuple[Mask, ...]  #: each once, in mask order
    steps: tuple[Step, ...]
    peak_held: int  #: the most hidden states held at once, beside the running one

    @cached_property
    def layer_forwards(self) -> int:
        """How many times a layer runs on the shard."""
        return sum(step.op is Op.RUN for step in self.steps)


def naive_layer_forwards(masks: Iterable[Mask], n_layers: int) -> int:
    """Return the layer-forwards of one plain forward per mask."""
    return sum(n_layers - len(mask) for mask in masks)


def plan_prefixes(masks: Iterable[Mask], n_layers: int, dense_first: bool = False) -> PrefixPlan:
    """Plan the depth-first walk over the trie of the masks' kept layers.

    Args:
        masks: The masks of a round, in any order; repeats are planned once.
        n_layers: N, the layers of the dense model.
        dense_first: Whether the dense model is scored too, and before all others; this holds up to N states more.

    Returns:
        The plan. Its cost is exact: at N = 32 all singles cost 527 layer-forwards (992 one by one), all singles and
        pairs 5,487 (15,872).
    """
    ordered = tuple(sorted({*masks, Mask()} if dense_first else set(masks)))
    steps, peak_held = _walk(ordered, range(len(ordered)), 0, n_layers, dense_first)
    return PrefixPlan(ordered, tuple(steps), peak_held)


def _walk(
    masks: Sequence[Mask], group: Sequence[int], layer: int, n_layers: int, dense_first: bool
) -> tuple[list[Step], int]:
    """Return the steps for the masks of `group`, which agree on all layers before `layer`, and the states held."""
    steps: list[Step] = []
    while layer < n_layers and group:
        removing = [member for member in group if layer in masks[member]]
        keeping = [member for member in group if layer not in masks[member]]
        if removing and keeping:
            skip = _walk(masks, removing, layer + 1, n_layers, dense_first)
            run = _walk(masks, keeping, layer + 1, n_layers, dense_first)
            run[0].insert(0, Step(Op.RUN, layer))
            to_dense = dense_first and not masks[keeping[0]]  # the empty mask comes first in mask order
            first, second = (run, skip) if to_dense or skip[1] > run[1] else (skip, run)
            held = max(first[1] + 1, second[1])
            return [*steps, Step(Op.HOLD), *first[0], Step(Op.RESTORE), *second[0]], held
        if keeping:
            steps.append(Step(Op.RUN, layer))
        layer += 1
    return steps + [Step(Op.SCORE, member) for member in group], 0
