import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.core.mask import Mask
from raysearch.core.space import SPACES
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.evaluation import replica as replicas
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.prefix import plan_prefixes
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, StatisticUnit
from raysearch.models.stack import LayerStack
from raysearch.models.statistics import block_influence, gate_gradients
from tests.evaluation.oracle import plain_losses
from tests.models.families import BY_LENGTH
from tests.sentences import Sentences

MASKS = (Mask(), Mask.of(0), Mask.of(1), Mask.of(3), Mask.of(1, 2), Mask.of(0, 3))


def test_losses_are_those_of_a_plain_forward_without_the_layers(replica, model, calibration):
    for shard, batch in enumerate(calibration.shards):
        result = replica.evaluate(MaskUnit(calibration.fingerprint, shard, MASKS))
        for mask in MASKS:
            np.testing.assert_allclose(result.values[mask], plain_losses(model, mask, batch), rtol=1e-5)


def test_the_losses_of_a_mask_do_not_depend_on_the_other_masks_of_the_unit(replica, calibration):
    """Whole layers, shifted pairs and single halves, in one unit, in the parts of a cut unit, and alone."""
    sites = replica.stack.sites_with_halves
    pairs = SPACES["pairs"].select(sites)
    masks = {*MASKS, *map(pairs.mask_of, pairs.singles), Mask.of("1a"), Mask.of("1m", 3), Mask.of("1a", "2a", "3m")}
    unit = MaskUnit(calibration.fingerprint, 0, tuple(sorted(masks)))
    values = replica.evaluate(unit).values
    alone = [replace(unit, masks=(mask,)) for mask in masks]
    parts = [part for n_replicas in (2, 3) for side in cut(unit, n_replicas, sites) for part in side]
    assert len(parts) > 4
    for other_unit in (*alone, *parts):
        result = replica.evaluate(other_unit)
        assert result.layer_forwards == plan_prefixes(other_unit.masks, sites).layer_forwards
        for mask in other_unit.masks:
            assert result.values[mask].tobytes() == values[mask].tobytes(), mask


def test_a_shifted_pair_is_scored_as_the_ordinary_model_that_remains(replica, model, calibration):
    """Without the MLP of layer 1 and the attention of layer 2, layer 1 has the MLP of layer 2, and no layer follows."""
    ordinary = copy.deepcopy(model)
    layer, next_layer = ordinary.model.layers[1:3]
    layer.mlp = next_layer.mlp
    layer.post_attention_layernorm = next_layer.post_attention_layernorm
    mask = Mask.of("1m", "2a")
    for shard, batch in enumerate(calibration.shards):
        losses = replica.evaluate(MaskUnit(calibration.fingerprint, shard, (mask,))).values[mask]
        np.testing.assert_allclose(losses, plain_losses(ordinary, Mask.of(2), batch), rtol=1e-5)


def test_batches_of_rows_of_many_lengths_change_nothing(make_replica, model, subtests):
    random = np.random.default_rng(0)
    rows = [random.integers(0, 100, size=length).tolist() for length in (3, 4, 9, 30, 31, 60)]
    uneven = Batch.of(rows, [[place > 0 for place in range(len(row))] for row in rows])
    calibration = Calibration.create(PerplexityObjective(), uneven, 6, {}, {})
    plain = {
        mask: [plain_losses(model, mask, uneven.samples(row, row + 1)).item() for row in range(len(rows))]
        for mask in MASKS
    }
    replica = make_replica()
    replica.calibrations[calibration.fingerprint] = calibration
    for pass_tokens in (1, 64, 10**6):
        with subtests.test(pass_tokens):
            replica._pass_tokens = pass_tokens
            values = replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values
            for mask in MASKS:
                np.testing.assert_allclose(values[mask], plain[mask], rtol=1e-5)


@pytest.mark.parametrize("family", [*BY_LENGTH])
def test_a_loss_does_not_depend_on_the_other_rows(family):
    """Compare with a plain forward of each row by itself: texts, items with choices, and statistics."""
    model = BY_LENGTH[family]()
    random = np.random.default_rng(0)
    rows = [random.integers(3, 128, size=length).tolist() for length in (3, 9, 9, 18, 30, 31)]
    scored = [[place > 0 for place in range(len(row))] for row in rows]
    singles = [Batch.of([row], [marks]) for row, marks in zip(rows, scored, strict=True)]
    pairs = Choices(np.arange(6) // 2, np.arange(6) % 2 == 0, np.ones(6, np.int64))
    replica = Replica(LayerStack(copy.deepcopy(model)))
    masks = MASKS[:2]
    plain = {mask: np.concatenate([plain_losses(model, mask, single) for single in singles]) for mask in masks}
    influence = torch.cat([block_influence(LayerStack(copy.deepcopy(model)), single) for single in singles])

    texts = Calibration.create(PerplexityObjective(), Batch.of(rows, scored), 6, {}, {})
    items = Calibration.create(TaskMarginObjective(tokens="sum"), Batch.of(rows, scored, pairs), 3, {}, {})
    for calibration in (texts, items):
        replica.calibrations[calibration.fingerprint] = calibration
    text_result, item_result = (
        replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks)) for calibration in (texts, items)
    )
    for mask in masks:
        np.testing.assert_allclose(text_result.values[mask], plain[mask], rtol=1e-5)
        np.testing.assert_allclose(item_result.values[mask], plain[mask][::2] - plain[mask][1::2], rtol=1e-4)
    assert item_result.packed is False
    statistic = replica.evaluate(StatisticUnit(texts.fingerprint, 0, Statistic.BLOCK_INFLUENCE))
    np.testing.assert_allclose(statistic.values[Statistic.BLOCK_INFLUENCE], influence, rtol=1e-4)
    gradients = replica.evaluate(StatisticUnit(texts.fingerprint, 0, Statistic.GATE_GRADIENTS))
    separate = [gate_gradients(LayerStack(copy.deepcopy(model)), single, texts.objective) for single in singles]
    np.testing.assert_allclose(gradients.values[Statistic.GATE_GRADIENTS], torch.cat(separate), rtol=1e-3, atol=1e-4)


def test_rows_run_separately_if_memory_does_not_hold_the_comparison(make_replica, model, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(replicas, "rows_interact", full)
    rows = [[5, 6, 7], [8] * 9]
    replica = make_replica()
    texts = Batch.of(rows, [[place > 0 for place in range(len(row))] for row in rows])
    calibration = Calibration.create(PerplexityObjective(), texts, 2, {}, {})
    replica.calibrations[calibration.fingerprint] = calibration
    losses = replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS[:1])).values[Mask()]
    assert replica.stack.by_length
    expected = [plain_losses(model, Mask(), texts.samples(row, row + 1)).item() for row in range(2)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda losses: losses[:1],
        lambda losses: losses.float(),
        lambda losses: None,
    ],
)
def test_a_result_that_is_not_a_loss_per_sample_is_refused(
    replica, calibration, monkeypatch, wrong, sentences: Sentences
):
    class Rogue(PerplexityObjective):
        def losses(self, states, batch, head, dense):
            return wrong(super().losses(states, batch, head, dense))

    rogue = replace(calibration, objective=Rogue())
    monkeypatch.setitem(replica.calibrations, calibration.fingerprint, rogue)
    with sentences.refused(UserError):
        replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS))


class _Reads(TorchDispatchMode):
    """Counts the numbers that Python reads from tensors. Each of them would wait for a GPU."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_unit_waits_for_a_gpu_once_and_not_once_per_mask(replica, calibration, monkeypatch):
    from raysearch.calibration.objectives import base

    monkeypatch.setattr(base, "_LOGITS_AT_ONCE", {"cpu": 3 * 128})
    reads = []
    for masks in (MASKS[:1], MASKS):
        with _Reads() as mode:
            replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks))
        reads.append(mode.n)
    assert reads == [1, 1]  # transformers looks at the positions of the rows


def test_the_result_gives_its_cost(replica, calibration):
    result = replica.evaluate(MaskUnit(calibration.fingerprint, 0, (Mask.of(1), Mask.of(2))))
    n_layers = len(replica.stack.sites)
    assert result.layer_forwards == 2 * (n_layers - 1) - 1  # layer 0 is shared
    assert result.head_forwards == 2
    assert result.layer_tokens == result.layer_forwards * calibration.shards[0].input_ids.size
    assert result.packed is None
    assert result.seconds > 0


@pytest.mark.parametrize("at_once", [1, 3 * 128, 10**9])
def test_chunks_of_logits_change_nothing_but_memory(replica, calibration, monkeypatch, at_once):
    from raysearch.calibration.objectives import base

    whole = replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values
    monkeypatch.setattr(base, "_LOGITS_AT_ONCE", {"cpu": at_once})
    for mask, losses in replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values.items():
        np.testing.assert_allclose(losses, whole[mask], rtol=1e-6)
