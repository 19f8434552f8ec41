"""A checkpoint whose weights hold the scales at the cuts of its mask is the scaled model, for any program."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.core.mask import Mask
from raysearch.core.scale import Scale
from raysearch.errors import UnsupportedModelError
from raysearch.models.export import ExportResult, export_checkpoint
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_card import EVIDENCE
from tests.models.families import FAMILIES
from tests.sentences import Sentences

MASK = Mask.of(0, 2)
SCALES = (Scale(0, 1, 1.7), Scale(2, 3, 0.8))
TOKENS = torch.arange(3, 15).reshape(2, 6)
#: The output weights of a layer, by family.
CHANGED = {
    "llama": {"self_attn.o_proj.weight", "mlp.down_proj.weight"},
    "gemma2": {"post_attention_layernorm.weight", "post_feedforward_layernorm.weight"},
    "gpt2": {"attn.c_proj.weight", "attn.c_proj.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"},
    "mixtral": {"self_attn.o_proj.weight", *(f"block_sparse_moe.experts.{expert}.w2.weight" for expert in range(4))},
}


def exported(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> ExportResult:
    model: Any = FAMILIES[family]()
    model.to(dtype).save_pretrained(folder / "dense")
    spec = ModelSpec(family, str(folder / "dense"))
    return export_checkpoint(spec, MASK, folder / "pruned", overwrite=False, evidence=EVIDENCE, scales=SCALES)


def scaled_logits(model: Any) -> Tensor:
    """Return the logits of a plain forward without the mask's layers, whose states are multiplied at the cuts."""
    pruned: Any = copy.deepcopy(model)
    stack: PreTrainedModel = pruned.base_model
    name = "h" if hasattr(stack, "h") else "layers"
    layers = getattr(stack, name)
    for scale in SCALES:
        layers[scale.stop].register_forward_pre_hook(lambda _, args, factor=scale.factor: (args[0] * factor, *args[1:]))
    setattr(stack, name, torch.nn.ModuleList(layer for index, layer in enumerate(layers) if index not in MASK))
    pruned.config.num_hidden_layers = 2
    if layer_types := getattr(pruned.config, "layer_types", None):
        pruned.config.layer_types = [kind for index, kind in enumerate(layer_types) if index not in MASK]
    with torch.no_grad():
        logits: Tensor = pruned(TOKENS, use_cache=False).logits
    return logits


def test_plain_transformers_runs_the_scaled_model(tmp_path: Path) -> None:
    def check(family: str) -> None:
        folder = tmp_path / family
        report = exported(family, folder)
        reloaded: Any = AutoModelForCausalLM.from_pretrained(folder / "pruned")
        with torch.no_grad():
            logits = reloaded(TOKENS, use_cache=False).logits
        torch.testing.assert_close(logits, scaled_logits(FAMILIES[family]()), rtol=1e-2, atol=1e-3)
        assert report.max_logit_difference is not None
        assert report.max_logit_difference < 1e-3

    assert_each(CHANGED, check)


def test_only_the_output_weights_after_a_cut_differ_from_the_pruned_checkpoint(tmp_path: Path) -> None:
    def check(family: str) -> None:
        folder = tmp_path / family
        report = exported(family, folder)
        spec = ModelSpec(family, str(folder / "dense"))
        export_checkpoint(spec, MASK, folder / "unscaled", overwrite=False, evidence=EVIDENCE)
        scaled, unscaled = (load_file(folder / name / "model.safetensors") for name in ("pruned", "unscaled"))
        assert scaled.keys() == unscaled.keys()
        changed = {name for name in scaled if not torch.equal(scaled[name], unscaled[name])}
        unchanged_zeros = {name for name in report.changed if not scaled[name].any()}
        assert {*report.changed} - unchanged_zeros == changed
        ends = {name.split(".", 3)[-1] for name in report.changed}
        assert ends == CHANGED[family]
        card = (folder / "pruned" / "README.md").read_text()
        assert "{0} ×1.7, {2} ×0.8" in card
        assert all(name in card for name in report.changed)
        assert not (folder / "pruned" / "mergekit.yaml").exists()

    assert_each(CHANGED, check)


def test_the_weights_of_a_checkpoint_of_16_bits_stay_of_16_bits(tmp_path: Path) -> None:
    report = exported("llama", tmp_path, torch.bfloat16)
    assert {tensor.dtype for tensor in load_file(tmp_path / "pruned" / "model.safetensors").values()} == {
        torch.bfloat16
    }
    assert report.max_logit_difference is not None
    assert 0 < report.max_logit_difference < 5e-2


def test_a_model_whose_weights_can_hold_no_scales_is_not_exported(tmp_path: Path, sentences: Sentences) -> None:
    for family in ("falcon", "olmo2"):
        with sentences.refused(UnsupportedModelError, case=family):
            exported(family, tmp_path / family)
        assert not (tmp_path / family / "pruned").exists()
