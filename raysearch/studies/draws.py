"""The draws of a calibration, and the held-out losses of masks on the samples of other draws.

A search chooses its mask by the samples of one draw, so the loss on these samples is too low. The other draws of the
same calibration are new samples of the same kind. Samples that both draws contain are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.scale import Repair
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import Pool
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Round
from raysearch.studies.model_group import ModelGroup

_SMALL_SHARE = 0.05  # so many samples in common do not matter


@dataclass(frozen=True)
class Draws:
    """The draws of one calibration of one model.

    Args:
        calibration: The label of the calibration.
        samples: The samples of each draw, by the label of the draw.
        places: The label of each search's draw, by the search's place in the study.
    """

    calibration: str
    samples: dict[str, Calibration]
    places: dict[int, str]

    @property
    def keys(self) -> dict[str, list[bytes]]:
        """The keys of the samples of each draw, in the order of the samples; equal samples have equal keys."""
        return {
            draw: [key for shard in calibration.shards for key in shard.keys]
            for draw, calibration in self.samples.items()
        }

    @property
    def shared(self) -> float:
        """The share of a draw's samples that another draw also contains, the mean over all pairs of draws."""
        key_sets = [{*keys} for keys in self.keys.values()]
        return fmean(len(first & second) / len(first) for first, second in itertools.permutations(key_sets, 2))


def draws_of(group: ModelGroup) -> list[Draws]:
    """Return the calibrations of a model that have several draws; weighted calibrations are left out.

    Masks that are repaired before they are evaluated have draws of their own.
    """
    by_label: dict[tuple[str, Repair], Draws] = {}
    for number, cell in group.cells.items():
        evaluation = cell.search.evaluation
        if evaluation.weighting is None:
            key = cell.calibration, evaluation.repair
            draws = by_label.setdefault(key, Draws(cell.calibration, {}, {}))
            draws.samples[cell.draw] = group.prepared_for(cell).calibrations[0]
            draws.places[number] = cell.draw
    return [draws for draws in by_label.values() if len(draws.samples) > 1]


def notes_on(draws: Draws) -> Iterator[str]:
    """Yield warnings about draws, to be shown before the searches begin."""
    if draws.shared > _SMALL_SHARE:
        yield (
            f"draws of {draws.calibration} have {draws.shared:.0%} of their samples in common, so tests over draws are "
            "too confident; draw from a larger data set, or draw fewer data.samples"
        )


def evaluate_held_out(
    draws: Draws, masks: Mapping[int, Mask], info: ModelInfo, ledger: Ledger, make_pool: Callable[[], Pool]
) -> None:
    """Evaluate each mask on the samples of the draws on which it was not found. The ledger records the losses.

    Args:
        draws: The draws of one calibration.
        masks: The mask that each search found, by the search's place in the study.
        info: The model.
        ledger: The ledger that records the losses.
        make_pool: It makes the pool of replicas when that is first needed; the pool is not closed.

    Raises:
        EvaluationError: An evaluation failed after all its retries.
    """
    for draw, calibration in draws.samples.items():
        held_out_masks = sorted(
            {masks[number] for number, own_draw in draws.places.items() if own_draw != draw and number in masks}
        )
        if held_out_masks:
            evaluator = Evaluator(
                [calibration], info.sites, ledger, make_pool, head_cost=head_cost(info), owns_pool=False
            )
            with closing(evaluator):
                evaluator.evaluate(Round(held_out_masks))


def held_out_losses(draws: Draws, masks: Mapping[int, Mask], ledger: Ledger) -> dict[int, dict[str, float]]:
    """Return the held-out losses of each search's mask.

    Args:
        draws: The draws of one calibration.
        masks: The mask that each search found, by the search's place in the study.
        ledger: The ledger with the losses of the masks on each draw.

    Returns:
        By the search's place, the loss of its mask on each other draw, by the label of that draw. A loss is of the
        samples that the search's own draw does not contain. A search is left out if the ledger lacks a loss, or if
        another draw has no such sample.
    """
    keys = draws.keys
    distinct_masks = list(dict.fromkeys(masks.values()))
    recorded = {
        draw: ledger.evaluations(calibration.fingerprint, distinct_masks) for draw, calibration in draws.samples.items()
    }
    held_out = {}
    for number in draws.places.keys() & masks.keys():
        own_draw = draws.places[number]
        own_keys = {*keys[own_draw]}
        losses = {}
        for draw, calibration in draws.samples.items():
            shards = recorded[draw].get(masks[number], {})
            if draw != own_draw and len(shards) == calibration.n_shards:
                is_new = np.array([key not in own_keys for key in keys[draw]])
                losses[draw] = _loss_of(calibration, shards, is_new)
        if len(losses) == len(keys) - 1 and all(map(math.isfinite, losses.values())):
            held_out[number] = losses
    return held_out


def _loss_of(
    calibration: Calibration, shards: Mapping[int, npt.NDArray[np.float64]], chosen: npt.NDArray[np.bool_]
) -> float:
    """Return the loss of the chosen samples alone, from the losses of all samples by shard; NaN if none is chosen."""
    losses = np.concatenate([shards[shard] for shard in range(calibration.n_shards)])
    weights = np.concatenate([calibration.weights(shard) for shard in range(calibration.n_shards)])
    divisor = calibration.divisor * float(weights[chosen].sum() / weights.sum())
    return sum(losses[chosen].tolist()) / divisor if divisor else math.nan
