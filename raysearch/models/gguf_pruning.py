"""Takes layers out of a GGUF file as it is: every tensor that stays keeps its bytes, in its quantisation.

Blocks are renumbered, and metadata that is given per layer is mended. Where the kept layers would be of another kind to
llama.cpp, the file is refused. Needs neither torch nor transformers.

Source: the GGUF specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.paths import written_whole
from raysearch.errors import UserError, what_failed
from raysearch.models.gguf import read_fast
from raysearch.models.llama_cpp import SLIDING_PATTERN, differ, rules_of
from raysearch.models.spec import ModelInfo

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_SUSPECT = re.compile(r"(pattern|interval|every_n_layers|layer_step|_layers|_period)$")
_ROUGHLY = 0.02  # a vocabulary may be padded, and a converter may drop or fold a small tensor


@dataclass(frozen=True)
class GGUFExport:
    """A GGUF file without some layers."""

    out: Path
    source: Path
    n_layers: int
    size_bytes: int
    source_bytes: int
    architecture: str  #: as llama.cpp names it
    search_id: str | None
    url: str | None = None  #: where on the Hugging Face Hub it is; None if it was not sent there


#: What is true of other layers once some are gone, unless it is 0.
_FIXED = {
    "attention.shared_kv_layers": "its last layers share the keys of others",
    "embedding_length_per_layer_input": "each of its layers has an embedding of its own in one tensor",
    "rescale_every_n_layers": "its weights are scaled by their places",
    "n_deepstack_layers": "its first layers are given pictures",
}
_CHECKPOINT = "a checkpoint (--out) with transformers or vLLM"
_LEADING = "leading_dense_block_count"
_PREDICTING = "nextn_predict_layers"


def prune_gguf(
    source: Path, mask: Mask, out: Path, *, info: ModelInfo, search_id: str, overwrite: bool = False
) -> GGUFExport:
    """Write a GGUF file of the model, in any quantisation, without the mask's layers, whole or not at all.

    The search that found the mask is put into its metadata.

    Raises:
        UserError: The file is of another model, cannot be read or pruned, or `out` cannot be written.
    """
    _check_place(source, out, overwrite)
    with read_fast():
        file = _read(source)
        kept = _kept(file, mask, info)
        metadata = {**_mended(file, kept, mask), "raysearch.search": search_id}
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(out) as unfinished:
                _write(file, unfinished, metadata, kept)
        except OSError as error:
            raise UserError(f"--gguf={out} cannot be written ({what_failed(error)}); name another file") from error
    left = info.n_layers - len(mask)
    return GGUFExport(
        out.absolute(), source, left, out.stat().st_size, source.stat().st_size, file.architecture, search_id
    )


@dataclass(frozen=True)
class _File:
    """A GGUF file that is open: gguf's reader, and its metadata by name."""

    path: Path
    reader: Any
    architecture: str

    def get(self, key: str) -> Any:
        """Return the architecture's value of a key; None if there is none."""
        found = self.reader.fields.get(f"{self.architecture}.{key}")
        return None if found is None else found.contents()

    @property
    def blocks(self) -> int:
        """All blocks, those that predict further tokens included."""
        return int(self.get("block_count") or 0)

    def refused(self, why: str, remedy: str = f"use {_CHECKPOINT}") -> UserError:
        """Return the sentence that refuses it."""
        return UserError(f"{self.path} cannot be pruned: {why}; {remedy}")


def _check_place(source: Path, out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise UserError(f"--gguf={out} is a folder; name a file")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"--gguf={out} is the dense model itself; name another file")
    if out.exists() and not overwrite:
        raise UserError(f"--gguf={out} is there already; name another file, or replace it with --overwrite")


def _read(path: Path) -> _File:
    import gguf

    if not path.is_file():
        raise UserError(f"--from={path} is not a GGUF file; check the path")
    try:
        reader = gguf.GGUFReader(path)
        file = _File(path, reader, str(reader.fields["general.architecture"].contents()))
    except (ValueError, KeyError, IndexError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as GGUF ({what_failed(error)}); complete the download") from error
    split = reader.fields.get("split.count")
    if split is not None and split.contents() > 1:
        raise file.refused("it is one of several parts", "join them with llama-gguf-split --merge")
    return file


def _kept(file: _File, mask: Mask, info: ModelInfo) -> tuple[int, ...]:
    """Return the blocks that stay, once the file is known to be of the model."""
    parameters = [0] * min(file.blocks, len(file.reader.tensors))
    vocabulary = info.vocab_size
    for tensor in file.reader.tensors:
        if (block := _BLOCK.fullmatch(tensor.name)) and int(block[1]) < len(parameters):
            parameters[int(block[1])] += int(tensor.n_elements)
        elif tensor.name == "token_embd.weight":
            vocabulary = int(tensor.shape[1])
    n_layers, hidden_size = file.blocks - (file.get(_PREDICTING) or 0), file.get("embedding_length") or 0
    if not any(parameters):
        raise file.refused(f"{file.architecture} keeps no layers as blk.N tensors")
    facts = [
        ("layers", n_layers, info.n_layers, 0.0),
        ("hidden state's width", hidden_size, info.hidden_size, 0.0),
        ("words of the vocabulary", vocabulary, info.vocab_size, _ROUGHLY),
    ]
    for layer, (here, there) in enumerate(zip(parameters, info.layer_parameters, strict=False)):
        facts.append((f"parameters of layer {layer}", here, there, _ROUGHLY))
    for what, here, there, tolerance in facts:
        if abs(here - there) > tolerance * there:
            raise UserError(
                f"--from={file.path} is not the model {info.model.name}: {what} {here:,} instead of {there:,}; name "
                "a GGUF file of the same model"
            )
    return (*mask.kept(n_layers), *range(n_layers, file.blocks))


def _mended(file: _File, kept: Sequence[int], mask: Mask) -> dict[str, Any]:
    """Return the metadata that changes, by whole key; refuse a file where it cannot say what the kept layers are."""
    n_layers, prefix = file.blocks, f"{file.architecture}."
    changed: dict[str, Any] = {f"{prefix}block_count": len(kept)}
    if differ(file.architecture, n_layers, len(kept)):
        raise file.refused(
            f"llama.cpp computes a {file.architecture} of {n_layers} or {len(kept)} layers in a way of its own"
        )
    for key, why in _FIXED.items():
        if file.get(key) and len(kept) < n_layers:
            raise file.refused(why)
    rules = rules_of(file.architecture, file.get)
    known = {_LEADING, _PREDICTING, *_FIXED, *(rule.key for rule in rules)}
    for name, found in file.reader.fields.items():
        key = name.removeprefix(prefix)
        if key in (name, "rope.dimension_sections"):  # of others, or a list that is never one value a layer
            continue
        value = found.contents()
        if isinstance(value, list):
            if len(value) == n_layers:
                changed[name] = [value[layer] for layer in kept]
            elif key in (SLIDING_PATTERN, "attention.recurrent_layers"):
                raise file.refused(f"{name} has {len(value)} values for {n_layers} layers")
        elif _SUSPECT.search(key) and key not in known and value and len(kept) < n_layers:
            raise file.refused(f"what {name}={value} says of the layers that stay is unknown")
    if leading := file.get(_LEADING):
        changed[prefix + _LEADING] = sum(layer < leading for layer in kept)
    for rule in rules:
        if rule.changes(kept):
            raise file.refused(
                f"{rule.about} follows from their places, one in {rule.period}, which {mask} changes",
                f"choose a mask that keeps the pattern, or use {_CHECKPOINT}",
            )
    changed["raysearch.removed_layers"] = list(mask)
    return changed


def _write(file: _File, out: Path, metadata: Mapping[str, Any], kept: Sequence[int]) -> None:
    """Write the file, one tensor in memory at a time."""
    import gguf

    kinds, reader = gguf.GGUFValueType, file.reader
    writer = gguf.GGUFWriter(out, file.architecture)
    writer.data_alignment = reader.alignment
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *rest = found.types
        value = metadata[name] if name in metadata else _raw(found, kinds)
        if kind is not kinds.ARRAY or value:  # the format's library writes no empty list
            writer.add_key_value(name, value, kind, rest[0] if rest else None)
    for name in sorted(metadata.keys() - reader.fields.keys()):
        value = metadata[name]
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif value:
            writer.add_key_value(name, value, kinds.ARRAY, kinds.UINT32)
    tensors = _renumbered(reader, kept)
    for name, tensor in tensors:
        data = tensor.data
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout, "its header is written"
        parts = [writer.fout[0].tell(), *(tensor.data.nbytes for _, tensor in tensors)]
        for _, tensor in tensors:
            writer.write_tensor_data(tensor.data)
    finally:
        writer.close()
    if out.stat().st_size != sum(writer.ggml_pad(part, reader.alignment) for part in parts):
        raise OSError("its size is not that of its tensors")


def _raw(found: Any, kinds: Any) -> Any:
    """Return a value with its strings as bytes, which need not be UTF-8."""
    if found.types[-1] is not kinds.STRING:
        return found.contents()
    texts = [found.parts[part].tobytes() for part in found.data]
    return texts if found.types[0] is kinds.ARRAY else texts[0]


def _renumbered(reader: Any, kept: Sequence[int]) -> list[tuple[str, Any]]:
    """Return the tensors that stay, by their new names, in the file's order."""
    tensors = []
    for tensor in reader.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if block is None:
            tensors.append((tensor.name, tensor))
        elif (layer := int(block[1])) in kept:
            tensors.append((f"blk.{kept.index(layer)}.{block[2]}", tensor))
    return tensors
