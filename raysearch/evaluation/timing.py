"""How long the layers of a model take on this machine, measured on a few of them with random weights.

A layer takes the same time whatever its weights are, so none are read, downloaded or dequantised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective
from raysearch.core.formatting import count
from raysearch.core.machine import memory_bytes
from raysearch.core.mask import Mask
from raysearch.errors import first_line
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.replica import Replica, release
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.loading import load_random_layers
from raysearch.models.spec import ModelInfo
from raysearch.models.stack import LayerStack

_LONG_S = 2.0  # a shard that takes longer is measured once, without a run before it to warm up


@dataclass(frozen=True)
class LayerTimes:
    """The seconds of one layer over all samples of each calibration, on one replica.

    Args:
        seconds: By the calibrations' order; None where nothing could be measured.
        source: What they were measured on, or why they were not, to follow a comma.
    """

    seconds: Sequence[float] | None
    source: str


def time_layers(
    info: ModelInfo, specs: Sequence[CalibrationSpec], calibrations: Sequence[Calibration], threads: int
) -> LayerTimes:
    """Measure a few layers of a model's shape, with random weights, and its head on a shard of each calibration.

    There are as many layers as have the head's parameters, since a search runs them in such a proportion. The draws of
    a calibration take as long as the first of them, token for token.

    Args:
        info: The model; its weights are not read.
        specs: The calibrations as they were asked for, in the order of `calibrations`.
        calibrations: Their samples.
        threads: CPU threads of a replica.

    Returns:
        The seconds, or why they could not be measured.
    """
    if not all(isinstance(calibration.objective, StateObjective) for calibration in calibrations):
        return LayerTimes(None, "since how much the model writes only follows from its weights")
    if info.model.on_gpu and not torch.cuda.is_available():
        return LayerTimes(None, f"since this machine has no GPU for model.device={info.model.device}")
    n_layers = min(info.n_layers, max(1, round(head_cost(info))))
    layers = [int(layer) for layer in np.linspace(0, info.n_layers - 1, 2 * n_layers + 1)[1::2]]  # evenly spread
    outside = info.parameters - sum(info.layer_parameters)
    n_bytes = (outside + sum(info.layer_parameters[layer] for layer in layers)) * info.weight_bytes // info.parameters
    if not info.model.on_gpu and 2 * n_bytes > memory_bytes():  # with a copy in another layout
        return LayerTimes(None, f"since the memory left here does not hold {count(n_layers, 'layer')} of the model")
    try:
        with _one_replica(info, layers, threads) as replica:
            return LayerTimes(
                _measure(replica, info, specs, calibrations),
                f"measured on {count(n_layers, 'layer')} with random weights",
            )
    except Exception as error:  # of a family whose layers need each other, or a device that is full
        return LayerTimes(
            None, f"since {count(n_layers, 'layer')} of the model could not be timed: {first_line(error)}"
        )
    finally:
        release()


@contextmanager
def _one_replica(info: ModelInfo, layers: Sequence[int], threads: int) -> Iterator[Replica]:
    """Give a replica of some layers; torch's threads and random numbers are left as they were."""
    threads_before = torch.get_num_threads()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            model = load_random_layers(info, layers)
        yield Replica(LayerStack(model, info.model.compile, info.model.fused_head), threads=threads)
    finally:
        torch.set_num_threads(threads_before)


def _measure(
    replica: Replica, info: ModelInfo, specs: Sequence[CalibrationSpec], calibrations: Sequence[Calibration]
) -> list[float]:
    """Return the seconds of one layer over all samples of each calibration."""
    timed: list[tuple[CalibrationSpec, float]] = []
    seconds = []
    for spec, calibration in zip(specs, calibrations, strict=True):
        first_draw = replace(spec, data=replace(spec.data, draw=replace(spec.data.draw, seed=0)))
        by_token = next((by_token for other, by_token in timed if other == first_draw), None)
        if by_token is None:
            replica.calibrations[calibration.fingerprint] = calibration
            unit = MaskUnit(calibration.fingerprint, 0, (Mask(),))
            trial = replica.evaluate(unit)
            if trial.seconds < _LONG_S:
                trial = replica.evaluate(unit)
            cost = trial.layer_forwards + trial.head_forwards * head_cost(info)
            by_token = trial.seconds / calibration.shards[0].n_tokens / cost
            timed.append((first_draw, by_token))
        seconds.append(by_token * sum(shard.n_tokens for shard in calibration.shards))
    return seconds
