"""The fused head: the measured scale and cap of a model's tail, and log-probabilities equal to the model's.

Liger's kernel runs on GPUs, or in Triton's interpreter. `LigerDouble` computes the same in plain PyTorch, so that the
code around the kernel is tested on every machine.
"""

import importlib.util
import os
import re
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
from raysearch.cluster.actor import _check_versions, installed_versions
from raysearch.cluster.options import ClusterOptions
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.evaluation.replica import make_replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.description import describe
from raysearch.models.fused_head import find_fused_head
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure
from raysearch.models.verification import relative_gap, verify
from tests.cases import assert_each
from tests.models.families import FAMILIES, HYBRIDS, STREAMS, VOCABULARY
from tests.sentences import Sentences

TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, size=(2, 9))
BATCH = Batch(TOKENS, np.arange(9) > np.zeros_like(TOKENS))


class LigerDouble(ModuleType):
    """Replaces `liger_kernel.transformers.functional`, and records the number of tokens of each call."""

    def __init__(self) -> None:
        super().__init__("a test double of liger_kernel.transformers.functional")
        self.n_tokens: list[int] = []
        self.off = 0.0  # what it adds by mistake

    def liger_fused_linear_cross_entropy(self, states, weight, tokens, bias, *, reduction, softcap, chunk_mem_const):
        assert reduction == "none"
        assert chunk_mem_const >= 1
        assert not torch.is_grad_enabled()
        self.n_tokens.append(len(tokens))
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
    """Assert that log-probabilities are those of the model's own tail, and have the same bits each time."""
    fused = LayerStack(model, fused_head=True)
    plain = LayerStack(model)
    verify(fused)
    states = predicting(plain.walk(plain.capture(BATCH.inputs), Mask.of(1)), BATCH.inputs)
    log_probs = token_log_probs(states, BATCH, fused)
    assert log_probs.dtype == torch.float64
    assert torch.equal(log_probs, token_log_probs(states, BATCH, fused))
    assert relative_gap(log_probs, token_log_probs(states, BATCH, plain)) <= 1e-6


def test_log_probabilities_are_those_of_the_models_own_tail(liger: LigerDouble) -> None:
    def check(family: str) -> None:
        liger.n_tokens.clear()
        compare((FAMILIES | HYBRIDS | STREAMS)[family]())
        assert liger.n_tokens[1:] == [BATCH.n_scored] * 2  # the first is the stack's own check

    assert_each([*FAMILIES, *HYBRIDS, *STREAMS], check)


def test_the_scale_and_cap_of_a_tail_are_measured() -> None:
    def check(family: str) -> None:
        stack = LayerStack(FAMILIES[family]().bfloat16())
        head = find_fused_head(stack.model, stack, (stack.model.config.hidden_size,))
        assert (head.scale, head.cap, head.projection.bias is not None) == pytest.approx(
            {"granite": (1 / 4, None, False), "cohere": (1 / 16, None, False), "gemma2": (1.0, 30.0, False)}.get(
                family, (1.0, None, family == "phi")
            )
        )

    assert_each(["llama", "granite", "cohere", "gemma2", "phi"], check)


def test_a_scaled_and_capped_head_with_a_bias_is_exact(liger: LigerDouble) -> None:
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
def test_another_tail_is_refused(hook, liger: LigerDouble, sentences: Sentences) -> None:
    model = FAMILIES["llama"]()
    model.get_output_embeddings().register_forward_hook(hook)
    with sentences.refused(UserError):
        verify(LayerStack(model, fused_head=True))


def test_a_head_with_another_input_than_the_last_hidden_state_is_refused(
    liger: LigerDouble, sentences: Sentences
) -> None:
    model = FAMILIES["llama"]()
    model.get_output_embeddings().register_forward_pre_hook(lambda head, args: (args[0] * 0.999,))
    with sentences.refused(UserError):
        verify(LayerStack(model, fused_head=True))


def test_a_kernel_that_is_wrong_here_is_refused(
    liger: LigerDouble, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    liger.off = 1e-2
    with sentences.refused(UserError):
        verify(LayerStack(FAMILIES["llama"](), fused_head=True))

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")

    monkeypatch.setattr(liger, "liger_fused_linear_cross_entropy", fail)
    with sentences.refused(UserError):
        verify(LayerStack(FAMILIES["llama"](), fused_head=True))


def test_replicas_use_the_fused_head(liger: LigerDouble, tmp_path: Path) -> None:
    FAMILIES["gemma2"]().save_pretrained(tmp_path)
    calibration = Calibration.create(PerplexityObjective(), BATCH, 1, {}, {})
    masks = (Mask(), Mask.of(1))
    losses = []
    for on in (True, False):
        replica = make_replica(locate(ModelSpec("t", str(tmp_path), device="cpu", fused_head=on)), threads=1)
        replica.calibrations[calibration.fingerprint] = calibration
        liger.n_tokens.clear()
        values = replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks)).values
        losses.append([float(values[mask].sum()) for mask in masks])
        assert liger.n_tokens == ([8, 8] if on else [])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_gradients_use_the_models_own_tail(liger: LigerDouble) -> None:
    model = FAMILIES["llama"]()
    rows = measure(Statistic.GATE_GRADIENTS, LayerStack(model, fused_head=True), [BATCH], PerplexityObjective())
    expected = measure(Statistic.GATE_GRADIENTS, LayerStack(model), [BATCH], PerplexityObjective())
    assert rows.tobytes() == expected.tobytes()
    assert liger.n_tokens == []


def test_a_fused_head_is_refused_without_a_gpu_or_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    on_cpu, on_gpu = (
        locate(ModelSpec("t", str(tmp_path), device=device, fused_head=True)) for device in ("cpu", "cuda")
    )
    with sentences.refused(UserError):
        ClusterOptions().check_model(on_cpu)
    with sentences.refused(UserError):
        ClusterOptions().check_model(on_gpu)


def test_a_node_needs_the_package_too(sentences: Sentences) -> None:
    sentences.hide(re.compile(r"(?<=the node )\S+"), "machine")
    with sentences.refused(UserError):
        _check_versions({**installed_versions(), "liger-kernel": "0.0"})
    _check_versions(installed_versions())


def test_a_fused_head_changes_the_numerics(tmp_path: Path) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    fused, plain = (describe(ModelSpec("t", str(tmp_path), device="cpu", fused_head=on)) for on in (True, False))
    assert fused.numerics == {**plain.numerics, "fused_head": True}
    assert "fused_head" not in plain.numerics


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="needs pip install liger-kernel")
def test_the_kernel_itself_gives_the_models_log_probabilities() -> None:
    """The kernel runs in Triton's interpreter, which must be chosen before Triton is imported, so in a new process."""
    script = """
import torch
from tests.models import test_fused_head as module
for family in ("llama", "granite", "phi", "mamba"):
    for dtype in (torch.float32, torch.bfloat16):
        module.compare((module.FAMILIES | module.HYBRIDS)[family]().to(dtype))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)
