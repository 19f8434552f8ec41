"""The draws of a calibration, and what the masks found by one lose on the samples of the others.

A search chooses its mask by its own samples, so the loss on these flatters it. The other draws of the same calibration
are fresh samples of the same kind, but for those that both draws have, which are left out.
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
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import Pool
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Round
from raysearch.studies.model_group import ModelGroup

_LITTLE = 0.05  # a share of samples in common that does not matter


@dataclass(frozen=True)
class Draws:
    """The draws of one calibration of one model.

    Args:
        calibration: Its label.
        samples: The samples of each draw, by its label.
        places: The draw of each search, by the search's place in the study.
    """

    calibration: str
    samples: dict[str, Calibration]
    places: dict[int, str]

    @property
    def keys(self) -> dict[str, list[bytes]]:
        """What tells the samples of each draw apart, in their order."""
        return {draw: [key for shard in one.shards for key in shard.keys] for draw, one in self.samples.items()}

    @property
    def shared(self) -> float:
        """The share of its samples that a draw has in common with another, the mean over all pairs."""
        sets = [{*keys} for keys in self.keys.values()]
        return fmean(len(one & other) / len(one) for one, other in itertools.permutations(sets, 2))


def draws_of(group: ModelGroup) -> list[Draws]:
    """Return the calibrations of a model that have several draws; weighted ones are left out."""
    by_label: dict[str, Draws] = {}
    for number, cell in group.cells.items():
        if cell.search.evaluation.weighting is None:
            draws = by_label.setdefault(cell.calibration, Draws(cell.calibration, {}, {}))
            draws.samples[cell.draw] = group.prepared_for(cell).calibrations[0]
            draws.places[number] = cell.draw
    return [draws for draws in by_label.values() if len(draws.samples) > 1]


def notes_on(draws: Draws) -> Iterator[str]:
    """What to tell people of draws before they are searched on."""
    if draws.shared > _LITTLE:
        yield (
            f"draws of {draws.calibration} have {draws.shared:.0%} of their samples in common, so tests over draws are "
            "too sure; draws of a larger set, or of fewer data.samples, have less"
        )


def evaluate_held_out(
    draws: Draws, masks: Mapping[int, Mask], info: ModelInfo, ledger: Ledger, make_pool: Callable[[], Pool]
) -> None:
    """Evaluate each mask that was found on the samples of the other draws; the ledger keeps the losses.

    Masks are by their searches' places in the study. The pool is made when it is first needed, and not closed.

    Raises:
        EvaluationError: A unit failed for good.
    """
    for draw, calibration in draws.samples.items():
        others = sorted({masks[number] for number, own in draws.places.items() if own != draw and number in masks})
        if others:
            evaluator = Evaluator(
                [calibration], info.n_layers, ledger, make_pool, head_cost=head_cost(info), owns_pool=False
            )
            with closing(evaluator):
                evaluator.evaluate(Round(others))


def held_out_losses(draws: Draws, masks: Mapping[int, Mask], ledger: Ledger) -> dict[int, dict[str, float]]:
    """Return the loss of each mask on each other draw, by its search's place, where the ledger has them all.

    A loss is of the samples that the search's own draw has not; without any, there is none.
    """
    keys = draws.keys
    found_masks = list(dict.fromkeys(masks.values()))
    known = {draw: ledger.known(one.fingerprint, found_masks) for draw, one in draws.samples.items()}
    found = {}
    for number in draws.places.keys() & masks.keys():
        own, losses = draws.places[number], {}
        seen = {*keys[own]}
        for draw, calibration in draws.samples.items():
            shards = known[draw].get(masks[number], {})
            if draw != own and len(shards) == calibration.n_shards:
                fresh = np.array([key not in seen for key in keys[draw]])
                losses[draw] = _loss_of(calibration, shards, fresh)
        if len(losses) == len(keys) - 1 and all(map(math.isfinite, losses.values())):
            found[number] = losses
    return found


def _loss_of(
    calibration: Calibration, shards: Mapping[int, npt.NDArray[np.float64]], chosen: npt.NDArray[np.bool_]
) -> float:
    """Return the loss of some samples alone, from those of all samples by shard; NaN without any."""
    losses = np.concatenate([shards[shard] for shard in range(calibration.n_shards)])
    weights = np.concatenate([calibration.weights(shard) for shard in range(calibration.n_shards)])
    divisor = calibration.divisor * float(weights[chosen].sum() / weights.sum())
    return sum(losses[chosen].tolist()) / divisor if divisor else math.nan
