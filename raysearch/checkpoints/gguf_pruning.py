"""Removes layers and halves of layers from a GGUF file: tensors that stay keep their bytes, in their quantisation.

Blocks are renumbered, and metadata with a value for each layer is cut. A block may get its attention and its MLP from
different layers. If a block has only one of the two, the file is written for another architecture, see
`raysearch.checkpoints.deci`. If llama.cpp would treat a kept layer as one of
another kind, a list with the kind of each layer is written; if llama.cpp reads no such list, the file is refused. Needs
neither torch nor transformers.

Source: the GGUF specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.checkpoints import deci
from raysearch.checkpoints.gguf_file import (
    BLOCK,
    CHECKPOINT,
    ChangedMetadata,
    GGUFFile,
    PrunedFile,
    StoredTensor,
    read_gguf,
    renumbered,
    write_gguf,
)
from raysearch.checkpoints.gguf_parts import part_names
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_rules import KeptLayers, Kind, cut_for_blocks, gguf_rule
from raysearch.checkpoints.llama_cpp import PERIODS, is_computed_differently
from raysearch.checkpoints.periods import Period, list_instead, periods_of
from raysearch.core.mask import Mask
from raysearch.core.paths import atomic_file
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.text.numbers import count
from raysearch.text.sentences import what_failed

#: The names of values that do not describe the model's layers, and may be long.
_OTHER = re.compile(r"(GGUF|general|tokenizer|split|quantize|imatrix|raysearch)\..*")
#: The ends of the names of values that may say something of layers. One that no rule knows is refused.
_SUSPECT = re.compile(r".*(pattern|interval|every_n_layers|layer_step|_layers|_period)")
_ROUGHLY = 0.02  # a vocabulary may be padded, and a converter may drop or fold a small tensor


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of the dense model, by which a GGUF file of another model is noticed.

    Args:
        name: The model's name, for messages.
        sites: The sites of the model.
        hidden_size: d, the width of the hidden state.
        vocab_size: The number of tokens of the vocabulary.
    """

    name: str
    sites: Sites
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True)
class GGUFExport:
    """A GGUF file without some layers or halves.

    Args:
        out: The pruned file.
        source: The file of the dense model, or its first part.
        n_layers: The layers of the pruned model.
        size_bytes: The size of the pruned file.
        source_bytes: The size of the dense model's file, with all parts.
        architecture: The name of the architecture in llama.cpp, which may differ from that of the dense model.
        search_id: The search that found the mask; None if there is no such search.
        build: The first build of llama.cpp that reads the file; None if every build does.
        url: The address of the repository on the Hugging Face Hub; None if the file was not pushed.
        changes: What else differs from the dense model's file, besides what was removed, in sentences.
    """

    out: Path
    source: Path
    n_layers: int
    size_bytes: int
    source_bytes: int
    architecture: str
    search_id: str | None
    build: int | None = None
    url: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """What llama.cpp must have to read the file; empty if every build reads it."""
        if self.architecture == deci.NAME:
            return f"architecture {deci.NAME}, since {deci.SINCE}"
        return "" if self.build is None else f"build b{self.build} or newer"

    @property
    def source_text(self) -> str:
        """The dense model's file for a sentence; for a file in parts, the first one and a mention of the others."""
        return f"{self.source} and the other parts" if len(part_names(self.source)) > 1 else str(self.source)


def prune_gguf(
    source: Path,
    mask: Mask,
    out: Path,
    *,
    sizes: ModelSizes,
    search_id: str,
    overwrite: bool = False,
    change: Callable[[GGUFFile, KeptBlocks, str, StoredTensor], StoredTensor] | None = None,
) -> GGUFExport:
    """Write a GGUF file, of any quantisation, without what the mask removes. It is written completely or not at all.

    Args:
        source: The GGUF file of the dense model, or any of its parts. One file is written in any case.
        mask: The layers and halves to remove.
        out: The file to write.
        sizes: The sizes of the dense model.
        search_id: The search that found the mask, for the file's metadata.
        overwrite: Whether to replace an existing file.
        change: Returns the tensor to write instead of a kept one. It is called with the file, the layers of the pruned
            model, the tensor's new name and the tensor. None writes every tensor as it is.

    Returns:
        The written file.

    Raises:
        UserError: The file is of another model, cannot be read or pruned, or `out` cannot be written.
    """
    _check_destination(source, out, overwrite)
    file = read_gguf(source)
    _check_is_model(file, sizes)
    pruned = _pruned(file, mask, sizes.sites)
    metadata = pruned.metadata
    metadata.changed["raysearch.search"] = search_id
    tensors = pruned.tensors
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as unfinished:
            if change is not None:
                tensors = [(name, change(file, pruned.kept, name, tensor)) for name, tensor in tensors]
                metadata.changed["general.file_type"] = _file_type(file, [tensor for _, tensor in tensors])
            write_gguf(file, unfinished, metadata, tensors)
    except OSError as error:
        raise UserError(f"--gguf={out} cannot be written ({what_failed(error)}); name another file") from error
    return GGUFExport(
        out=out.absolute(),
        source=file.path,
        n_layers=len(pruned.kept),
        size_bytes=out.stat().st_size,
        source_bytes=file.size_bytes,
        architecture=metadata.architecture or file.architecture,
        search_id=search_id,
        build=metadata.build,
        changes=pruned.changes,
    )


def refusals(source: Path, masks: Iterable[Mask]) -> dict[Mask, str]:
    """Return the masks whose layers and halves cannot be removed from a GGUF file.

    Args:
        source: The GGUF file of the dense model.
        masks: The masks to check.

    Returns:
        The reason for each refused mask; empty if the file does not exist.

    Raises:
        UserError: The file cannot be read.
    """
    if not part_names(source)[0].is_file():
        return {}
    reasons = {}
    file = read_gguf(source)
    sites = Sites.of_equal_layers(file.layers)
    for mask in masks:
        try:
            _pruned(file, mask, sites)
        except UserError as error:
            reasons[mask] = str(error)
    return reasons


def _check_destination(source: Path, out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise UserError(f"--gguf={out} is a folder; name a file")
    if out.exists() and any(part.exists() and out.samefile(part) for part in part_names(source)):
        raise UserError(f"--gguf={out} is the dense model itself; name another file")
    if out.exists() and not overwrite:
        raise UserError(f"--gguf={out} is there already; name another file, or replace it with --overwrite")


def _pruned(file: GGUFFile, mask: Mask, sites: Sites) -> PrunedFile:
    """Return the layers, the metadata and the tensors of the pruned file; refuse what no file can describe."""
    kept = KeptBlocks.without(mask, sites, file.parts_of_tensors)
    if kept.are_complete:
        pruned = PrunedFile(kept, _pruned_metadata(file, kept, mask), renumbered(file, kept))
    else:
        pruned = deci.as_deci(file, kept)
    key, removed = ("mask", str(mask)) if mask.halves else ("removed_layers", list(mask))
    pruned.metadata.changed[f"raysearch.{key}"] = removed
    if len(file.parts) > 1:
        pruned.metadata.dropped.update(name for name in file.reader.fields if name.startswith("split."))
    return pruned


def _check_is_model(file: GGUFFile, sizes: ModelSizes) -> None:
    """Refuse a file of another model."""
    parameters = [0] * min(file.blocks, len(file.reader.tensors))
    vocabulary = sizes.vocab_size
    for tensor in file.reader.tensors:
        if (block := BLOCK.fullmatch(tensor.name)) and int(block[1]) < len(parameters):
            parameters[int(block[1])] += int(tensor.n_elements)
        elif tensor.name == "token_embd.weight":
            vocabulary = int(tensor.shape[1])
    hidden_size = file.get("embedding_length") or 0
    if not any(parameters):
        raise file.refused(f"{file.architecture} keeps no layers as blk.N tensors")
    facts = [
        ("layers", file.layers, sizes.sites.n_layers, 0.0),
        ("hidden state's width", hidden_size, sizes.hidden_size, 0.0),
        ("words of the vocabulary", vocabulary, sizes.vocab_size, _ROUGHLY),
    ]
    for layer, (number, expected) in enumerate(zip(parameters, sizes.sites.layer_parameters, strict=False)):
        facts.append((f"parameters of layer {layer}", number, expected, _ROUGHLY))
    for fact, number, expected, tolerance in facts:
        if abs(number - expected) > tolerance * expected:
            raise UserError(
                f"--from={file.path} is not the model {sizes.name}: {fact} {number:,} instead of {expected:,}; "
                "name a GGUF file of the same model"
            )


def _pruned_metadata(file: GGUFFile, kept: KeptBlocks, mask: Mask) -> ChangedMetadata:
    """Return the metadata that changes; refuse a file whose metadata cannot describe the kept layers."""
    n_layers = kept.n_layers
    n_kept = len(kept)
    n_predicting = file.blocks - n_layers
    prefix = f"{file.architecture}."
    metadata = ChangedMetadata({f"{prefix}block_count": n_kept + n_predicting})
    if is_computed_differently(file.architecture, n_layers, n_kept):
        raise file.refused(
            f"llama.cpp computes a {file.architecture} of {n_layers} layers differently from one of {n_kept}"
        )
    if mask.halves and file.get("use_parallel_residual"):
        raise file.refused("its attentions and MLPs run side by side", "search with space=layers")
    periods = periods_of(PERIODS, file.values)
    period_keys = {period.rule.key.gguf for period in periods if period.rule.key is not None}
    for name, stored in file.reader.fields.items():
        if _OTHER.fullmatch(name):
            continue
        key = name.removeprefix(prefix)
        value = stored.contents()
        rule = gguf_rule(key, value, KeptLayers(kept.layers_of("attention"), n_layers, n_predicting))
        if rule is None and key != name:
            _check_unknown(file, name, value, is_period=key in period_keys, mask=mask)
        elif rule is not None and rule.kind is Kind.FIXED and mask:
            raise file.refused(rule.reason)
        elif rule is not None and rule.kind not in (Kind.FIXED, Kind.STAYS):
            metadata.changed[name] = cut_for_blocks(key, rule.kind, value, kept, n_predicting)
    for period in periods:
        layers = KeptLayers(kept.layers_of(period.rule.part), n_layers, n_predicting)
        _describe(period, file, layers, mask, metadata)
    return metadata


def _check_unknown(file: GGUFFile, name: str, value: Any, *, is_period: bool, mask: Mask) -> None:
    """Refuse a value that no rule covers if it may depend on layers."""
    if isinstance(value, list):
        if value and not isinstance(value[0], str):
            raise file.refused(f"{name} has {count(len(value), 'value')} for {count(file.layers, 'layer')}")
    elif value and mask and not is_period and _SUSPECT.fullmatch(name):
        raise file.refused(f"what {name}={value} says of the layers that stay is unknown")


def _describe(period: Period, file: GGUFFile, layers: KeptLayers, mask: Mask, metadata: ChangedMetadata) -> None:
    """Add a list of kinds if a period gives a kept layer another kind; refuse a file for which there is no list."""
    as_list = period.rule.as_list
    if as_list is None:
        if period.changes(layers.indices, layers.n_layers):
            raise file.refused(
                f"{period.rule.about} follows from their places, {period.text}, which {mask} changes",
                f"choose a mask that keeps the pattern, or use {CHECKPOINT}",
            )
        return
    prefix = f"{file.architecture}."
    list_key = f"{prefix}{as_list.key.gguf}"
    listed = file.get(as_list.key.gguf or "")
    flags = list_instead(period, listed, layers.indices, layers.n_layers)
    if flags is None:
        return
    if not isinstance(listed, list):
        metadata.changed[list_key] = flags + [False] * layers.n_predicting
        metadata.dropped.add(list_key)  # the key may have had a period
    if period.rule.key is not None and period.rule.key != as_list.key:
        metadata.dropped.add(f"{prefix}{period.rule.key.gguf}")
    metadata.build = max(as_list.since, metadata.build or 0)


def _file_type(file: GGUFFile, tensors: Sequence[StoredTensor]) -> int:
    """Return the file's quantisation for its metadata: as before, or Q8_0 if tensors were converted to that."""
    import gguf

    before = file.reader.fields.get("general.file_type")
    types = {tensor.tensor_type for tensor in file.reader.tensors}
    if before is not None and {tensor.kind for tensor in tensors} <= types:
        return int(before.contents())
    return int(gguf.LlamaFileType.MOSTLY_Q8_0)
