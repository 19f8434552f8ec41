"""Masks that are repaired by their scales, compared with a plain forward whose states are multiplied by hooks."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.scale import Scale, Scales
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.ledger.ledger import Ledger
from raysearch.models.stack import LayerStack
from raysearch.searchers.base import Round
from tests.evaluation.oracle import plain_losses
from tests.models.families import FAMILIES, N_LAYERS
from tests.sentences import Sentences

#: The dense model, single cuts at the beginning, in the middle and at the end, long cuts, and two cuts.
MASKS = tuple(sorted([Mask(), Mask.of(0), Mask.of(1), Mask.of(3), Mask.of(1, 2), Mask.of(0, 2), Mask.of(0, 1, 3)]))


@pytest.fixture(scope="session")
def scaled_calibration(calibration):
    samples = Batch(
        np.concatenate([shard.input_ids for shard in calibration.shards]),
        np.concatenate([shard.scored for shard in calibration.shards]),
    )
    return Calibration.create(PerplexityObjective(), samples, 2, {"test": 1}, {}, "scale")


@pytest.fixture
def evaluator(scaled_calibration, make_replica, tmp_path, closed_in_the_end):
    replica = make_replica()
    replica.calibrations[scaled_calibration.fingerprint] = scaled_calibration
    sites = Sites.of_equal_layers(N_LAYERS)
    return closed_in_the_end(
        Evaluator([scaled_calibration], sites, Ledger(tmp_path / "ledger.db"), lambda: InlinePool(lambda: replica))
    )


def plain_ratio(model, batches, start, stop):
    """Return the mean over tokens of |h_stop| / |h_start| in plain forwards of the dense model."""
    ratios = []
    for batch in batches:
        states = []
        with ExitStack() as hooks:
            for layer in model.model.layers:
                hooks.callback(layer.register_forward_pre_hook(lambda _, args: states.append(args[0])).remove)
            with torch.no_grad():
                model(torch.tensor(batch.input_ids), use_cache=False)
        norms = [state.double().norm(dim=-1) for state in states]
        ratios += (norms[stop] / norms[start]).flatten().tolist()
    return np.mean(ratios)


def scaled_plain_losses(model, mask, batch, factors):
    """Return the summed nats of each sample in a plain forward without a mask's layers, with states multiplied."""
    hooked = copy.deepcopy(model)
    for layer, factor in factors.items():
        hooked.model.layers[layer].register_forward_pre_hook(
            lambda _, args, factor=factor: (args[0] * factor, *args[1:])
        )
    return plain_losses(hooked, mask, batch)


def test_the_losses_are_those_of_plain_forwards_with_the_states_multiplied_at_the_cuts(
    evaluator, model, scaled_calibration
):
    shards = scaled_calibration.shards
    evaluations = evaluator.evaluate(Round(MASKS))
    for mask in MASKS:
        cuts = {Mask.of(0, 1, 3): [(0, 2)], Mask.of(0, 2): [(0, 1), (2, 3)], Mask.of(1, 2): [(1, 3)]}.get(
            mask, [(layer, layer + 1) for layer in mask.layers if layer < N_LAYERS - 1]
        )
        scales = evaluations[mask].scales
        assert [(scale.start, scale.stop) for scale in scales] == cuts
        factors = {}
        for scale in scales:
            assert scale.factor == pytest.approx(plain_ratio(model, shards, scale.start, scale.stop), rel=1e-5)
            factors[scale.stop] = scale.factor
        summed = sum(scaled_plain_losses(model, mask, shard, factors).sum() for shard in shards)
        assert evaluations[mask].loss == pytest.approx(summed / scaled_calibration.divisor, rel=1e-5)
