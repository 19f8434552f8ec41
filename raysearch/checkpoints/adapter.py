"""An adapter (LoRA) in peft's files, and the same adapter for a model without some of its layers.

torch and peft are not imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.checkpoints.checkpoint import read_json
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.checkpoints.safetensors_file import FileTensor, read_header, write_file
from raysearch.errors import UserError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: The folder in an export with the adapter for the pruned model.
ADAPTER_FOLDER = "adapter"
#: What to do with an adapter that cannot be merged here, or not be renumbered.
REMEDY = "merge it by peft's merge_and_unload, and search the merged model"
_PREFIX = "base_model.model."  # of the names of an adapter's tensors


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter in a folder that peft has written.

    Args:
        folder: The folder.
        config: The content of ``adapter_config.json``.
        tensors: Its tensors. Their names contain those of the model's modules in memory.
        metadata: The metadata of their file.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Sequence[FileTensor]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, folder: Path) -> Adapter:
        """Read the config of an adapter, and the names and shapes of its tensors.

        Args:
            folder: The folder.

        Raises:
            UserError: There is no such folder, it holds no LoRA adapter, or the adapter's weights are missing or
                pickled.
        """
        where = f"model.adapter={folder}"
        if not folder.is_dir():
            raise UserError(f"{where}: there is no such folder; check the path")
        if not (folder / ADAPTER_CONFIG).is_file():
            raise UserError(f"{where}: the folder has no {ADAPTER_CONFIG}; name one that peft's save_pretrained wrote")
        config = read_json(folder / ADAPTER_CONFIG)
        kind = config.get("peft_type")
        if kind != "LORA":
            raise UserError(f"{where} is an adapter of the type {kind}, not LORA; {REMEDY}")
        if config.get("layer_replication"):
            raise UserError(f"{where} repeats layers of its model (layer_replication); {REMEDY}")
        if not (folder / ADAPTER_WEIGHTS).is_file():
            pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
            if pickled:
                raise UserError(
                    f"{where}: the folder has only pickled weights ({pickled[0]}), which can run code when opened; "
                    "convert them to safetensors with peft's save_pretrained"
                )
            raise UserError(f"{where}: the folder has no {ADAPTER_WEIGHTS}; complete the download")
        metadata, tensors = read_header(folder / ADAPTER_WEIGHTS)
        return cls(folder, config, tensors, metadata)

    def parameters_in(self, parameters: Iterable[str]) -> list[str]:
        """Return the names of the model's parameters that the adapter changes.

        Args:
            parameters: The names of all parameters of the model in memory.

        Returns:
            The names, in the same order.
        """
        names = list(parameters)
        modules = {module for name in names for module in _beginnings(name)}
        changed = set()
        for tensor in self.tensors:
            beginnings = [name for name in _beginnings(tensor.name.removeprefix(_PREFIX)) if name in modules]
            changed |= set(beginnings[-1:])  # the module that has the adapter
        return [name for name in names if changed.intersection(_beginnings(name))]

    def pruned(self, names: LayerNames, kept: KeptBlocks) -> Adapter | None:
        """Return the adapter for the model without some parts.

        Args:
            names: The names of the layers of the dense model in memory.
            kept: The layers of the pruned model.

        Returns:
            The adapter with the new numbers of layers; None if it changes none of the kept modules.
        """
        tensors = []
        new_names: dict[str, str] = {}  # of the modules with a LoRA
        for tensor in self.tensors:
            name = tensor.name.removeprefix(_PREFIX)
            new_name = names.renamed(name, kept)
            if new_name is None:
                continue
            tensors.append(tensor.renamed(_PREFIX + new_name))
            if ".lora_" in name:
                module = name.partition(".lora_")[0].removesuffix(".base_layer")
                new_names[module] = new_name.partition(".lora_")[0].removesuffix(".base_layer")
        if not new_names:
            return None
        config = _renumbered_config(self.config, names, kept, new_names)
        return Adapter(self.folder, config, tensors, self.metadata)

    def write(self, folder: Path) -> None:
        """Write the adapter to a new folder. Its tensors are copied byte for byte.

        Args:
            folder: The folder.

        Raises:
            OSError: A file cannot be read or written.
        """
        folder.mkdir()
        write_file(folder / ADAPTER_WEIGHTS, self.tensors, self.metadata)
        text = json.dumps(self.config, indent=2, sort_keys=True) + "\n"
        (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def _beginnings(name: str) -> list[str]:
    """Return the beginnings of a dotted name, such as ``a``, ``a.b`` and ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _renumbered_config(
    config: Mapping[str, Any], names: LayerNames, kept: KeptBlocks, new_names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the config of an adapter for the kept layers.

    Names of modules keep their form, and lose the removed parts. A regular expression with a number becomes a list of
    all modules. So do the numbers of layers if halves of them do not stay together.

    Args:
        config: The config of the adapter.
        names: The names of the layers of the dense model in memory.
        kept: The layers of the pruned model.
        new_names: The new name of each kept module with a LoRA.
    """
    changed = dict(config)
    # The dense model, which the adapter does not fit any more.
    changed |= {"base_model_name_or_path": None, "revision": None}
    for key in ("target_modules", "exclude_modules", "target_parameters", "modules_to_save"):
        if isinstance(config.get(key), list):
            entries = [_renumbered_entry(entry, names, kept) for entry in config[key]]
            changed[key] = [entry for entry in entries if entry is not None] or None
    layers = config.get("layers_to_transform")
    has_parted_layers = layers is not None and not kept.are_whole
    if has_parted_layers or any(_has_unclear_number(config.get(key)) for key in ("target_modules", "exclude_modules")):
        owners = tuple("." + parameter.rpartition(".")[0] for parameter in changed.get("target_parameters") or ())
        modules = [name for name in new_names.values() if not f".{name}".endswith(owners)]
        changed |= {"target_modules": sorted(modules), "exclude_modules": None}
    if has_parted_layers:
        changed |= {"layers_to_transform": None, "layers_pattern": None}
    elif layers is not None:
        numbers = [kept.number_of(layer, "") for layer in ([layers] if isinstance(layers, int) else layers)]
        changed["layers_to_transform"] = [number for number in numbers if number is not None]
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        if any(map(re.compile(r"\d").search, patterns)):
            values = {new_name: _value_for(patterns, name) for name, new_name in new_names.items()}
            changed[key] = {name: value for name, value in values.items() if value is not None}
    return changed


def _renumbered_entry(entry: str, names: LayerNames, kept: KeptBlocks) -> str | None:
    """Return the end of a module's name with the new number of its layer; None if the layer is removed."""
    match = re.match(rf"((?:.*\.)?{re.escape(names.stack.rpartition('.')[2])})\.(\d+)(?=\.|$)", entry)
    if match is None or not f".{names.stack}".endswith(f".{match[1]}"):
        return entry
    new_name = names.renamed(f"{names.stack}.{match[2]}{entry[match.end() :]}", kept)
    return None if new_name is None else new_name.removeprefix(names.stack.removesuffix(match[1]))


def _has_unclear_number(modules: list[str] | str | None) -> bool:
    """Return whether an expression has a number, or a name begins with one, which may be a layer's."""
    if isinstance(modules, str):
        return re.search(r"\d", modules) is not None
    return any(entry.partition(".")[0].isdecimal() for entry in modules or ())


def _value_for(patterns: Mapping[str, Any], module: str) -> Any:
    """Return the value of the first pattern that fits a module's name as peft matches them; None if none fits."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), None)
