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
        UserError: The searcher needs a statistic that these sites do not have.
    """
    answer: Any = None
    try:
        while True:
            match request := requests.send(answer):
                case Round():
                    answer = scores_of_sites((yield round_of_model(request, sites)), request, sites)
                case Statistic():
                    statistic = _statistic_for(request, sites)
                    answer = statistic_of_sites(statistic, (yield statistic), sites)
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


def _statistic_for(statistic: Statistic, sites: Sites) -> Statistic:
    """Return the statistic of layers or of halves from which that of sites follows.

    Args:
        statistic: The statistic that a searcher requests.
        sites: The sites that the searcher removes.

    Returns:
        That of layers if all sites are layers or groups of layers; else that of halves.

    Raises:
        UserError: The statistic compares hidden states, and other halves stay between neighbouring sites.
    """
    halves = {half for site in sites for half in site.halves}
    if all(site.halves[0].part == "attention" and len(site.halves) % 2 == 0 for site in sites):
        return statistic
    if statistic.is_of_depths and len(halves) < 2 * sites.n_layers:
        raise UserError(
            f"this searcher compares the hidden states before and after neighbouring sites ({statistic}), between "
            "which other halves of layers stay in this space; use space=layers, pairs or halves, or another searcher"
        )
    return statistic.of_halves


def statistic_of_sites(statistic: Statistic, values: NDArray[np.float64], sites: Sites) -> NDArray[np.float64]:
    """Return a statistic of layers or of halves as a statistic of sites.

    A distance is that between the hidden states at the ends of consecutive sites. Any other statistic is the sum over
    the layers or the halves of a site. That is exact for sums over weights. For gradients of gates it is the derivative
    by a gate of the whole site, so the same first-order change of the loss. For Block Influence it is the turn of the
    hidden state added up step by step, a score only.

    Args:
        statistic: The statistic, of layers if the sites are layers or groups of them; else of halves.
        values: Its values, [S, P] or [S, P + 1, P + 1] for P layers or halves.
        sites: The sites, G of them. If they overlap, they have as many halves each.

    Returns:
        The values, [S, G] or [S, G + 1, G + 1].
    """
    if statistic.is_of_halves:
        positions = [[half.position for half in site.halves] for site in sites]
        last_depth = 2 * sites.n_layers
    else:
        positions = [[half.layer for half in site.halves[::2]] for site in sites]
        last_depth = sites.n_layers
    if not statistic.is_of_depths:
        return np.stack([values[:, positions_of_site].sum(axis=1) for positions_of_site in positions], axis=1)
    depths = np.array([*(first for first, *_ in positions), last_depth])
    if not any(sites.overlaps):
        return values[:, depths][:, :, depths]
    numbers = np.arange(len(depths))
    # Overlapping sites are not consecutive, so k sites from a depth on end k times the width of a site later.
    ends_of_windows = depths[:, None] + len(positions[0]) * (numbers - numbers[:, None])
    return values[:, depths[:, None], ends_of_windows.clip(0, last_depth)]
