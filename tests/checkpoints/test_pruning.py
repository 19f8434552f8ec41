"""A pruned checkpoint has every tensor and every file of its source that belongs to no removed layer, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.pruning import PrunedCheckpoint
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.export import write_files
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.models.families import _DELTA, _HEAD, _ROUTED, _VISION, _WIDTHS, N_LAYERS, tiny
from tests.models.test_export import exported
from tests.sentences import Sentences

_KEPT = KeptBlocks.whole([0, 2, 3], N_LAYERS)  # of four layers
#: Their new numbers.
_NUMBERS = {0: 0, 2: 1, 3: 2}
_SIX = {"hidden_size": 32, "intermediate_size": 48, "depth": N_LAYERS, "num_heads": 4, "out_hidden_size": 32}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
_IMAGES = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
_AUDIO = {"num_mel_bins": 8, "max_source_positions": 16}
#: Models that read more than text, for which transformers has no causal class.
MULTIMODAL: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {"model_type": "llama", **_WIDTHS},
        "vision_config": {"model_type": "clip_vision_model", **_VISION},
        "image_token_index": 5,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **_HEAD, **_WIDTHS},
        "vision_config": {"model_type": "pixtral", **_VISION},
        "image_token_index": 5,
    },
    "qwen2_5_vl": {"text_config": {**_WIDTHS, **_MROPE}, "vision_config": _SIX, **_IMAGES},
    "internvl": {
        "text_config": {"model_type": "qwen2", **_WIDTHS},
        "vision_config": {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
        "image_token_id": 5,
    },
    "smolvlm": {
        "text_config": {"model_type": "llama", **_WIDTHS},
        "vision_config": _VISION,
        "image_token_id": 5,
        "scale_factor": 2,
    },
    "voxtral": {
        "text_config": {"model_type": "llama", **_HEAD, **_WIDTHS},
        "audio_config": {**_VISION, **_AUDIO},
        "audio_token_id": 5,
    },
}


def write_model(folder: Path, kind: str, settings: dict[str, Any]) -> ModelSpec:
    """Write a tiny model that reads more than text."""
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.1)
    model.eval().save_pretrained(folder)
    return ModelSpec(kind, str(folder))


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: values for file in folder.glob("*.safetensors") for name, values in load_file(file).items()}


def same_bytes(values: Tensor, others: Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bytes."""
    as_bytes = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (values, others)]
    return values.dtype == others.dtype and values.shape == others.shape and torch.equal(*as_bytes)


def assert_pruned(source: Path, folder: Path, stack: str, numbers: Mapping[int, int] = _NUMBERS) -> None:
    """Assert that a folder has all tensors of the kept layers, and all others, byte for byte.

    Args:
        source: The dense model.
        folder: The pruned checkpoint.
        stack: The name of the list of layers.
        numbers: The new number of each kept layer.
    """
    expected = {}
    for name, values in weights_of(source).items():
        number, _, part = name.removeprefix(f"{stack}.").partition(".")
        if not name.startswith(f"{stack}.") or not number.isdecimal():
            expected[name] = values
        elif int(number) >= N_LAYERS:
            expected[f"{stack}.{int(number) - N_LAYERS + len(numbers)}.{part}"] = values
        elif int(number) in numbers:
            expected[f"{stack}.{numbers[int(number)]}.{part}"] = values
    written = weights_of(folder)
    assert written.keys() == expected.keys()
    assert all(same_bytes(written[name], values) for name, values in expected.items())


def prune(source: Path, folder: Path) -> None:
    folder.mkdir()
    write_files(folder, source, _KEPT, trust_remote_code=False)


def test_models_that_see_or_hear_keep_their_towers(tmp_path: Path) -> None:
    """They load whole by their own class, with the same logits on text."""

    def check(kind: str) -> None:
        spec = write_model(tmp_path / kind, kind, MULTIMODAL[kind])
        (tmp_path / kind / "preprocessor_config.json").write_text('{"size": 28}')
        out = tmp_path / f"{kind}-pruned"
        assert exported(spec, Mask.of(1), out).max_logit_difference == 0
        stack = next(
            name.partition(".1.")[0]
            for name in weights_of(out)
            if ".1.self_attn" in name and not any(part in name for part in ("vision", "visual", "audio"))
        )
        assert_pruned(Path(spec.path), out, stack)
        assert (out / "preprocessor_config.json").read_text() == '{"size": 28}'
        before, after = (json.loads((folder / "config.json").read_text()) for folder in (Path(spec.path), out))
        for part in {"vision_config", "audio_config"} & before.keys():
            assert after[part].items() >= before[part].items(), "only keys of the other version may be added"

    assert_each(MULTIMODAL, check)


def test_layers_that_are_given_images_must_stay(tmp_path: Path, sentences: Sentences) -> None:
    settings = {"text_config": {**_WIDTHS, **_HEAD, **_MROPE}, **_IMAGES}
    settings["vision_config"] = {**_SIX, "deepstack_visual_indexes": [0, 1]}
    spec = write_model(tmp_path / "dense", "qwen3_vl", settings)
    assert exported(spec, Mask.of(2), tmp_path / "pruned").max_logit_difference == 0
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(1), tmp_path / "other")


def add_heads(folder: Path, rename: Callable[[str], str], last: str) -> None:
    """Add a head that predicts a further token: the last layer's tensors under other names, and its own projection."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    heads = {rename(name): values.clone() for name, values in weights.items() if name.startswith(last)}
    heads[rename(f"{last}eh_proj.weight")] = torch.randn(32, 64)
    save_file({**weights, **heads}, file, metadata={"format": "pt"})


def test_heads_that_predict_further_tokens_follow_the_kept_layers(tmp_path: Path) -> None:
    """Their tensors have the number after the last layer, or names of their own. transformers does not load them."""
    last = f"model.layers.{N_LAYERS - 1}."
    mla = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    routed = {**_WIDTHS, **_ROUTED, "first_k_dense_replace": 1}
    delta = {**_WIDTHS, **_HEAD, **_DELTA, "layer_types": ["linear_attention", "full_attention"] * 2}
    cases: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
        "glm4_moe": ({**routed, **_HEAD}, f"model.layers.{N_LAYERS}.", {"num_nextn_predict_layers": 1}),
        "deepseek_v3": (
            {**routed, **mla, "num_key_value_heads": 4},
            f"model.layers.{N_LAYERS}.",
            {"num_nextn_predict_layers": 1},
        ),
        "qwen3_5_text": (delta, "mtp.layers.0.", {"mtp_num_hidden_layers": 1}),
    }

    def check(kind: str) -> None:
        settings, first, keys = cases[kind]
        dense = tmp_path / kind
        tiny(kind, **settings).save_pretrained(dense)
        add_heads(dense, lambda name: name.replace(last, first), last)
        config = json.loads((dense / "config.json").read_text())
        (dense / "config.json").write_text(json.dumps({**config, **keys}))
        out = tmp_path / f"{kind}-pruned"
        assert exported(ModelSpec(kind, str(dense)), Mask.of(1), out).max_logit_difference == 0
        assert_pruned(dense, out, "model.layers")
        assert json.loads((out / "config.json").read_text()).items() >= keys.items()

    assert_each(cases, check)


def test_a_count_of_heads_without_their_tensors_becomes_zero(tmp_path: Path) -> None:
    """Fine-tuning by transformers loses the heads, and llama.cpp then looks for them."""
    tiny("glm4_moe", **_WIDTHS, **_HEAD, **_ROUTED, first_k_dense_replace=1).save_pretrained(tmp_path / "dense")
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    (tmp_path / "dense" / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    exported(ModelSpec("glm", str(tmp_path / "dense")), Mask.of(1), tmp_path / "pruned")
    assert json.loads((tmp_path / "pruned" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_shards_stay_shards_of_the_same_size(tmp_path: Path) -> None:
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "dense", max_shard_size="30KB")
    files = sorted((tmp_path / "dense").glob("*.safetensors"))
    assert len(files) > 2
    prune(tmp_path / "dense", tmp_path / "pruned")
    written = sorted((tmp_path / "pruned").glob("*.safetensors"))
    assert 1 < len(written) <= len(files)
    assert max(file.stat().st_size for file in written) <= max(file.stat().st_size for file in files) + 2048
    index = json.loads((tmp_path / "pruned" / "model.safetensors.index.json").read_text())
    assert {*index["weight_map"].values()} == {file.name for file in written}
    assert_pruned(tmp_path / "dense", tmp_path / "pruned", "model.layers")
    weights = weights_of(tmp_path / "pruned")
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in weights.values())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").state_dict()
    assert all(torch.equal(loaded[name], values) for name, values in weights.items())


def test_other_files_are_copied_and_other_weights_are_not(tmp_path: Path) -> None:
    dense = tmp_path / "dense"
    tiny("llama", **_WIDTHS).save_pretrained(dense)
    kept_files = (
        "LICENSE",
        "chat_template.jinja",
        "code.py",
        "parts/more.py",
        "video_preprocessor_config.json",
        "vocab.txt",
    )
    other_files = (
        "consolidated.safetensors",
        "pytorch_model.bin",
        "original/params.json",
        "onnx/model.onnx",
        "README.md",
        ".env",
        "checkpoint-500/trainer_state.json",
    )
    for name in (*kept_files, *other_files):
        (dense / name).parent.mkdir(exist_ok=True)
        (dense / name).write_bytes(name.encode())
    prune(dense, tmp_path / "pruned")
    files = {
        file.relative_to(tmp_path / "pruned").as_posix() for file in (tmp_path / "pruned").rglob("*") if file.is_file()
    }
    assert files == {*kept_files, "config.json", "generation_config.json", "model.safetensors"}
    assert all((tmp_path / "pruned" / name).read_bytes() == name.encode() for name in kept_files)


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "dense", max_shard_size="30KB")
    index = tmp_path / "dense" / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    absent = {"model.layers.9.weight": next(iter(whole["weight_map"].values()))}
    index.write_text(json.dumps({**whole, "weight_map": {**whole["weight_map"], **absent}}))
    with sentences.refused(UserError):
        Checkpoint.open(tmp_path / "dense")
    index.write_text("[]")
    with sentences.refused(UserError):
        Checkpoint.open(tmp_path / "dense")


def test_a_model_larger_than_the_memory_is_compared_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("raysearch.models.export_proof.memory_bytes", lambda: 2**30)
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "dense")
    header = "license: other\nlicense_name: own\nlicense_link: LICENSE\nbase_model: x/y\n"
    (tmp_path / "dense" / "README.md").write_text(f"---\n{header}---\n# Model\n")
    spec = ModelSpec("llama", str(tmp_path / "dense"))
    report = exported(spec, Mask.of(1), tmp_path / "pruned")
    assert report.max_logit_difference is None
    assert report.parameters == AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").num_parameters()
    card = (tmp_path / "pruned" / "README.md").read_text()
    assert "not run, since it does not fit into the memory. Every tensor was compared with its source" in card
    fields = ModelCard(card).data.to_dict()
    assert (fields["license"], fields["license_name"], fields["license_link"]) == ("other", "own", "LICENSE")
    assert "base_model" not in fields
    with sentences.refused(UserError):
        exported(spec, Mask.of(1), tmp_path / "other", prompt="hello")


def test_a_damaged_copy_is_noticed(tmp_path: Path, sentences: Sentences) -> None:
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "dense")
    prune(tmp_path / "dense", tmp_path / "pruned")
    pruned = PrunedCheckpoint.of(Checkpoint.open(tmp_path / "dense"), _KEPT)
    pruned.check_written(tmp_path / "pruned")
    file = tmp_path / "pruned" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with sentences.refused(UserError):
        pruned.check_written(tmp_path / "pruned")


def test_a_config_of_other_weights_is_refused_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("raysearch.models.export_proof.memory_bytes", lambda: 2**30)
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "dense")
    monkeypatch.setattr("raysearch.checkpoints.config_file.shrink_config", lambda *_: None)
    monkeypatch.setattr("raysearch.checkpoints.pruning.cut_config", lambda config, *_: config)
    with sentences.refused(UnsupportedModelError):
        exported(ModelSpec("llama", str(tmp_path / "dense")), Mask.of(1), tmp_path / "pruned")


_WITHOUT_TORCH = """
import sys
from pathlib import Path
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.models.export import write_files
from raysearch.models.meta_load import load_without_values
source, folder = map(Path, sys.argv[1:])
write_files(folder, source, KeptBlocks.whole([0, 2, 3], 4), trust_remote_code=False)
load = load_without_values(folder, trust_remote_code=False)
assert load.auto_class == "AutoModelForCausalLM" and not any(load.names.values()), load
assert not {"torch", "transformers"} & set(sys.modules), "they take seconds to import"
"""


def test_files_are_written_without_torch(tmp_path: Path) -> None:
    """transformers reads the config in another process, with the same result, and compares the weights with it."""
    settings = {**_WIDTHS, **_HEAD, "sliding_window": 4}
    tiny("gemma3_text", **settings, layer_types=["sliding_attention", "full_attention"] * 2).save_pretrained(
        tmp_path / "dense"
    )
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    del config["layer_types"]  # as in files of transformers 4, which derives it from a period
    (tmp_path / "dense" / "config.json").write_text(json.dumps({**config, "sliding_window_pattern": 2}))
    prune(tmp_path / "dense", tmp_path / "here")
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path / "dense"), str(tmp_path / "there")]
    subprocess.run(command, check=True)
    for file in (tmp_path / "here").iterdir():
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes(), file.name
    written = json.loads((tmp_path / "there" / "config.json").read_text())
    assert written["layer_types"] == ["sliding_attention", "sliding_attention", "full_attention"]


def test_the_plan_names_all_tensors_before_anything_is_written(tmp_path: Path) -> None:
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path)
    pruned = PrunedCheckpoint.of(Checkpoint.open(tmp_path), _KEPT)
    assert len(pruned.tensors) == len(weights_of(tmp_path)) - 9
    assert not pruned.predicts
