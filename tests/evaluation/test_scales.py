"""Masks that are repaired by their scales, compared with plain forwards in which hooks multiply the states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel
from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import ModelLosses, ModelObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.scale import Scales
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, StatisticUnit
from raysearch.ledger.ledger import Ledger
from raysearch.models.layers import plain_logits
from raysearch.models.stack import LayerStack
from raysearch.models.verification import verify_scales
from raysearch.searchers.base import Round
from tests.cases import assert_each
from tests.evaluation.oracle import plain_losses
from tests.models.families import FAMILIES, N_LAYERS
from tests.sentences import Sentences

SITES = Sites.of_equal_layers(N_LAYERS)
#: Masks, with the start and the stop of their cuts; a cut at the end of the model has no factor.
CUTS = {
    Mask(): [],
    Mask.of(0): [(0, 1)],
    Mask.of(1): [(1, 2)],
    Mask.of(3): [],
    Mask.of(1, 2): [(1, 3)],
    Mask.of(0, 2): [(0, 1), (2, 3)],
    Mask.of(0, 1, 3): [(0, 2)],
}


def calibration_on(samples: Calibration, objective: Any = None) -> Calibration:
    """The samples of another calibration, whose masks are repaired by their scales."""
    objective = objective or PerplexityObjective()
    batch = Batch(
        np.concatenate([shard.input_ids for shard in samples.shards]),
        np.concatenate([shard.scored for shard in samples.shards]),
    )
    return Calibration.create(objective, batch, 2, {"test": 1}, {}, "scale")


@pytest.fixture
def evaluate(
    make_replica: Callable[[], Replica], tmp_path: Path, closed_in_the_end: Callable[[Evaluator], Evaluator]
) -> Callable[..., dict[Mask, Evaluation]]:
    """A function that evaluates rounds of masks on a calibration, with a ledger of its own."""
    replica = make_replica()

    def evaluate_rounds(calibration: Calibration, *rounds: Sequence[Mask]) -> dict[Mask, Evaluation]:
        replica.calibrations[calibration.fingerprint] = calibration
        ledger = Ledger(tmp_path / f"{len([*tmp_path.iterdir()])}.db")
        evaluator = closed_in_the_end(Evaluator([calibration], SITES, ledger, lambda: InlinePool(lambda: replica)))
        return {mask: loss for masks in rounds for mask, loss in evaluator.evaluate(Round(masks)).items()}

    return evaluate_rounds


def plain_ratio(model: PreTrainedModel, calibration: Calibration, start: int, stop: int) -> float:
    """Return the mean over tokens of |h_stop| / |h_start| in plain forwards of the dense model."""
    norms: dict[int, list[float]] = {start: [], stop: []}
    with ExitStack() as hooks, torch.no_grad():
        for depth in norms:
            layer = model.model.layers[depth]
            add_norms = partial(_add_norms, norms[depth])
            hooks.callback(layer.register_forward_pre_hook(add_norms).remove)
        for batch in calibration.shards:
            model(torch.tensor(batch.input_ids), use_cache=False)
    return float(np.mean(np.divide(norms[stop], norms[start])))


def _add_norms(norms: list[float], layer: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    norms += args[0].double().norm(dim=-1).flatten().tolist()


def with_hooks(model: PreTrainedModel, factors: Mapping[int, float]) -> PreTrainedModel:
    """Return a copy of a model that multiplies the states that enter some layers."""
    hooked = copy.deepcopy(model)
    for layer, factor in factors.items():
        hooked.model.layers[layer].register_forward_pre_hook(
            lambda _, args, factor=factor: (args[0] * factor, *args[1:])
        )
    return hooked


def test_losses_are_those_of_plain_forwards_whose_states_are_multiplied_at_the_cuts(
    evaluate: Callable[..., dict[Mask, Evaluation]], model: PreTrainedModel, calibration: Calibration
) -> None:
    scaled = calibration_on(calibration)
    for mask, evaluation in evaluate(scaled, [*CUTS]).items():
        assert [(scale.start, scale.stop) for scale in evaluation.scales] == CUTS[mask]
        factors = {}
        for scale in evaluation.scales:
            assert scale.factor == pytest.approx(plain_ratio(model, scaled, scale.start, scale.stop), rel=1e-5)
            factors[scale.stop] = scale.factor
        hooked = with_hooks(model, factors)
        summed = sum(plain_losses(hooked, mask, batch).sum() for batch in scaled.shards)
        assert evaluation.loss == pytest.approx(summed / scaled.divisor, rel=1e-5)


def test_a_repaired_mask_has_the_same_loss_to_the_last_bit_in_any_round(
    evaluate: Callable[..., dict[Mask, Evaluation]], calibration: Calibration
) -> None:
    scaled = calibration_on(calibration)
    together, one_by_one, in_two_rounds = (
        {mask: (evaluation.loss, evaluation.scales) for mask, evaluation in evaluate(scaled, *rounds).items()}
        for rounds in ([[*CUTS]], [[mask] for mask in reversed(CUTS)], [[*CUTS][3:], [*CUTS][:4]])
    )
    assert one_by_one == together
    assert in_two_rounds == together


def test_the_parts_of_a_cut_unit_have_the_losses_of_the_unit(replica: Replica, calibration: Calibration) -> None:
    ratios = replica.evaluate(StatisticUnit(calibration.fingerprint, 0, Statistic.NORM_RATIO)).values
    scales = Scales.of_masks(CUTS, ratios[Statistic.NORM_RATIO][0])
    unit = MaskUnit(calibration.fingerprint, 0, tuple(sorted(CUTS)), scales)
    values = replica.evaluate(unit).values
    parts = [part for side in cut(unit, 3, SITES) for part in side]
    assert len(parts) > 2
    for part in parts:
        for mask, losses in replica.evaluate(part).values.items():
            assert losses.tobytes() == values[mask].tobytes(), mask


def test_a_loss_of_a_repaired_mask_is_never_the_loss_of_the_mask(calibration: Calibration) -> None:
    samples = PerplexityObjective(), calibration.shards[0], 2
    plain = Calibration.create(*samples, {"test": 1}, {})
    none = Calibration.create(*samples, {"test": 1}, {}, "none")
    scaled = Calibration.create(*samples, {"test": 1}, {}, "scale")
    assert none.fingerprint == plain.fingerprint, "old ledgers still answer"
    assert scaled.fingerprint != plain.fingerprint
    assert scaled.text_fingerprint == plain.text_fingerprint


def test_a_comparison_with_the_dense_model_is_with_the_model_itself(
    evaluate: Callable[..., dict[Mask, Evaluation]], model: PreTrainedModel, calibration: Calibration
) -> None:
    scaled = calibration_on(calibration, KLObjective())
    evaluations = evaluate(scaled, [*CUTS])
    assert evaluations[Mask()].loss == 0
    mask = Mask.of(0, 2)
    factors = {scale.stop: scale.factor for scale in evaluations[mask].scales}
    log_probs: dict[bool, npt.NDArray[np.float64]] = {}
    pruned = with_hooks(model, factors)
    pruned.model.layers = torch.nn.ModuleList(pruned.model.layers[layer] for layer in (1, 3))
    pruned.config.num_hidden_layers = 2
    divergences = []
    for batch in scaled.shards:
        for name, version in ((True, model), (False, pruned)):
            with torch.no_grad():
                logits = version(torch.tensor(batch.input_ids), use_cache=False).logits[:, :-1].double()
            log_probs[name] = logits.log_softmax(-1)[torch.tensor(batch.scored[:, 1:])].numpy()
        divergences.append((np.exp(log_probs[True]) * (log_probs[True] - log_probs[False])).sum())
    assert evaluations[mask].loss == pytest.approx(sum(divergences) / scaled.divisor, rel=1e-4)


@dataclass(frozen=True)
class OwnForward(ModelObjective):
    """Perplexity by the masked model's own forward."""

    form = Form.TEXT
    measure = PerplexityObjective.measure

    @override
    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> ModelLosses:
        ids = torch.tensor(batch.input_ids)
        log_probs = model(ids, use_cache=False).logits[:, :-1].double().log_softmax(-1)
        losses = -log_probs.gather(-1, ids[:, 1:, None])[..., 0] * torch.tensor(batch.scored[:, 1:])
        return ModelLosses(losses.sum(1), ids.numel())


def test_an_objective_that_runs_the_model_gets_the_scaled_model(
    evaluate: Callable[..., dict[Mask, Evaluation]], calibration: Calibration
) -> None:
    walked = evaluate(calibration_on(calibration), [*CUTS])
    for mask, evaluation in evaluate(calibration_on(calibration, OwnForward()), [*CUTS]).items():
        assert evaluation.loss == pytest.approx(walked[mask].loss, rel=1e-5)
        assert evaluation.scales == walked[mask].scales


def test_the_model_itself_is_scaled_as_the_walk_is() -> None:
    tokens = Batch(np.arange(3, 12)[None], np.arange(9)[None] > 0)
    ratios = np.linspace(0.8, 1.6, (N_LAYERS + 1) ** 2).reshape(N_LAYERS + 1, N_LAYERS + 1)

    def check(family: str) -> None:
        stack = LayerStack(FAMILIES[family]())
        for mask in CUTS:
            scales = Scales.of_masks([mask], ratios).of_mask(mask)
            with torch.no_grad():
                walked = stack.logits(stack.walk(stack.capture(tokens.inputs), mask, scales).flatten(0, 1))
                with stack.bypassed(mask, scales) as model:
                    plain = plain_logits(model, torch.tensor(tokens.input_ids)).flatten(0, 1)
            torch.testing.assert_close(walked, plain, rtol=1e-4, atol=1e-5)

    assert_each(["llama", "gemma2", "gpt2", "falcon", "mixtral"], check)


def test_models_whose_weights_can_hold_no_factors_are_refused(sentences: Sentences) -> None:
    def verify(family: str) -> None:
        verify_scales(LayerStack(FAMILIES[family]()))

    assert_each(["llama", "gemma2", "gpt2", "mixtral"], verify)
    sentences.refused_each(verify, ["falcon", "olmo2"])


def test_a_replica_refuses_such_a_model_before_the_first_mask(calibration: Calibration) -> None:
    replica = Replica(LayerStack(FAMILIES["olmo2"]()), [calibration])
    unit = MaskUnit(calibration.fingerprint, 0, (Mask.of(1),))
    replica.evaluate(unit)
    with pytest.raises(UnsupportedModelError, match="cannot be repaired by scales"):
        replica.evaluate(replace(unit, scales=Scales.of_masks(unit.masks, np.ones((N_LAYERS + 1, N_LAYERS + 1)))))
