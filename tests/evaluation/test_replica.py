import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.unit import MaskUnit
from tests.evaluation.oracle import plain_losses

MASKS = (Mask(), Mask.of(0), Mask.of(1), Mask.of(3), Mask.of(1, 2), Mask.of(0, 3))


def test_losses_are_those_of_a_plain_forward_without_the_layers(replica, model, calibration):
    for shard, batch in enumerate(calibration.shards):
        result = replica.evaluate(MaskUnit(calibration.fingerprint, shard, MASKS))
        for mask in MASKS:
            np.testing.assert_allclose(result.values[mask], plain_losses(model, mask, batch), rtol=1e-5)


def test_a_masks_numbers_do_not_depend_on_its_company(replica, calibration):
    together = replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values
    for mask in MASKS:
        alone = replica.evaluate(MaskUnit(calibration.fingerprint, 0, (mask,))).values[mask]
        assert alone.tobytes() == together[mask].tobytes()


def test_how_rows_of_many_lengths_are_put_together_changes_nothing(make_replica, model, subtests):
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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda losses: losses[:1], r"Rogue returned torch\.float64 of shape \[1\] for \d+ samples; return a float64"),
        (lambda losses: losses.float(), r"Rogue returned torch\.float32 of shape"),
        (lambda losses: None, "Rogue returned None for"),
    ],
)
def test_what_is_no_loss_of_each_sample_never_reaches_the_ledger(replica, calibration, monkeypatch, wrong, said):
    class Rogue(PerplexityObjective):
        def losses(self, states, batch, head, dense):
            return wrong(super().losses(states, batch, head, dense))

    rogue = dataclasses.replace(calibration, objective=Rogue())
    monkeypatch.setitem(replica.calibrations, calibration.fingerprint, rogue)
    with pytest.raises(UserError, match=said):
        replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS))


class _Reads(TorchDispatchMode):
    """Counts the numbers that Python reads from tensors, for each of which a GPU would be waited for."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_gpu_is_waited_for_once_a_unit_not_once_a_mask(replica, calibration, monkeypatch):
    from raysearch.calibration.objectives import base

    monkeypatch.setattr(base, "_LOGITS_AT_ONCE", {"cpu": 3 * 128})
    reads = []
    for masks in (MASKS[:1], MASKS):
        with _Reads() as mode:
            replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks))
        reads.append(mode.n)
    assert reads == [1, 1]  # transformers looks at the positions of the rows


def test_the_result_names_its_cost(replica, calibration):
    result = replica.evaluate(MaskUnit(calibration.fingerprint, 0, (Mask.of(1), Mask.of(2))))
    n_layers = replica.stack.n_layers
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
