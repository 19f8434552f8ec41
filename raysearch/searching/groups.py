"""Translates between masks of layers and masks of groups, which a searcher has if a target allows only groups.

The masks of the two kinds are in the same order, since groups are consecutive and of one size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Remark, Round, Scores, SearchGenerator


def in_layers(requests: SearchGenerator, groups: Sites) -> SearchGenerator:
    """Translate the requests of a searcher of groups for an oracle of layers, and its answers back.

    Args:
        requests: The requests of the searcher.
        groups: The groups.

    Yields:
        The rounds with masks of layers, and the statistics; a remark as it is, with a number for each group.

    Returns:
        The searcher's mask as a mask of layers.
    """
    answer: Any = None
    try:
        while True:
            match request := requests.send(answer):
                case Round():
                    answer = scores_of_groups((yield round_of_layers(request, groups)), request, groups)
                case Statistic():
                    answer = statistic_of_groups(request, (yield request), groups)
                case Remark():
                    answer = yield request
    except StopIteration as stop:
        mask: Mask = stop.value
        return groups.layers_of(mask)
    finally:
        requests.close()


def round_of_layers(proposed: Round, groups: Sites) -> Round:
    """Return a round of masks of groups as a round of masks of layers.

    Args:
        proposed: The round.
        groups: The groups.

    Returns:
        The same round, with masks of layers.
    """
    beat = None if proposed.beat is None else groups.layers_of(proposed.beat)
    return replace(proposed, masks=[groups.layers_of(mask) for mask in proposed.masks], beat=beat)


def scores_of_groups(scores: Scores, proposed: Round, groups: Sites) -> Scores:
    """Return the scores of masks of layers as scores of masks of groups.

    Args:
        scores: The scores of `round_of_layers`.
        proposed: The round of masks of groups.
        groups: The groups.

    Returns:
        The scores of the round.
    """
    return Scores(proposed, {mask: scores.outcomes[groups.layers_of(mask)] for mask in proposed.masks})


def statistic_of_groups(statistic: Statistic, values: NDArray[np.float64], groups: Sites) -> NDArray[np.float64]:
    """Return a statistic of layers as a statistic of groups.

    A distance between two hidden states is that between the states at the ends of groups. Any other statistic is the
    sum over the layers of a group. That is exact for sums over weights. For gradients of gates it is the derivative by
    a gate of the whole group, so the same first-order change of the loss. For Block Influence it is the turn of the
    hidden state added up layer by layer, a score only.

    Args:
        statistic: The statistic.
        values: Its values, [S, N] or [S, N + 1, N + 1] for N layers.
        groups: The groups, G of them.

    Returns:
        The values, [S, G] or [S, G + 1, G + 1].
    """
    starts = [site.halves[0].layer for site in groups]
    if statistic.shape(groups) == (len(groups),):
        return np.add.reduceat(values, starts, axis=1)
    ends = [*starts, groups.n_layers]
    return values[:, ends][:, :, ends]
