"""Translates between masks of a searcher, which have indices of sites, and masks of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.base import Remark, Round, Scores, SearchGenerator


def in_model(requests: SearchGenerator, sites: Sites) -> SearchGenerator:
    """Translate the requests of a searcher for an oracle of the model, and its answers back.

    Args:
        requests: The requests of the searcher.
        sites: The sites that the searcher removes.

    Yields:
        The rounds with masks of the model, and the statistics; a remark as it is, with a number for each site.

    Returns:
        The searcher's mask as a mask of the model.

    Raises:
        UserError: The searcher needs a statistic, which layers have and these sites do not.
    """
    answer: Any = None
    try:
        while True:
            match request := requests.send(answer):
                case Round():
                    answer = scores_of_sites((yield round_of_model(request, sites)), request, sites)
                case Statistic():
                    _check_statistic(request, sites)
                    answer = statistic_of_groups(request, (yield request), sites)
                case Remark():
                    answer = yield request
    except StopIteration as stop:
        mask: Mask = stop.value
        return sites.mask_of(mask)
    finally:
        requests.close()


def round_of_model(proposed: Round, sites: Sites) -> Round:
    """Return a round with masks of the model.

    Args:
        proposed: The round of a searcher.
        sites: The sites that the searcher removes.

    Returns:
        The same round, with masks of the model.
    """
    beat = None if proposed.beat is None else sites.mask_of(proposed.beat)
    return replace(proposed, masks=[sites.mask_of(mask) for mask in proposed.masks], beat=beat)


def scores_of_sites(scores: Scores, proposed: Round, sites: Sites) -> Scores:
    """Return the scores of masks of the model as scores of a searcher's masks.

    Args:
        scores: The scores of `round_of_model`.
        proposed: The round of the searcher.
        sites: The sites that the searcher removes.

    Returns:
        The scores of the round.
    """
    return Scores(proposed, {mask: scores.outcomes[sites.mask_of(mask)] for mask in proposed.masks})


def _check_statistic(statistic: Statistic, sites: Sites) -> None:
    """Refuse a statistic of sites that are not whole layers."""
    if any(len(site.halves) % 2 or site.halves[0].part == "mlp" for site in sites):
        raise UserError(
            f"this searcher needs a statistic of whole layers ({statistic}), which halves of layers do not have; use "
            "space=layers, or a searcher that needs losses alone, such as greedy, beam or one-shot"
        )


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
