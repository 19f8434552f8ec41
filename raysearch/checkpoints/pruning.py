"""Removes layers, or halves of them, from a checkpoint's files: every tensor that stays keeps its bytes, in any dtype.

What belongs to no removed part is copied as it is: towers for images and sounds, heads that predict further tokens,
tokenizer, processor, chat templates, code. A tensor is copied in chunks, so a model may be larger than the memory.
torch is not imported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from raysearch.checkpoints.block_configs import CODE, config_with_blocks, own_code, why_not
from raysearch.checkpoints.checkpoint import INDEX, WEIGHTS, Checkpoint, read_json
from raysearch.checkpoints.config_rules import TEXT_PARTS, changed_period, cut_config, image_layers
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.checkpoints.quantization import QUANTISATION_FILES, ModuleNames
from raysearch.checkpoints.safetensors_file import FileTensor, SlicedTensor, Tensor, write_file
from raysearch.core.site import Block
from raysearch.errors import UnsupportedModelError, UserError

#: The keys of a config that describe the quantisation.
_QUANTISATION_KEYS = ("quantization_config", "compression_config")
#: Tensors with a slice for each layer: the end of the name, and the axis.
_SLICED = {"embed_tokens_per_layer.weight": 1, "per_layer_model_projection.weight": 0}
#: The key of the width of such a slice.
_SLICE_WIDTH = "hidden_size_per_layer_input"


@dataclass(frozen=True)
class PrunedCheckpoint:
    """A checkpoint without some parts, before it is written.

    Args:
        source: The dense model.
        names: The names of the tensors of its layers.
        kept: The layers of the pruned model.
    """

    source: Checkpoint
    names: LayerNames
    kept: KeptBlocks

    @classmethod
    def of(cls, source: Checkpoint, kept: KeptBlocks) -> PrunedCheckpoint:
        """Plan a checkpoint without some parts.

        Args:
            source: The dense model.
            kept: The layers of the pruned model.

        Returns:
            The planned checkpoint.

        Raises:
            UnsupportedModelError: The tensors have names of an unknown form, a layer is changed at whose place features
                of images are added, or a kept layer would become one of another kind by its new place.
        """
        needed = image_layers(source.config)
        if not {Block(layer, layer) for layer in needed} <= {*kept.blocks}:
            raise UnsupportedModelError(
                f"{source.config.get('model_type')} cannot be exported without all of its layers {list(needed)}: "
                f"features of images are added at their places; protect them with protect={list(needed)}"
            )
        period = changed_period(source.config, kept)
        if period is not None:
            raise UnsupportedModelError(
                f"{source.config.get('model_type')} cannot be exported without {kept.mask}: "
                f"{period.rule.about} follows from their places, {period.text}, which that mask changes; choose a mask "
                "that keeps the pattern, such as one of whole periods"
            )
        reason = None if kept.are_complete else why_not(source.config) or own_code(source.folder)
        if reason is not None:
            raise UnsupportedModelError(
                f"{source.config.get('model_type')} cannot be exported without {kept.mask}, which leaves a layer "
                f"without its attention or its MLP: {reason}; use space=pairs"
            )
        return cls(source, LayerNames.of([tensor.name for tensor in source.tensors], kept.n_layers), kept)

    @property
    def predicts(self) -> bool:
        """Whether the checkpoint has heads that predict further tokens."""
        return any(self.names.is_predicting(tensor.name) for tensor in self.source.tensors)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors to write, under their new names, in the order of the source."""
        tensors: list[Tensor] = []
        for tensor in self.source.tensors:
            name = self.names.renamed(tensor.name, self.kept)
            if name is not None:
                tensors.append(self._sliced(tensor) or replace(tensor, name=name))
        return tensors

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json`` by the rules for the kept layers."""
        layers = {self.names.layer_of(tensor.name) for tensor in self.source.tensors} - {None}
        n_predicting = len([layer for layer in layers if layer is not None and layer >= self.names.n_layers])
        config = cut_config(self.source.config, self.kept, n_predicting)
        if not self.kept.are_complete:
            config = config_with_blocks(config, self.kept)
        return self._with_mended_quantisation(config)

    def write(self, folder: Path) -> None:
        """Write the weights, their index and all other files but the config into an empty folder.

        Args:
            folder: The folder.

        Raises:
            OSError: A file cannot be read or written.
        """
        shards = [*self._shards()]
        if self.source.in_shards:
            names = [f"model-{place:05}-of-{len(shards):05}.safetensors" for place in range(1, len(shards) + 1)]
            weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
            total_size = sum(tensor.n_bytes for tensor in self.tensors)
            index = {
                "metadata": {**self.source.index_metadata, "total_size": total_size},
                "weight_map": dict(sorted(weight_map.items())),
            }
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        else:
            names = [WEIGHTS]
        for name, shard in zip(names, shards, strict=True):
            write_file(folder / name, shard, self.source.metadata)
        for path in self.source.other_files():
            copied = folder / path
            copied.parent.mkdir(parents=True, exist_ok=True)
            if str(path) in QUANTISATION_FILES:
                mended = self._modules.mend(read_json(self.source.folder / path))
                copied.write_text(json.dumps(mended, indent=2) + "\n", encoding="utf-8")
            else:
                shutil.copyfile(self.source.folder / path, copied)
        for path in () if self.kept.are_complete else CODE:
            shutil.copyfile(path, folder / path.name)

    def check_written(self, folder: Path) -> None:
        """Compare every tensor of a written checkpoint with its source, byte by byte.

        Args:
            folder: The written checkpoint.

        Raises:
            UserError: A tensor is missing, or has another dtype, shape or content.
        """
        written = {tensor.name: tensor for tensor in Checkpoint.open(folder).tensors}
        if written.keys() != {tensor.name for tensor in self.tensors}:
            raise UserError(f"{folder} has not the tensors that were written; check the disk")
        for tensor in self.tensors:
            copy = written[tensor.name]
            same = (copy.dtype, copy.shape, copy.n_bytes) == (tensor.dtype, tensor.shape, tensor.n_bytes)
            if not same or not _same_bytes(copy.chunks(), tensor.chunks()):
                raise UserError(f"{folder} has other values of {tensor.name} than were written; check the disk")

    def _shards(self) -> Iterator[list[Tensor]]:
        """Yield the tensors of each file: no file is larger than the source's largest one."""
        if not self.source.in_shards:
            yield self.tensors
            return
        shard: list[Tensor] = []
        n_bytes = 0
        for tensor in self.tensors:
            if shard and n_bytes + tensor.n_bytes > self.source.largest_file_bytes:
                yield shard
                shard = []
                n_bytes = 0
            shard.append(tensor)
            n_bytes += tensor.n_bytes
        yield shard

    def _sliced(self, tensor: FileTensor) -> SlicedTensor | None:
        """Return the kept layers' slices of a tensor; None if it has no slice for each layer."""
        axis = next((axis for name, axis in _SLICED.items() if tensor.name.endswith(name)), None)
        width = self._text_value(_SLICE_WIDTH)
        if axis is None or not width or not self.kept.mask:
            return None
        if tensor.shape[axis] != width * self.names.n_layers:
            raise UnsupportedModelError(
                f"{tensor.name} has shape {list(tensor.shape)}, which is not {width} for each of {self.names.n_layers} "
                "layers; use the model before it was quantised"
            )
        return SlicedTensor(tensor, tensor.name, axis, width, self.kept.layers_of("mlp"))

    def _text_value(self, key: str) -> Any:
        """Return a value of the part of the config that describes the decoder; None if there is none."""
        parts = [self.source.config.get(name) for name in TEXT_PARTS]
        configs = [self.source.config, *(part for part in parts if isinstance(part, dict))]
        return next((config[key] for config in configs if key in config), None)

    @cached_property
    def _modules(self) -> ModuleNames:
        return ModuleNames.of(self.names, self.kept, [tensor.name for tensor in self.source.tensors])

    def _with_mended_quantisation(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config, or a part of it, whose descriptions of quantised weights have the new names of modules."""
        mended = dict(config)
        for key, value in config.items():
            if key in _QUANTISATION_KEYS:
                mended[key] = self._modules.mend(value)
            elif key in TEXT_PARTS and isinstance(value, dict):
                mended[key] = self._with_mended_quantisation(value)
        return mended


def _same_bytes(chunks: Iterator[bytes], others: Iterator[bytes]) -> bool:
    """Return whether two sequences of chunks have the same bytes, whatever the sizes of the chunks."""
    left = b""
    for chunk in chunks:
        while len(left) < len(chunk):
            following = next(others, b"")
            if not following:
                return False
            left += following
        if left[: len(chunk)] != chunk:
            return False
        left = left[len(chunk) :]
    return not left and next(others, b"") == b""


def wrong_names(folder: Path, n_layers: int, loading_info: Mapping[str, Any]) -> list[str]:
    """Return the names of weights that a checkpoint lacks, or that its config does not describe.

    A tensor outside of the layers that the class does not read is in the dense model, too: a head that predicts further
    tokens, or a part for images.

    Args:
        folder: The checkpoint.
        n_layers: The layers that it should have.
        loading_info: The information of transformers' `from_pretrained`: names of weights by kind.

    Returns:
        The names, sorted; empty if the checkpoint fits its config.
    """
    names = LayerNames.of([tensor.name for tensor in Checkpoint.open(folder).tensors], n_layers)
    return sorted(
        str(weight)
        for kind, weights in loading_info.items()
        for weight in weights
        if kind != "unexpected_keys" or names.is_in_layer(str(weight))
    )
