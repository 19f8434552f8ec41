"""Writes the config.json of an export in the form of its source, so that older programs can read it too.

transformers rewrites a config: it renames keys and kinds of layers, and moves `rope_theta` into `rope_parameters`.
Converters and servers that read the older names would then silently use defaults. So the export gets the source's
file, with the values of the removed layers left out. A value is added only if transformers would otherwise read another
config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedModel

from raysearch.errors import UnsupportedModelError
from raysearch.models.layers import depth_names
from raysearch.models.spec import ModelSpec
from raysearch.models.surgery import cut_values

#: Keys about heads that predict more than one token, which transformers does not load: their numbers, and lists with a
#: value for each.
_PREDICTING_COUNTS = (
    "num_nextn_predict_layers",
    "num_nextn_layers",
    "num_mtp_layers",
    "num_mtp_modules",
    "mtp_num_hidden_layers",
    "mtp_num_layers",
    "mtp_transformer_layers",
)
_PREDICTING_LISTS = (
    "mtp_hybrid_override_pattern",
    "mtp_layer_types",
    "mtp_layers_block_type",
    "mtp_local_layer_ids",
    "mtp_mlp_layer_types",
)
#: The model types in transformers 4 whose rotary embeddings differ by layer, each with its key for the base of layers
#: with a window.
_LOCAL_ROPE = {"gemma3_text": "rope_local_base_freq", "gemma3n_text": "rope_local_base_freq", "olmo3": None}
#: The keys of transformers 4 for parts of `rope_parameters`, if a model type has special ones.
_ROPE_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}


def write_config(
    folder: Path,
    pruned: PreTrainedModel,
    source: Path | None,
    kept_layers: Sequence[int],
    n_layers: int,
    model: ModelSpec,
) -> None:
    """Rewrite the config.json that transformers has written for a pruned model in the form of its source.

    Args:
        folder: The checkpoint.
        pruned: The pruned model.
        source: The folder of the dense model's files; None if it has no config.json, as a GGUF file.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.
        model: The dense model, whose `trust_remote_code` allows code of the checkpoint.

    Raises:
        UnsupportedModelError: transformers would read another config from it.
    """
    file = folder / "config.json"
    saved = json.loads(file.read_text(encoding="utf-8"))
    expected = _read(folder, model)
    config = saved
    if source is not None:
        names = depth_names(pruned.config.get_text_config())
        config = _cut(_part(_load(source / "config.json"), saved), kept_layers, n_layers, names)
    config.setdefault("architectures", saved["architectures"])
    config.pop("auto_map", None)
    if model.trust_remote_code and "auto_map" in saved:
        config["auto_map"] = saved["auto_map"]
    if not _has_predicting_heads(pruned):
        config = _without_predicting_heads(config)
        expected = _without_predicting_heads(expected)
    _save(file, config)
    _complete(config, _read(folder, model), expected)
    _add_both_forms(config, expected)
    _save(file, config)
    if wrong := [name for name in _differing(_read(folder, model), expected) if name in expected]:
        raise UnsupportedModelError(
            f"{pruned.config.model_type} cannot be exported: transformers reads another {wrong[0]} from its config; "
            "choose another mask or architecture"
        )


def _load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def _save(file: Path, config: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(folder: Path, model: ModelSpec) -> dict[str, Any]:
    """Return the config that transformers reads from a folder, as JSON values."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return values


def _part(source: dict[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the source's config that the export needs: of a multimodal model, it may be the text part."""
    text = source.get("text_config")
    if text and source.get("model_type") != saved.get("model_type"):
        return text
    return source


def _cut(config: dict[str, Any], kept_layers: Sequence[int], n_layers: int, names: Sequence[str]) -> dict[str, Any]:
    """Return a file's config for the kept layers; `names` are the keys that may hold the number of layers."""
    if isinstance(text := config.get("text_config"), dict):
        return config | {"text_config": _cut(text, kept_layers, n_layers, names)}
    config = {name: value for name, value in config.items() if name != "per_layer_config"}  # `_complete` adds it
    depth = {name: len(kept_layers) for name in names if config.get(name) == n_layers}
    return config | cut_values(config, kept_layers, n_layers) | depth


def _complete(config: dict[str, Any], values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Change a config in place so that transformers reads the expected values instead of those that it reads now."""
    for name in _differing(values, expected):
        if name not in expected:
            config.pop(name, None)
        elif name.endswith("_config") and all(isinstance(part.get(name), dict) for part in (config, values, expected)):
            _complete(config[name], values[name], expected[name])
        else:
            config[name] = expected[name]


def _differing(values: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ, except transformers' internal notes and the names of classes."""
    names = {name for name in {*values, *expected} if not name.startswith("_")}
    names -= {"architectures", "auto_map", "transformers_version"}
    missing = object()
    return sorted(name for name in names if values.get(name, missing) != expected.get(name, missing))


def _has_predicting_heads(model: PreTrainedModel) -> bool:
    parts = {part for name, _ in model.named_modules() for part in name.split(".")}
    return any(part.startswith(("mtp", "nextn")) for part in parts)


def _without_predicting_heads(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config, or a part of one, without heads that predict more than one token."""
    changed: dict[str, Any] = {}
    for name, value in config.items():
        if name in _PREDICTING_COUNTS and value:
            changed[name] = 0
        elif name == "use_mtp" and value:
            changed[name] = False
        elif name in _PREDICTING_LISTS and value:
            changed[name] = type(value)()
        elif isinstance(value, dict):
            changed[name] = _without_predicting_heads(value)
    return config | changed


def _add_both_forms(config: dict[str, Any], expected: Mapping[str, Any]) -> None:
    """Add the keys of transformers 4 and of 5 for dtype and rotary embeddings to a config and its parts."""
    if dtype := expected.get("dtype"):
        config["dtype"] = config["torch_dtype"] = dtype
    if rope := expected.get("rope_parameters"):
        config["rope_parameters"] = rope
        for name, value in _older_rope(str(expected.get("model_type")), rope).items():
            config.setdefault(name, value)
    for name, part in config.items():
        if name.endswith("_config") and isinstance(part, dict) and isinstance(expected.get(name), dict):
            _add_both_forms(part, expected[name])


def _older_rope(kind: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of transformers 4 for `rope_parameters`; none if it cannot express how they differ by layer."""
    older: dict[str, Any] = {}
    if any(isinstance(value, dict) for value in rope.values()):
        if kind not in _LOCAL_ROPE:
            return {}
        if name := _LOCAL_ROPE[kind]:
            older[name] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    names = _ROPE_NAMES.get(kind, {})
    outside = ("rope_theta", "partial_rotary_factor")
    older |= {names.get(name, name): rope[name] for name in outside if name in rope}
    scaling = {name: value for name, value in rope.items() if name not in outside}
    return older | {"rope_scaling": None if scaling == {"rope_type": "default"} else scaling}
