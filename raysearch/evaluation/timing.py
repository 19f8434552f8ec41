"""Measures how long the layers of a model take on this machine, on a few layers with random weights.

The time of a layer does not depend on its weights, so no weights are read, downloaded or dequantised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective
from raysearch.core.machine import memory_bytes
from raysearch.core.mask import Mask
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.memory import release_memory
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.loading import load_random_layers
from raysearch.models.spec import ModelInfo
from raysearch.models.stack import LayerStack
from raysearch.text.numbers import count
from raysearch.text.sentences import first_line

_LONG_S = 2.0  # a shard that takes longer is measured once, without a warm-up run before it


@dataclass(frozen=True)
class LayerTimes:
    """The seconds of one layer over all samples of each calibration, on one replica.

    Args:
        seconds: In the order of the calibrations; None if nothing could be measured.
        source: What they were measured on, or why they were not; a clause to follow a comma.
    """

    seconds: Sequence[float] | None
    source: str


def time_layers(
    info: ModelInfo, specs: Sequence[CalibrationSpec], calibrations: Sequence[Calibration], threads: int
) -> LayerTimes:
    """Measure a few layers of a model's shape, with random weights, and its head, on a shard of each calibration.

    The measured layers have about as many parameters as the head, since this is about the proportion in a search.
    Several draws of one calibration are measured once: their time per token is the same.

    Args:
        info: The model; its weights are not read.
        specs: The specifications of the calibrations, in the order of `calibrations`.
        calibrations: The calibrations, with their samples.
        threads: CPU threads of a replica.

    Returns:
        The seconds, or why they could not be measured.
    """
    if not all(isinstance(calibration.objective, StateObjective) for calibration in calibrations):
        return LayerTimes(None, "since how much the model writes only follows from its weights")
    if info.model.on_gpu and not torch.cuda.is_available():
        return LayerTimes(None, f"since this machine has no GPU for model.device={info.model.device}")
    n_layers = min(info.sites.n_layers, max(1, round(head_cost(info))))
    evenly_spread = np.linspace(0, info.sites.n_layers - 1, 2 * n_layers + 1)[1::2]
    layers = [int(layer) for layer in evenly_spread]
    layer_parameters = info.sites.layer_parameters
    outside = info.parameters - sum(layer_parameters)
    n_bytes = (outside + sum(layer_parameters[layer] for layer in layers)) * info.weight_bytes // info.parameters
    if not info.model.on_gpu and 2 * n_bytes > memory_bytes():  # twice, for a copy in another layout
        return LayerTimes(None, f"since the memory left here does not hold {count(n_layers, 'layer')} of the model")
    try:
        with _replica_of_layers(info, layers, threads) as replica:
            return LayerTimes(
                _measure(replica, info, specs, calibrations),
                f"measured on {count(n_layers, 'layer')} with random weights",
            )
    except Exception as error:  # a family whose layers depend on each other, or a device that is full
        return LayerTimes(
            None, f"since {count(n_layers, 'layer')} of the model could not be timed: {first_line(error)}"
        )
    finally:
        release_memory()


@contextmanager
def _replica_of_layers(info: ModelInfo, layers: Sequence[int], threads: int) -> Iterator[Replica]:
    """Yield a replica of some layers; the threads and random state of torch are restored afterwards."""
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
    layer_seconds = []
    for spec, calibration in zip(specs, calibrations, strict=True):
        first_draw = replace(spec, data=replace(spec.data, draw=replace(spec.data.draw, seed=0)))
        seconds_per_token = next((seconds for timed_spec, seconds in timed if timed_spec == first_draw), None)
        if seconds_per_token is None:
            replica.calibrations[calibration.fingerprint] = calibration
            unit = MaskUnit(calibration.fingerprint, 0, (Mask(),))
            result = replica.evaluate(unit)
            if result.seconds < _LONG_S:
                result = replica.evaluate(unit)
            cost = result.layer_forwards + result.head_forwards * head_cost(info)
            seconds_per_token = result.seconds / calibration.shards[0].n_tokens / cost
            timed.append((first_draw, seconds_per_token))
        layer_seconds.append(seconds_per_token * sum(shard.n_tokens for shard in calibration.shards))
    return layer_seconds
