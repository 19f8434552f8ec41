"""Takes layers out of a GGUF file as it is: every tensor that stays keeps its bytes, in its quantisation.

Blocks are renumbered, and metadata that is given per layer is mended. Where the kept layers would be of another kind to
llama.cpp, a list says of which kind each is; where llama.cpp reads no such list, the file is refused. Needs neither
torch nor transformers.

Source: the GGUF specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.core.paths import written_whole
from raysearch.errors import UserError, what_failed
from raysearch.models.gguf import read_fast
from raysearch.models.llama_cpp import Rule, differ, rules_of
from raysearch.models.spec import ModelInfo

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_SUSPECT = re.compile(r"(pattern|interval|every_n_layers|layer_step|_layers|_period)$")
#: Lists under these names are never one value a layer.
_NOT_BY_LAYER = re.compile(r"(GGUF|general|tokenizer|split|quantize|imatrix|raysearch)\..*|.*[._]sections?")
#: Lists of an architecture that may have another length than its layers.
_OF_OTHER_LENGTH = re.compile(r"(rope|vision|audio)\..*")
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
    build: int | None = None  #: the first of llama.cpp that reads what is written; None if any does
    url: str | None = None  #: where on the Hugging Face Hub it is; None if it was not sent there


#: What is true of other layers once some are gone, unless it is 0.
_FIXED = {
    "attention.shared_kv_layers": "its last layers share the keys of others",
    "embedding_length_per_layer_input": "each of its layers has an embedding of its own in one tensor",
    "rescale_every_n_layers": "its weights are scaled by their places",
    "n_deepstack_layers": "its first layers are given pictures",
    "ple.layers": "its layers with embeddings of their own are listed by number",
    "hrm.layers_per_stack": "its layers are run more than once",
}
_CHECKPOINT = "a checkpoint (--out) with transformers or vLLM"
_LEADING = ("leading_dense_block_count", "hash_layer_count")  # so many layers at the start are of another kind
_PREDICTING = "nextn_predict_layers"


def prune_gguf(
    source: Path,
    mask: Mask,
    out: Path,
    *,
    info: ModelInfo,
    search_id: str,
    overwrite: bool = False,
    change: Callable[[GGUFFile, Sequence[int], str, StoredTensor], StoredTensor] | None = None,
) -> GGUFExport:
    """Write a GGUF file of the model, in any quantisation, without the mask's layers, whole or not at all.

    The search that found the mask is put into its metadata. `change` is called with the file, the layers that stay, and
    the new name of each tensor that stays and the tensor; it returns what is written in its place.

    Raises:
        UserError: The file is of another model, cannot be read or pruned, or `out` cannot be written.
    """
    _check_place(source, out, overwrite)
    with read_fast():
        file = _read(source)
        kept = _kept(file, mask, info)
        metadata = _mended(file, kept, mask)
        metadata.changed["raysearch.search"] = search_id
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(out) as unfinished:
                tensors = renumbered(file.reader, kept)
                if change is not None:
                    tensors = [(name, change(file, kept, name, tensor)) for name, tensor in tensors]
                    metadata.changed["general.file_type"] = _file_type(file, [tensor for _, tensor in tensors])
                _write(file, unfinished, metadata, tensors)
        except OSError as error:
            raise UserError(f"--gguf={out} cannot be written ({what_failed(error)}); name another file") from error
    left = info.n_layers - len(mask)
    sizes = out.stat().st_size, source.stat().st_size
    return GGUFExport(out.absolute(), source, left, *sizes, file.architecture, search_id, metadata.build)


def refusals(source: Path, masks: Iterable[Mask]) -> dict[Mask, str]:
    """Return why a GGUF file cannot be written without the layers of a mask, for each of the masks where that is so.

    A file that is gone refuses none: what it says of its layers is not known.
    """
    if not source.is_file():
        return {}
    reasons = {}
    with read_fast():
        file = _read(source)
        for mask in masks:
            try:
                _mended(file, (*mask.kept(file.layers), *range(file.layers, file.blocks)), mask)
            except UserError as error:
                reasons[mask] = str(error)
    return reasons


@dataclass(frozen=True)
class GGUFFile:
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

    @property
    def layers(self) -> int:
        """All blocks but those that predict further tokens."""
        return self.blocks - int(self.get(_PREDICTING) or 0)

    def refused(self, why: str, remedy: str = f"use {_CHECKPOINT}") -> UserError:
        """Return the sentence that refuses it."""
        return UserError(f"{self.path} cannot be pruned: {why}; {remedy}")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is stored.

    Args:
        kind: How its values are quantised, of gguf's `GGMLQuantizationType`.
        shape: Of the array that is stored: of bytes where its values are quantised.
        dtype: Of that array.
        n_bytes: Its size.
        read: Gives that array.
    """

    kind: Any
    shape: tuple[int, ...]
    dtype: Any
    n_bytes: int
    read: Callable[[], Any]

    @classmethod
    def of(cls, tensor: Any) -> StoredTensor:
        """Return a tensor of gguf's reader."""
        data = tensor.data
        return cls(tensor.tensor_type, data.shape, data.dtype, data.nbytes, lambda: data)


def _check_place(source: Path, out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise UserError(f"--gguf={out} is a folder; name a file")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"--gguf={out} is the dense model itself; name another file")
    if out.exists() and not overwrite:
        raise UserError(f"--gguf={out} is there already; name another file, or replace it with --overwrite")


def _read(path: Path) -> GGUFFile:
    import gguf

    if not path.is_file():
        raise UserError(f"--from={path} is not a GGUF file; check the path")
    try:
        reader = gguf.GGUFReader(path)
        file = GGUFFile(path, reader, str(reader.fields["general.architecture"].contents()))
    except (ValueError, KeyError, IndexError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as GGUF ({what_failed(error)}); complete the download") from error
    split = reader.fields.get("split.count")
    if split is not None and split.contents() > 1:
        raise file.refused("it is one of several parts", "join them with llama-gguf-split --merge")
    return file


def _kept(file: GGUFFile, mask: Mask, info: ModelInfo) -> tuple[int, ...]:
    """Return the blocks that stay, once the file is known to be of the model."""
    parameters = [0] * min(file.blocks, len(file.reader.tensors))
    vocabulary = info.vocab_size
    for tensor in file.reader.tensors:
        if (block := _BLOCK.fullmatch(tensor.name)) and int(block[1]) < len(parameters):
            parameters[int(block[1])] += int(tensor.n_elements)
        elif tensor.name == "token_embd.weight":
            vocabulary = int(tensor.shape[1])
    n_layers, hidden_size = file.layers, file.get("embedding_length") or 0
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


@dataclass
class _Metadata:
    """What changes in a file's metadata, by whole key; what is dropped and changed is written anew."""

    changed: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    build: int | None = None  #: the first of llama.cpp that reads it; None if any does


def _mended(file: GGUFFile, kept: Sequence[int], mask: Mask) -> _Metadata:
    """Return the metadata that changes; refuse a file where it cannot say what the kept layers are."""
    n_blocks, prefix = file.blocks, f"{file.architecture}."
    n_layers, n_kept = file.layers, len(kept) - (n_blocks - file.layers)
    metadata = _Metadata({f"{prefix}block_count": len(kept)})
    if differ(file.architecture, n_layers, n_kept):
        raise file.refused(
            f"llama.cpp computes a {file.architecture} of {n_layers} or {n_kept} layers in a way of its own"
        )
    for key, why in _FIXED.items():
        if file.get(key) and mask:
            raise file.refused(why)
    rules = rules_of(file.architecture, file.get)
    known = {*_LEADING, _PREDICTING, *_FIXED, *(rule.key for rule in rules)}
    for name, stored in file.reader.fields.items():
        key = name.removeprefix(prefix)
        if _NOT_BY_LAYER.fullmatch(name):
            continue
        value = stored.contents()
        if isinstance(value, list):
            if len(value) in (n_layers, n_blocks):
                metadata.changed[name] = [value[layer] for layer in kept if layer < len(value)]
            elif key != name and value and not isinstance(value[0], str) and not _OF_OTHER_LENGTH.match(key):
                raise file.refused(f"{name} has {count(len(value), 'value')} for {n_layers} layers")
        elif key != name and _SUSPECT.search(key) and key not in known and value and mask:
            raise file.refused(f"what {name}={value} says of the layers that stay is unknown")
    for key in _LEADING:
        if leading := file.get(key):
            metadata.changed[prefix + key] = sum(layer < leading for layer in kept)
    for rule in rules:
        _follow(rule, file, kept, mask, metadata)
    metadata.changed["raysearch.removed_layers"] = list(mask)
    return metadata


def _follow(rule: Rule, file: GGUFFile, kept: Sequence[int], mask: Mask, metadata: _Metadata) -> None:
    """Say of which kind each kept layer is where a rule no longer tells; refuse a file that cannot say it."""
    prefix, n_predicting = f"{file.architecture}.", file.blocks - file.layers
    listed = None if rule.list_key is None else file.get(rule.list_key)
    flags = [bool(flag) for flag in listed] if isinstance(listed, list) else rule.flags(file.layers)
    left = [flags[layer] for layer in kept[: len(kept) - n_predicting]]
    if left == rule.flags(len(left)):
        return
    if rule.list_key is None:
        which = f"one in {rule.period}" if rule.period else "the last one"
        raise file.refused(
            f"{rule.about} follows from their places, {which}, which {mask} changes",
            f"choose a mask that keeps the pattern, or use {_CHECKPOINT}",
        )
    if not isinstance(listed, list):
        metadata.changed[prefix + rule.list_key] = left + [False] * n_predicting
        metadata.dropped.add(prefix + rule.list_key)  # a period of the same name
    if rule.key != rule.list_key:
        metadata.dropped.add(f"{prefix}{rule.key}")
    metadata.build = max(rule.since, metadata.build or 0)


def _write(file: GGUFFile, out: Path, metadata: _Metadata, tensors: Sequence[tuple[str, StoredTensor]]) -> None:
    """Write the file, one tensor in memory at a time."""
    import gguf

    kinds, reader, changed = gguf.GGUFValueType, file.reader, metadata.changed
    writer = gguf.GGUFWriter(out, file.architecture)
    writer.data_alignment = reader.alignment
    for name, stored in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in metadata.dropped:
            continue
        kind, *rest = stored.types
        value = changed[name] if name in changed else _raw(stored, kinds)
        if kind is not kinds.ARRAY or value:  # the format's library writes no empty list
            writer.add_key_value(name, value, kind, rest[0] if rest else None)
    for name in sorted(changed.keys() - (reader.fields.keys() - metadata.dropped)):
        value = changed[name]
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif value:
            kind = kinds.BOOL if isinstance(value[0], bool) else kinds.UINT32
            writer.add_key_value(name, value, kinds.ARRAY, kind)
    for name, tensor in tensors:
        writer.add_tensor_info(name, tensor.shape, tensor.dtype, tensor.n_bytes, tensor.kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout, "its header is written"
        parts = [writer.fout[0].tell(), *(tensor.n_bytes for _, tensor in tensors)]
        for _, tensor in tensors:
            writer.write_tensor_data(tensor.read())
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


def renumbered(reader: Any, kept: Sequence[int]) -> list[tuple[str, StoredTensor]]:
    """Return the tensors that stay, by their new names, in the file's order."""
    tensors = []
    for tensor in reader.tensors:
        block, stored = _BLOCK.fullmatch(tensor.name), StoredTensor.of(tensor)
        if block is None:
            tensors.append((tensor.name, stored))
        elif (layer := int(block[1])) in kept:
            tensors.append((f"blk.{kept.index(layer)}.{block[2]}", stored))
    return tensors


def _file_type(file: GGUFFile, tensors: Sequence[StoredTensor]) -> int:
    """Return what the file says of its quantisation: as before, or Q8_0 where tensors became that."""
    import gguf

    before = file.reader.fields.get("general.file_type")
    types = {tensor.tensor_type for tensor in file.reader.tensors}
    if before is not None and {tensor.kind for tensor in tensors} <= types:
        return int(before.contents())
    return int(gguf.LlamaFileType.MOSTLY_Q8_0)
