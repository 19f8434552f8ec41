"""A model with a LoRA adapter is searched merged, and exported both merged and as an adapter of the pruned model."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.checkpoints.adapter import Adapter
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.description import describe
from raysearch.models.export import ExportResult, export_checkpoint
from raysearch.models.loading import fingerprint, load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers
from raysearch.models.verification import probe_logits, relative_gap
from tests.cases import assert_each
from tests.checkpoints.test_card import EVIDENCE
from tests.checkpoints.test_pruning import same_bytes, weights_of
from tests.models.families import _WIDTHS, FAMILIES, N_LAYERS, tiny
from tests.models.test_export import dense
from tests.recovery.test_checkpoint_files import write_pruned
from tests.sentences import Sentences

MASK = Mask.of(1)
_ATTENTION = ["q_proj", "v_proj"]
#: Settings of peft, each with what the renumbered config must have.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ends of names": ({"target_modules": _ATTENTION}, {"target_modules": _ATTENTION}),
    "all linear layers": ({"target_modules": "all-linear"}, {}),
    "DoRA with another scale": ({"target_modules": _ATTENTION, "use_dora": True, "use_rslora": True}, {}),
    "some layers": (
        {"target_modules": _ATTENTION, "layers_to_transform": [0, 1, 3], "layers_pattern": "layers"},
        {"layers_to_transform": [0, 2]},
    ),
    "one layer": ({"target_modules": _ATTENTION, "layers_to_transform": 2}, {"layers_to_transform": [1]}),
    "names with numbers": (
        {"target_modules": ["layers.1.mlp.up_proj", "layers.3.mlp.up_proj", "model.layers.0.mlp.up_proj"]},
        {"target_modules": ["layers.2.mlp.up_proj", "model.layers.0.mlp.up_proj"]},
    ),
    "names that begin with a number": (
        {"target_modules": ["1.mlp.up_proj", "3.mlp.up_proj"]},
        {"target_modules": ["model.layers.2.mlp.up_proj"]},
    ),
    "an expression": ({"target_modules": r".*\.(q|k)_proj"}, {"target_modules": r".*\.(q|k)_proj"}),
    "an expression with numbers": (
        {"target_modules": r".*layers\.[13]\.mlp\.(up|gate)_proj"},
        {"target_modules": ["model.layers.2.mlp.gate_proj", "model.layers.2.mlp.up_proj"]},
    ),
    "excluded layers": (
        {"target_modules": _ATTENTION, "exclude_modules": r".*layers\.[23]\..*"},
        {"target_modules": ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]},
    ),
    "ranks by layer": (
        {
            "target_modules": _ATTENTION,
            "rank_pattern": {"layers.3.self_attn.q_proj": 5, "v_proj": 3},
            "alpha_pattern": {r"layers\.[12]\..*": 32},
        },
        {
            "rank_pattern": {
                "model.layers.2.self_attn.q_proj": 5,
                **{f"model.layers.{layer}.self_attn.v_proj": 3 for layer in range(3)},
            },
            "alpha_pattern": {f"model.layers.1.self_attn.{name}": 32 for name in _ATTENTION},
        },
    ),
    "ranks by name": (
        {"target_modules": _ATTENTION, "rank_pattern": {"v_proj": 3}},
        {"rank_pattern": {"v_proj": 3}},
    ),
    "whole modules": (
        {"target_modules": _ATTENTION, "modules_to_save": ["lm_head", "layers.3.mlp", "layers.1.mlp"]},
        {"modules_to_save": ["lm_head", "layers.2.mlp"]},
    ),
    "an embedding": ({"target_modules": ["q_proj", "embed_tokens"]}, {}),
}


def write_lora(model: PreTrainedModel, folder: Path, **settings: Any) -> str:
    """Write an adapter with random values of a model, which is changed."""
    torch.manual_seed(1)
    with warnings.catch_warnings(action="ignore"):
        tuned = get_peft_model(model, LoraConfig(**{"r": 2, "init_lora_weights": False, **settings}))
        for name, parameter in tuned.named_parameters():
            if "modules_to_save" in name:
                parameter.data += 0.1 * torch.randn_like(parameter)
        tuned.save_pretrained(str(folder))
    return str(folder)


def with_lora(folder: Path, **settings: Any) -> ModelSpec:
    """Write a tiny Llama and an adapter of it."""
    spec = dense("llama", folder)
    return replace(spec, adapter=write_lora(FAMILIES["llama"](), folder / "lora", **settings))


def merged(base: Path | PreTrainedModel, adapter: Path) -> PreTrainedModel:
    """Return a model with an adapter as peft merges it. A model in memory is changed."""
    model = AutoModelForCausalLM.from_pretrained(base) if isinstance(base, Path) else base
    with warnings.catch_warnings(action="ignore"):
        tuned: Any = PeftModel.from_pretrained(model, str(adapter))
        return tuned.merge_and_unload().eval()


def test_the_adapter_is_merged_for_the_search(tmp_path: Path) -> None:
    spec = with_lora(tmp_path, target_modules=_ATTENTION, r=4)
    expected = probe_logits(merged(Path(spec.path), tmp_path / "lora"))
    loaded = load_model(locate(spec))
    assert torch.equal(probe_logits(loaded), expected)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert relative_gap(probe_logits(load_model(locate(replace(spec, adapter=None)))), expected) > 0.01
    assert describe(spec).parameters == describe(replace(spec, adapter=None)).parameters
    assert spec.label == "llama + lora"


def test_the_fingerprint_depends_on_the_adapter(tmp_path: Path) -> None:
    spec = with_lora(tmp_path, target_modules=_ATTENTION)
    write_lora(FAMILIES["llama"](), tmp_path / "other", target_modules=_ATTENTION, lora_alpha=3)
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in (tmp_path / "lora").glob("adapter_*"):
        (copied / file.name).write_bytes(file.read_bytes())
    adapters = [None, spec.adapter, str(tmp_path / "other"), str(copied)]
    fingerprints = [fingerprint(locate(replace(spec, adapter=adapter))) for adapter in adapters]
    assert len(set(fingerprints)) == 3
    assert fingerprints[1] == fingerprints[3]


def exported(spec: ModelSpec, out: Path) -> ExportResult:
    evidence = replace(EVIDENCE, adapter="lora")
    return export_checkpoint(spec, MASK, out, overwrite=False, evidence=evidence)


def test_an_export_has_the_merged_model_and_the_renumbered_adapter(tmp_path: Path) -> None:
    """peft loads the adapter on the pruned model without it, and gets the merged pruned model."""
    spec = with_lora(tmp_path, target_modules=_ATTENTION, modules_to_save=["lm_head"])
    report = exported(spec, tmp_path / "pruned")
    assert report.max_logit_difference == 0
    assert report.adapter == tmp_path / "pruned" / "adapter"
    exported(replace(spec, adapter=None), tmp_path / "base")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    assert relative_gap(probe_logits(merged(tmp_path / "base", report.adapter)), probe_logits(loaded)) <= 1e-5
    card, base_card = ((tmp_path / name / "README.md").read_text() for name in ("pruned", "base"))
    assert "The adapter lora is merged into the weights." in card
    assert f"raysearch export {EVIDENCE.search_id} --remove 1 --without-adapter --out pruned-base" in card
    assert "The losses are those with the adapter lora, which this model does not have." in base_card
    assert "## The adapter" not in base_card


@pytest.mark.slow
def test_the_renumbered_adapter_fits_the_pruned_model(tmp_path: Path) -> None:
    """Whatever its config names, its tensors keep their bytes, and peft makes the same model of it."""

    def check(name: str) -> None:
        settings, config = CONFIGS[name]
        folder = tmp_path / name
        write_lora(FAMILIES["llama"](), folder / "lora", **settings)
        names = LayerNames("model.layers", N_LAYERS)
        adapter = Adapter.open(folder / "lora").pruned(names, KeptBlocks.whole([0, 2, 3], N_LAYERS))
        assert adapter is not None
        adapter.write(folder / "pruned")
        base = remove_layers(LayerStack(FAMILIES["llama"]()), MASK)
        expected = remove_layers(LayerStack(merged(FAMILIES["llama"](), folder / "lora")), MASK)
        assert relative_gap(probe_logits(merged(base, folder / "pruned")), probe_logits(expected)) <= 1e-5
        written = json.loads((folder / "pruned" / "adapter_config.json").read_text())
        for key, value in config.items():
            assert (sorted(written[key]) if isinstance(value, list) else written[key]) == (
                sorted(value) if isinstance(value, list) else value
            )
        assert written["base_model_name_or_path"] is None
        before = load_file(folder / "lora" / "adapter_model.safetensors")
        after = load_file(folder / "pruned" / "adapter_model.safetensors")
        for tensor_name, values in before.items():
            number = re.search(r"\.layers\.(\d)\.", tensor_name)
            layer = None if number is None else {"0": 0, "1": None, "2": 1, "3": 2}[number[1]]
            if number is None or layer is not None:
                new_name = re.sub(r"(?<=\.layers\.)\d", str(layer), tensor_name)
                assert same_bytes(after.pop(new_name), values)
        assert not after

    assert_each(CONFIGS, check)


@pytest.mark.parametrize("kind", ["qwen3_5", "glm4_moe"])
def test_only_what_the_adapter_changes_differs_from_the_files(kind: str, tmp_path: Path) -> None:
    """Towers, heads that predict further tokens and experts that the files divide otherwise stay as they are."""
    targets: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"]}
    if kind == "glm4_moe":
        targets |= {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    base = write_pruned(tmp_path / "dense", kind)
    adapter = write_lora(AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora", **targets)
    spec = ModelSpec(kind, str(base), adapter=adapter)
    assert exported(spec, tmp_path / "pruned").max_logit_difference == 0
    exported(replace(spec, adapter=None), tmp_path / "base")
    expected, written = weights_of(tmp_path / "base"), weights_of(tmp_path / "pruned")
    assert expected.keys() == written.keys()
    changed = [name for name in expected if not same_bytes(expected[name], written[name])]
    assert changed
    assert not [name for name in changed if "visual" in name or "mtp" in name or ".layers.3." in name]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    gap = relative_gap(probe_logits(merged(tmp_path / "base", tmp_path / "pruned/adapter")), probe_logits(loaded))
    assert gap <= 1e-5
    assert "mergekit.yaml" not in {file.name for file in (tmp_path / "pruned").iterdir()}


@pytest.mark.parametrize(
    ("dtype_of_files", "dtype"), [("bfloat16", "auto"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_another_dtype_does_not_change_what_is_merged(tmp_path: Path, dtype_of_files: str, dtype: str) -> None:
    """The export has the dtype of the files, and is the model that was searched in another dtype."""
    base = tiny("llama", **_WIDTHS).to(getattr(torch, dtype_of_files))
    base.save_pretrained(tmp_path / "dense")
    adapter = write_lora(base, tmp_path / "lora", target_modules=_ATTENTION)
    report = exported(ModelSpec("llama", str(tmp_path / "dense"), dtype, adapter=adapter), tmp_path / "pruned")
    assert report.max_logit_difference == 0
    exported(ModelSpec("llama", str(tmp_path / "dense")), tmp_path / "base")
    expected = merged(tmp_path / "base", tmp_path / "pruned/adapter").state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").state_dict()
    assert all(same_bytes(loaded[name], values) for name, values in expected.items())
    assert {values.dtype for values in expected.values()} == {getattr(torch, dtype_of_files)}


def test_a_gguf_file_takes_an_adapter_too(gguf: Path, tmp_path: Path) -> None:
    spec = ModelSpec("tiny", str(gguf), "float32", cache=tmp_path / "cache")
    adapter = write_lora(load_model(locate(spec)), tmp_path / "lora", target_modules=_ATTENTION)
    for cache in (None, tmp_path / "cache"):
        with_adapter = replace(spec, adapter=adapter, cache=cache)
        assert exported(with_adapter, tmp_path / f"pruned-{cache is None}").max_logit_difference == 0
    exported(spec, tmp_path / "base")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned-True").eval()
    gap = relative_gap(probe_logits(merged(tmp_path / "base", tmp_path / "pruned-True/adapter")), probe_logits(loaded))
    assert gap <= 1e-5


def test_an_adapter_of_removed_layers_leaves_nothing(tmp_path: Path) -> None:
    spec = with_lora(tmp_path, target_modules=_ATTENTION, layers_to_transform=[1])
    assert exported(spec, tmp_path / "pruned").adapter is None
    assert not (tmp_path / "pruned" / "adapter").exists()
    assert "nothing of it is left" in (tmp_path / "pruned" / "README.md").read_text()


def test_what_is_no_adapter_of_the_model_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    spec = with_lora(tmp_path, target_modules=_ATTENTION)
    folder = tmp_path / "lora"
    config = json.loads((folder / "adapter_config.json").read_text())
    weights = load_file(folder / "adapter_model.safetensors")

    def write(name: str, settings: dict[str, Any] | None = None, tensors: Any = None) -> str:
        other = tmp_path / name
        other.mkdir()
        (other / "adapter_config.json").write_text(json.dumps({**config, **(settings or {})}))
        if tensors is not None:
            save_file(tensors, other / "adapter_model.safetensors", {"format": "pt"})
        return str(other)

    def other_model(name: str, kind: str, **sizes: Any) -> str:
        return write_lora(tiny(kind, **sizes), tmp_path / name, target_modules=_ATTENTION)

    pickled = Path(write("pickled"))
    (pickled / "adapter_model.bin").write_bytes(b"")
    loha = get_peft_model(FAMILIES["llama"](), LoHaConfig(r=2, target_modules=_ATTENTION))
    loha.save_pretrained(str(tmp_path / "loha"))
    first = next(iter(weights))
    cases = {
        "no folder": str(tmp_path / "missing"),
        "a model": spec.path,
        "another kind": str(tmp_path / "loha"),
        "replicated": write("replicated", {"layer_replication": [[0, 2], [1, 4]]}, weights),
        "pickled": str(pickled),
        "no weights": write("no-weights"),
        "deeper": other_model("deeper", "llama", **(_WIDTHS | {"num_hidden_layers": 6})),
        "wider": other_model("wider", "llama", **(_WIDTHS | {"hidden_size": 64})),
        "other modules": write("modules", {"target_modules": ["c_attn"]}, weights),
        "incomplete": write("incomplete", None, {name: weights[name] for name in weights if name != first}),
    }
    for case, adapter in cases.items():
        with sentences.refused(UserError, case):
            describe(replace(spec, adapter=adapter))


def test_tied_weights_and_quantised_ones_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    """No checkpoint of the same model can hold them once they are merged."""
    tiny("llama", **_WIDTHS, tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    model = tiny("llama", **_WIDTHS)
    adapter = write_lora(model, tmp_path / "lora", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with sentences.refused(UserError):
        describe(ModelSpec("tied", str(tmp_path / "tied"), adapter=adapter))
    spec = with_lora(tmp_path / "plain", target_modules=_ATTENTION)
    file = Path(spec.path) / "config.json"
    quantised = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantised}))
    with sentences.refused(UserError):
        describe(spec)


def test_the_changed_parameters_are_those_of_the_targets(tmp_path: Path) -> None:
    spec = with_lora(tmp_path, target_modules=_ATTENTION)
    adapter = Adapter.open(Path(str(spec.adapter)))
    names = [name for name, _ in FAMILIES["llama"]().named_parameters()]
    assert {name.split(".")[-2] for name in adapter.parameters_in(names)} == set(_ATTENTION)
    assert len(adapter.parameters_in(names)) == 2 * N_LAYERS
