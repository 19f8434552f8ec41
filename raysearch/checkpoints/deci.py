"""Writes GGUF files with layers that have only an attention or only an MLP: llama.cpp's architecture `deci`.

Its metadata has the numbers of heads and the widths of MLPs of each block. A block without heads has no attention and
no KV cache. A block with an attention and no MLP would lose its attention, too, so it gets a small MLP of zeros. The
first block needs heads, so it gets a small attention of zeros if it has none. All other tensors keep their bytes; those
of a Qwen2 that are rotated have their rows in another order, since `deci` rotates neighbouring values.

Source: llama.cpp's `src/models/deci.cpp`; tests run build b11549.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysearch.checkpoints.gguf_file import (
    BLOCK,
    ChangedMetadata,
    GGUFFile,
    PrunedFile,
    StoredTensor,
    interleaved_heads,
    renumbered,
)
from raysearch.checkpoints.kept_blocks import KeptBlocks

NAME = "deci"
SINCE = "December 2024"  #: when llama.cpp got the architecture, in its pull request 10669
_DECI = "llama.cpp's architecture for such layers, deci,"
#: A remedy for models that the architecture does not cover.
_PAIRS = "search with space=pairs, or space=layers"
#: The architectures of GGUF files that compute what `deci` does; True if they rotate values half a head apart.
_ROTATES_HALVES = {"llama": False, "qwen2": True}
#: The same as model types of transformers.
_MODEL_TYPES = ("llama", "mistral", "qwen2")
#: The keys whose values mean the same in `deci`. Another key must have no value, or 0.
_KEYS = re.compile(
    r"block_count|context_length|embedding_length|vocab_size|feed_forward_length|tensor_data_layout|attention\.causal"
    r"|attention\.(head_count|head_count_kv|key_length|value_length|layer_norm_rms_epsilon)"
    r"|rope\.(dimension_count|freq_base|scale_linear|scaling\..+)"
)
_TENSORS = re.compile(r"(token_embd|output_norm|output|rope_freqs)\.weight")
_TENSORS_OF_BLOCKS = re.compile(r"(attn_norm|ffn_norm)\.weight|(attn_(q|k|v|output)|ffn_(gate|up|down))\.(weight|bias)")
_ROTATED = re.compile(r"attn_[qk]\.(weight|bias)")
_WIDTH_OF_ZEROS = 32  # of an MLP; a multiple that all backends of llama.cpp take


def why_not_deci(config: Mapping[str, Any]) -> str | None:
    """Return why no GGUF file can have layers of a model with an attention only, or an MLP only.

    Args:
        config: The content of ``config.json``, or of its part that describes the decoder.

    Returns:
        The reason, as a clause; None if llama.cpp's architecture `deci` covers the model.
    """
    model_type = config.get("model_type")
    if model_type not in _MODEL_TYPES:
        return f"{_DECI} covers Llama, Mistral and Qwen2, and not {model_type}"
    if model_type != "llama" and config.get("sliding_window") and config.get("use_sliding_window", True):
        return f"{_DECI} has no windows"
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        return f"{_DECI} has MLPs with silu, and not with {activation}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1):
        return f"{_DECI} rotates whole heads"
    return None


def as_deci(file: GGUFFile, kept: KeptBlocks) -> PrunedFile:
    """Return the pruned file as `deci`.

    Args:
        file: The dense model's file.
        kept: The layers of the pruned model.

    Returns:
        The metadata and the tensors of the pruned file.

    Raises:
        UserError: `deci` computes another model.
    """
    if (reason := _why_not(file)) is not None:
        raise file.refused(f"some layers would have only an attention or only an MLP, and {reason}", _PAIRS)
    n_heads = _by_layer(file, "attention.head_count")
    n_kv_heads = _by_layer(file, "attention.head_count_kv", default=n_heads)
    widths = _by_layer(file, "feed_forward_length")
    head = _head_width(file)
    hidden = int(file.get("embedding_length"))
    blocks = kept.blocks
    heads_of_block = [0 if block.attention is None else n_heads[block.attention] for block in blocks]
    kv_heads_of_block = [0 if block.attention is None else n_kv_heads[block.attention] for block in blocks]
    widths_of_block = [_WIDTH_OF_ZEROS if block.mlp is None else widths[block.mlp] for block in blocks]
    tensors = renumbered(file, kept)
    changes = []
    if _ROTATES_HALVES[file.architecture]:
        tensors = [(name, _rotated(name, tensor, heads_of_block, kv_heads_of_block)) for name, tensor in tensors]
        changes.append("The rows of attn_q and attn_k have these bytes in another order.")
    if blocks[0].attention is None:
        heads_of_block[0] = kv_heads_of_block[0] = 1
        tensors += _zeros(0, "attn_norm", attn_q=(head, hidden), attn_k=(head, hidden), attn_v=(head, hidden))
        tensors += _zeros(0, attn_output=(hidden, head))
        changes.append("Its first layer has an attention of zeros, with one head.")
    without_mlp = [place for place, block in enumerate(blocks) if block.mlp is None]
    for place in without_mlp:
        inner = (_WIDTH_OF_ZEROS, hidden)
        tensors += _zeros(place, "ffn_norm", ffn_gate=inner, ffn_up=inner, ffn_down=inner[::-1])
    if without_mlp:
        changes.append(f"Layers without an MLP have one of zeros, {_WIDTH_OF_ZEROS} values wide.")
    lists = {
        "attention.head_count": heads_of_block,
        "attention.head_count_kv": kv_heads_of_block,
        "feed_forward_length": widths_of_block,
    }
    values = {"block_count": len(blocks), "attention.key_length": head, "attention.value_length": head}
    prefix = f"{file.architecture}."
    changed = {f"{prefix}{key}": value for key, value in {**values, **lists}.items()}
    metadata = ChangedMetadata(changed, dropped={f"{prefix}{key}" for key in lists}, architecture=NAME)
    return PrunedFile(kept, metadata, tensors, tuple(changes))


def _why_not(file: GGUFFile) -> str | None:
    """Return why `deci` does not compute the model of a file, as a clause; None if it does."""
    if file.architecture not in _ROTATES_HALVES:
        return f"{_DECI} covers llama and qwen2, and not {file.architecture}"
    for name, stored in file.reader.fields.items():
        key = name.removeprefix(f"{file.architecture}.")
        if key != name and not _KEYS.fullmatch(key) and (value := stored.contents()):
            return f"{_DECI} has no {name}={value}"
    head = _head_width(file)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (width := file.get(key)) not in (None, head):
            return f"{_DECI} needs heads whose {key} is their width {head}, and not {width}"
    for tensor in file.reader.tensors:
        match = BLOCK.fullmatch(tensor.name)
        if not (_TENSORS.fullmatch(tensor.name) if match is None else _TENSORS_OF_BLOCKS.fullmatch(match[2])):
            return f"{_DECI} has no {tensor.name}"
    return None


def _by_layer(file: GGUFFile, key: str, default: Sequence[int] | None = None) -> Sequence[int]:
    """Return the value of a key for each layer."""
    value = file.get(key)
    if value is None and default is not None:
        return default
    return value if isinstance(value, list) else [int(value)] * file.layers


def _head_width(file: GGUFFile) -> int:
    """Return the width of a head."""
    stored = file.get("attention.key_length")
    return int(stored or file.get("embedding_length") // _by_layer(file, "attention.head_count")[0])


def _rotated(
    name: str, tensor: StoredTensor, heads_of_block: Sequence[int], kv_heads_of_block: Sequence[int]
) -> StoredTensor:
    """Return a tensor of a model that rotates values half a head apart as one that rotates neighbouring values.

    Args:
        name: The name of the tensor in the new file.
        tensor: The tensor.
        heads_of_block: The number of heads of each block.
        kv_heads_of_block: The number of heads of the keys of each block.

    Returns:
        The tensor with other rows in each head, if it is rotated. A row consists of whole blocks of quantised values.
    """
    match = BLOCK.fullmatch(name)
    if match is None or not _ROTATED.fullmatch(match[2]):
        return tensor
    n_heads = (heads_of_block if match[2].startswith("attn_q") else kv_heads_of_block)[int(match[1])]
    return replace(tensor, read=lambda: np.ascontiguousarray(interleaved_heads(tensor.read(), n_heads)))


def _zeros(place: int, *norms: str, **shapes: tuple[int, int]) -> list[tuple[str, StoredTensor]]:
    """Return tensors of a block that adds nothing: norms of ones, and matrices of zeros.

    Args:
        place: The block.
        norms: The names of norms, whose width is that of the rows.
        shapes: The shapes of matrices, by name.

    Returns:
        The tensors, each after its name.
    """
    width = next(iter(shapes.values()))[1]
    values = {name: np.ones(width, np.float32) for name in norms}
    values |= {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return [(f"blk.{place}.{name}.weight", StoredTensor.of_values(array)) for name, array in values.items()]
