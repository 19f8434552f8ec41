"""Writes the config.json of a pruned checkpoint in the form of its source, so that older programs can read it too.

transformers rewrites a config: it renames keys and kinds of layers, and moves `rope_theta` into `rope_parameters`.
Converters and servers that read the older names would then silently use defaults. So the export gets the source's
file, with the values of the removed layers left out. A value is added only if transformers would otherwise read another
config: it derives lists of layers from their places if a file has none.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from raysearch.checkpoints.checkpoint import CONFIG, read_json
from raysearch.checkpoints.config_rules import cut_image_layers, rules_of_place, shrink_config
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.errors import UnsupportedModelError
from raysearch.text.sentences import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Keys about heads that predict more than one token: their numbers, and lists with a value for each.
PREDICTING_COUNTS = (
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
#: Keys that a checkpoint with layers that lack a half never has from the dense model.
_OF_THE_EXPORT = ("architectures", "auto_map", "model_type", "num_hidden_layers")
#: The model types in transformers 4 whose rotary embeddings differ by layer, each with its key for the base of layers
#: with a window.
_LOCAL_ROPE = {"gemma3_text": "rope_local_base_freq", "gemma3n_text": "rope_local_base_freq", "olmo3": None}
#: The keys of transformers 4 for parts of `rope_parameters`, if a model type has special ones.
_ROPE_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}


def write_pruned_config(
    folder: Path,
    source: Path,
    config: Mapping[str, Any],
    kept: KeptBlocks,
    *,
    predicts: bool,
    trust_remote_code: bool,
) -> None:
    """Write the config of a pruned checkpoint. transformers is imported; it needs no torch here.

    Args:
        folder: The pruned checkpoint, which has its code, if it has any.
        source: The folder of the dense model.
        config: The file's content by the rules for the kept layers, see `config_rules.cut_config`.
        kept: The layers of the pruned model.
        predicts: Whether the checkpoint has heads that predict further tokens.
        trust_remote_code: Whether code of the checkpoint may run.

    Raises:
        UnsupportedModelError: No config can describe the kept layers, or transformers would read another config.
    """
    dense = _read(source, trust_remote_code)
    kind = dense.model_type
    try:
        if kept.are_complete:
            expected = copy.deepcopy(dense)
            shrink_config(expected.get_text_config(), kept)
            for name, value in cut_image_layers(vars(expected), kept).items():
                setattr(expected, name, value)
        else:
            expected = _with_blocks(folder, config, dense)
            _keep_tokenizer_class(folder, source, trust_remote_code)
            trust_remote_code = True  # the checkpoint's code is raysearch's
        differing = write_config(folder, config, expected, predicts=predicts, trust_remote_code=trust_remote_code)
    except (
        StrictDataclassError,
        RuntimeError,
        ValueError,
    ) as error:  # for example, the only layer of a kind is removed
        raise UnsupportedModelError(
            f"{kind} cannot be exported without {kept.mask}: transformers does not accept its config "
            f"({first_line(error).split(' [')[0]}); choose another mask or architecture"
        ) from error
    if differing:
        places = rules_of_place(dense.get_text_config(), expected.get_text_config())
        raise UnsupportedModelError(
            f"{kind} cannot be exported: transformers reads another {differing[0]} from its config{places}; choose "
            "another mask or architecture"
        )


def _with_blocks(folder: Path, config: Mapping[str, Any], dense: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of a checkpoint whose layers may lack a half: the dense model's values in its own class.

    Args:
        folder: The checkpoint with its code.
        config: Its config.
        dense: The config of the dense model.
    """
    _save(folder / CONFIG, config)
    expected = _read(folder, trust_remote_code=True)
    for name, value in vars(dense).items():
        if not name.startswith("_") and name not in _OF_THE_EXPORT and hasattr(expected, name):
            setattr(expected, name, value)
    return expected


def _keep_tokenizer_class(folder: Path, source: Path, trust_remote_code: bool) -> None:
    """Name the class of the tokenizer in its config if transformers would choose another one for the new model type.

    Args:
        folder: The checkpoint with its config.
        source: The folder of the dense model.
        trust_remote_code: Whether code of the dense model may run.
    """
    from transformers import AutoTokenizer

    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return
    try:
        expected = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):  # the dense model has no tokenizer either
        return
    name = type(expected).__name__
    if name != type(AutoTokenizer.from_pretrained(folder, trust_remote_code=True)).__name__:
        named = read_json(file) | {"tokenizer_class": name}
        file.write_text(json.dumps(named, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(
    folder: Path,
    config: Mapping[str, Any],
    expected: PreTrainedConfig,
    *,
    predicts: bool,
    trust_remote_code: bool,
) -> list[str]:
    """Write a checkpoint's config with what transformers needs in order to read the expected values.

    Keys of transformers 4 and of 5 are added, too.

    Args:
        folder: The checkpoint, which has its code, if it has any.
        config: The content of the file in the form of its source.
        expected: What transformers must read.
        predicts: Whether the checkpoint has heads that predict further tokens.
        trust_remote_code: Whether code of the checkpoint may run.

    Returns:
        The names of values that transformers reads otherwise nevertheless.
    """
    file = folder / CONFIG
    written = copy.deepcopy(dict(config))
    expected_values = _values(expected)
    if not predicts:
        written = _without_predicting_heads(written)
        expected_values = _without_predicting_heads(expected_values)
    _save(file, written)
    _complete(written, _values(_read(folder, trust_remote_code)), expected_values)
    _add_both_forms(written, expected_values)
    _save(file, written)
    differing = _differing(_values(_read(folder, trust_remote_code)), expected_values)
    return [name for name in differing if name in expected_values]


def _read(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """Return the config that transformers reads from a folder."""
    from transformers import AutoConfig

    config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return config


def _save(file: Path, config: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _values(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the values of a config as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return values


def _complete(config: dict[str, Any], read: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Change a config in place so that transformers reads the expected values instead of those that it reads now."""
    for name in _differing(read, expected):
        if name not in expected:
            config.pop(name, None)
        elif name.endswith("_config") and all(
            isinstance(values.get(name), dict) for values in (config, read, expected)
        ):
            _complete(config[name], read[name], expected[name])
        else:
            config[name] = expected[name]


def _differing(read: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ, except transformers' internal notes and the names of classes."""
    names = {name for name in {*read, *expected} if not name.startswith("_")}
    names -= {"architectures", "auto_map", "transformers_version", "quantization_config"}
    missing = object()
    return sorted(name for name in names if read.get(name, missing) != expected.get(name, missing))


def _without_predicting_heads(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config, or a part of one, without heads that predict more than one token."""
    changed: dict[str, Any] = {}
    for name, value in config.items():
        if name in PREDICTING_COUNTS and value:
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
