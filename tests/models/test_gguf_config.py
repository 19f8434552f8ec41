"""A GGUF file is read as the model of its checkpoint, with its scales, windows and caps, or it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.description import describe
from raysearch.models.gguf_content import ARCHITECTURES
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_gguf_pruning import TOKENS, by_llama_cpp, by_transformers
from tests.models.checkpoint_as_gguf import Writes, write_as_gguf
from tests.models.families import VOCABULARY
from tests.sentences import Sentences

N_LAYERS = 4
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
#: The tensor of divisors that llama.cpp's converter computes from Llama 3's parameters below.
_WAVELENGTHS = 2 * np.pi * 5e5 ** (np.arange(0, 16, 2) / 16)
_BETWEEN = ((64 / _WAVELENGTHS - 1) / 3).clip(0, 1)
DIVISORS = (1 / ((1 - _BETWEEN) / 32 + _BETWEEN)).astype(np.float32)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 5e3, "factor": 8.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 3e3}
QWEN35 = {
    "head_dim": 32,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
    "rope_parameters": {
        **LINEAR,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LONG = np.array([4 + place / 9 for place in range(8)], np.float32)
SHORT = np.array([1 + place / 9 for place in range(8)], np.float32)


def _yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(8.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def _linear(factor: float, writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(factor)


def _gemma3(writer: gguf.GGUFWriter) -> None:
    _linear(8.0, writer)
    writer.add_float32("gemma3.rope.freq_base_swa", 2e3)
    writer.add_array("gemma3.attention.sliding_window_pattern", [True, False] * 2)


def _phi3(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(8) / np.log(64))))
    writer.add_sliding_window(24)


def _qwen35(writer: gguf.GGUFWriter) -> None:
    _linear(4.0, writer)
    writer.add_rope_dimension_sections([4, 2, 2, 0])
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", [True, False, False, True])
    writer.add_full_attention_interval(2)
    writer.add_ssm_conv_kernel(3)
    writer.add_ssm_state_size(16)
    writer.add_ssm_group_count(2)
    writer.add_ssm_time_step_rank(2)
    writer.add_ssm_inner_size(32)


def _minimax(writer: gguf.GGUFWriter) -> None:
    _linear(4.0, writer)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


@dataclass(frozen=True)
class Case:
    """A checkpoint, and the metadata of its GGUF file besides the sizes."""

    model_type: str
    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)
    metadata: Writes = lambda _: None
    factors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    label: str = ""


CASES = [
    Case("llama", "llama", {"rope_parameters": LINEAR, "rms_norm_eps": 1e-3}, partial(_linear, 4.0), label="linear"),
    Case("llama", "llama", {"rope_parameters": YARN}, _yarn, label="yarn"),
    Case("llama", "llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}, "head_dim": 16},
         factors={"rope_freqs.weight": DIVISORS}, label="llama3"),
    Case("qwen2", "qwen2", {"rope_parameters": YARN}, _yarn),
    Case("qwen3", "qwen3", {"rope_parameters": YARN, "head_dim": 32}, _yarn),
    Case("qwen2_moe", "qwen2moe", {**EXPERTS, "shared_expert_intermediate_size": 48, "rope_parameters": LINEAR},
         partial(_linear, 4.0)),
    Case("qwen3_moe", "qwen3moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True, "rope_parameters": YARN}, _yarn),
    Case("gemma2", "gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0,
                              "final_logit_softcapping": 3.0, "sliding_window": 16}),
    Case("gemma3_text", "gemma3",
         {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16,
          "layer_types": ["sliding_attention", "full_attention"] * 2,
          "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 2e3}}}, _gemma3),
    Case("phi3", "phi3",
         {"vocab_size": 32_064, "sliding_window": 24, "original_max_position_embeddings": 64,
          "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": LONG.tolist(),
                              "short_factor": SHORT.tolist(), "factor": 8.0, "original_max_position_embeddings": 64}},
         _phi3, {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}),
    Case("falcon", "falcon", {"multi_query": True, "new_decoder_architecture": False, "rope_parameters": PLAIN}),
    Case("gpt2", "gpt2", {"n_inner": 96}),
    Case("starcoder2", "starcoder2", {"rope_parameters": PLAIN}),
    Case("stablelm", "stablelm", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
    Case("nemotron", "nemotron", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}}),
    Case("lfm2", "lfm2", {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False,
                          "rope_parameters": PLAIN}),
    Case("mamba", "mamba", {"state_size": 8}),
    Case("bloom", "bloom"),
    Case("qwen3_5_text", "qwen35", QWEN35, _qwen35),
    Case("qwen3_5_moe_text", "qwen35moe", {**QWEN35, **EXPERTS, "shared_expert_intermediate_size": 48}, _qwen35),
    Case("minimax_m2", "minimax-m2",
         {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
          "rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}}, _minimax),
    Case("phi3", "phi3", {"vocab_size": 32_064, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.75}},
         label="partly rotated"),
    Case("falcon", "falcon", {"multi_query": True, "new_decoder_architecture": False, "ffn_hidden_size": 96,
                              "rope_parameters": PLAIN}, label="narrow"),
]  # fmt: skip


def write(case: Case, folder: Path) -> tuple[Path, Path]:
    """Write the checkpoint and its GGUF file."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(case.model_type, **{**SIZES, **case.settings})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.1)
    checkpoint = folder / f"{case.architecture}{case.label}"
    model.save_pretrained(checkpoint)
    return checkpoint, write_as_gguf(checkpoint, case.architecture, case.metadata, case.factors)


def loss(model: PreTrainedModel) -> float:
    """Return the nats per token of two random texts of 96 tokens, longer than the windows and contexts above."""
    tokens = torch.tensor(np.random.default_rng(0).integers(2, VOCABULARY, (2, 96)))
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits.double()
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


@pytest.mark.slow
def test_a_file_has_the_loss_of_its_checkpoint(tmp_path: Path) -> None:
    assert {case.architecture for case in CASES} == {*ARCHITECTURES}

    def check(case: Case) -> None:
        checkpoint, file = write(case, tmp_path)
        expected = loss(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval())
        spec = ModelSpec("tiny", str(file), "float32", device="cpu")
        describe(spec)
        model = load_model(locate(spec))
        assert loss(model) == pytest.approx(expected, rel=1e-5)
        model.save_pretrained(tmp_path / "exported")
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32).eval()
        assert loss(exported) == pytest.approx(expected, rel=1e-5), "the export has the same loss"

    assert_each(CASES, check)


@pytest.mark.slow
def test_llama_cpp_computes_the_same_from_a_file(tmp_path: Path) -> None:
    def check(case: Case) -> None:
        _, file = write(case, tmp_path)
        model = load_model(locate(ModelSpec("tiny", str(file), "float32", device="cpu", attention="eager")))
        with torch.inference_mode():
            logits = model(torch.tensor([TOKENS])).logits[0, -1].double()
        expected = by_llama_cpp(file)
        assert np.abs(torch.log_softmax(logits, -1).numpy()[: len(expected)] - expected).max() < 5e-3
        if case.architecture == "llama":
            unscaled = by_transformers(file, Mask())
            assert np.abs(unscaled - expected).max() > 1e-2, "transformers alone reads another model"

    architectures = ("llama", "gemma2", "gemma3", "qwen3", "qwen35")
    assert_each([case for case in CASES if case.architecture in architectures], check)


REFUSALS = [
    Case("llama", "llama", metadata=lambda writer: writer.add_uint32("llama.expert_count", 8)),
    Case("llama", "llama", metadata=lambda writer: writer.add_float32("llama.logit_scale", 0.25)),
    Case("llama", "llama", factors={"rope_freqs.weight": DIVISORS[::-1]}),
    Case("llama", "llama", factors={"blk.0.attn_sinks.weight": DIVISORS}),
    Case("llama", "llama", metadata=lambda writer: writer.add_uint16("split.count", 2)),
    Case("llama", "llama", metadata=lambda writer: writer.add_float32("llama.rope.scaling.new_key", 2.0)),
    Case("qwen3_5_text", "qwen35", QWEN35),
    Case("qwen3_moe", "qwen3moe", {**EXPERTS, "head_dim": 16},
          metadata=lambda writer: writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)),
    Case("llama", "llama", metadata=lambda writer: writer.add_nextn_predict_layers(1)),
    Case("granite", "granite"),
]  # fmt: skip


def test_a_file_that_would_be_another_model_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    def check(case: Case) -> None:
        _, file = write(case, tmp_path)
        with sentences.refused(UserError):
            describe(ModelSpec("tiny", str(file), "float32", device="cpu"))

    assert_each(REFUSALS, check)


@pytest.mark.parametrize(("architecture", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_by_their_width(tmp_path: Path, architecture: str, n_layers: int) -> None:
    model_type = "gemma3_text" if architecture == "gemma3" else architecture
    sizes = {"num_hidden_layers": n_layers, "head_dim": 32, "hidden_size": 32, "intermediate_size": 8, "vocab_size": 64}
    _, file = write(Case(model_type, architecture, sizes), tmp_path)
    assert load_model(locate(ModelSpec("tiny", str(file), "float32", device="cpu"))).config.query_pre_attn_scalar == 8
