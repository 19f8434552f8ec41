"""The fused head: what a model's tail is found to be, and that its log-probabilities are the model's own.

Liger's kernel runs on GPUs, or in Triton's interpreter. `LigerDouble` computes the same in plain PyTorch, so that what
is around the kernel is tested anywhere.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import token_log_probs
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.cluster.actor import _check_versions, own_versions
from raysearch.cluster.options import ClusterOptions
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.evaluation.replica import make_replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.fused_head import find_fused_head
from raysearch.models.loading import describe
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure
from raysearch.models.verification import relative_gap, verify
from tests.cases import assert_each
from tests.models.families import FAMILIES, HYBRIDS, VOCABULARY

TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, size=(2, 9))
BATCH = Batch(TOKENS, np.arange(9) > np.zeros_like(TOKENS))


class LigerDouble(ModuleType):
    """Stands in for `liger_kernel.transformers.functional`, and notes how many tokens it is asked for."""

    def __init__(self) -> None:
        super().__init__("a test double of liger_kernel.transformers.functional")
        self.asked: list[int] = []
        self.off = 0.0  # what it adds by mistake

    def liger_fused_linear_cross_entropy(self, states, weight, tokens, bias, *, reduction, softcap, chunk_mem_const):
        assert reduction == "none" and chunk_mem_const >= 1 and not torch.is_grad_enabled()
        self.asked.append(len(tokens))
        logits = nn.functional.linear(states, weight, bias).float()
        logits = logits if softcap is None else softcap * (logits / softcap).tanh()
        return nn.functional.cross_entropy(logits, tokens, reduction="none") + self.off


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> LigerDouble:
    double = LigerDouble()
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", double)
    return double


@torch.no_grad()
def compare(model: PreTrainedModel) -> None:
    """Assert that log-probabilities are those of the model's own tail, and the same each time."""
    fused, plain = LayerStack(model, fused_head=True), LayerStack(model)
    verify(fused)
    states = predicting(plain.walk(plain.capture(BATCH.inputs), Mask.of(1)), BATCH.inputs)
    one, again, other = (token_log_probs(states, BATCH, stack) for stack in (fused, fused, plain))
    assert one.dtype == torch.float64 and torch.equal(one, again)
    assert relative_gap(one, other) <= 1e-6


def test_log_probabilities_are_those_of_the_models_own_tail(liger: LigerDouble) -> None:
    def check(family: str) -> None:
        liger.asked.clear()
        compare((FAMILIES | HYBRIDS)[family]())
        assert liger.asked[1:] == [BATCH.n_scored] * 2  # the first is the stack's own check

    assert_each([*FAMILIES, *HYBRIDS], check)


def test_finds_what_a_tail_does_after_its_norm() -> None:
    def check(family: str) -> None:
        stack = LayerStack(FAMILIES[family]().bfloat16())
        head = find_fused_head(stack.model, stack)
        assert (head.scale, head.cap, head.projection.bias is not None) == pytest.approx(
            {"granite": (1 / 4, None, False), "cohere": (1 / 16, None, False), "gemma2": (1.0, 30.0, False)}.get(
                family, (1.0, None, family == "phi")
            )
        )

    assert_each(["llama", "granite", "cohere", "gemma2", "phi"], check)


def test_is_right_for_what_is_scaled_and_capped_and_has_a_bias(liger: LigerDouble) -> None:
    model = FAMILIES["phi"]()
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda *call: 2.5 * (0.3 * call[2] / 2.5).tanh())
    before = dict(vars(head))
    compare(model)
    assert dict(vars(head)) == before


@pytest.mark.parametrize(
    "hook",
    [
        lambda head, args, logits: logits * logits.abs(),
        lambda head, args, logits: logits[..., :-1],
    ],
    ids=["squared", "shortened"],
)
def test_another_tail_is_refused(hook, liger: LigerDouble) -> None:
    model = FAMILIES["llama"]()
    model.get_output_embeddings().register_forward_hook(hook)
    with pytest.raises(UserError, match="other log-probabilities than llama itself .* use model.fused_head=false"):
        verify(LayerStack(model, fused_head=True))


def test_a_head_that_takes_more_than_the_last_hidden_state_is_refused(liger: LigerDouble) -> None:
    model = FAMILIES["llama"]()
    model.get_output_embeddings().register_forward_pre_hook(lambda head, args: (args[0] * 0.999,))
    with pytest.raises(UserError, match="other log-probabilities than llama itself"):
        verify(LayerStack(model, fused_head=True))


def test_a_kernel_that_is_wrong_here_is_refused(liger: LigerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    liger.off = 1e-2
    with pytest.raises(UserError, match="other log-probabilities than llama itself .* use model.fused_head=false"):
        verify(LayerStack(FAMILIES["llama"](), fused_head=True))

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")

    monkeypatch.setattr(liger, "liger_fused_linear_cross_entropy", fail)
    with pytest.raises(UserError, match="does not work for llama here .*Pointer .*use model.fused_head=false"):
        verify(LayerStack(FAMILIES["llama"](), fused_head=True))


def test_replicas_have_it(liger: LigerDouble, tmp_path: Path) -> None:
    FAMILIES["gemma2"]().save_pretrained(tmp_path)
    calibration = Calibration.create(PerplexityObjective(), BATCH, 1, {}, {})
    masks, losses = (Mask(), Mask.of(1)), []
    for on in (True, False):
        replica = make_replica(locate(ModelSpec("t", str(tmp_path), device="cpu", fused_head=on)), threads=1)
        replica.calibrations[calibration.fingerprint] = calibration
        liger.asked.clear()
        values = replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks)).values
        losses.append([float(values[mask].sum()) for mask in masks])
        assert liger.asked == ([8, 8] if on else [])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_gradients_take_the_models_own_tail(liger: LigerDouble) -> None:
    model = FAMILIES["llama"]()
    fused, plain = LayerStack(model, fused_head=True), LayerStack(model)
    found, wanted = (
        measure(Statistic.GATE_GRADIENTS, stack, [BATCH], PerplexityObjective()) for stack in (fused, plain)
    )
    assert found.tobytes() == wanted.tobytes()
    assert liger.asked == []


def test_is_refused_without_a_gpu_or_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    on_cpu, on_gpu = (
        locate(ModelSpec("t", str(tmp_path), device=device, fused_head=True)) for device in ("cpu", "cuda")
    )
    with pytest.raises(UserError, match="model.fused_head=true .* runs on the CPU; use model.fused_head=false"):
        ClusterOptions().check_model(on_cpu)
    with pytest.raises(UserError, match=r"needs liger-kernel; install it with: pip install liger-kernel"):
        ClusterOptions().check_model(on_gpu)


def test_a_node_needs_the_package_too() -> None:
    with pytest.raises(
        UserError, match=r"has liger-kernel .*, but the search runs with 0\.0; install the same on both"
    ):
        _check_versions({**own_versions(), "liger-kernel": "0.0"})
    _check_versions(own_versions())


def test_numbers_of_a_fused_head_are_other_numbers(tmp_path: Path) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    fused, plain = (describe(ModelSpec("t", str(tmp_path), device="cpu", fused_head=on)) for on in (True, False))
    assert fused.numerics == {**plain.numerics, "fused_head": True}
    assert "fused_head" not in plain.numerics


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="needs pip install liger-kernel")
def test_the_kernel_itself_gives_the_models_log_probabilities() -> None:
    """In Triton's interpreter, in a process of its own since Triton is told of it when it is imported."""
    script = """
import torch
from tests.models import test_fused_head as here
for family in ("llama", "granite", "phi", "mamba"):
    for dtype in (torch.float32, torch.bfloat16):
        here.compare((here.FAMILIES | here.HYBRIDS)[family]().to(dtype))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)
