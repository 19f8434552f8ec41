"""Tiny GGUF files whose layers lose halves, and what plain programs compute without these halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from raysearch.checkpoints.gguf_pruning import GGUFExport, ModelSizes, prune_gguf
from raysearch.core.mask import Mask
from tests.checkpoints.test_gguf_pruning import TOKENS, sizes_of
from tests.models.checkpoint_as_gguf import write_as_gguf
from tests.models.test_gguf_config import Case, write


def random_file(case: Case, folder: Path) -> tuple[Path, Path]:
    """Write a random checkpoint, with random norms and biases, and its GGUF file."""
    checkpoint, _ = write(case, folder)
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim == 1:
                values.add_(torch.randn_like(values) * (0.5 if name.endswith("bias") else 0.1))
    model.save_pretrained(checkpoint)
    return checkpoint, write_as_gguf(checkpoint, case.architecture, case.metadata, case.factors)


def without(file: Path, *parts: int | str) -> GGUFExport:
    """Write a file without layers and halves."""
    sizes = sizes_of(file)
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    width = reader.fields[f"{architecture}.embedding_length"].contents()
    sizes = ModelSizes(sizes.name, sizes.sites, width, sizes.vocab_size)
    mask = Mask.of(*parts)
    out = file.with_name(f"{file.stem}{mask}.gguf")
    return prune_gguf(file, mask, out, sizes=sizes, search_id="greedy-m2-1")


def silenced(checkpoint: Path, *parts: int | str) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of the next token in transformers, if the halves of a checkpoint return zeros."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode(), silent(model, Mask.of(*parts)):
        return torch.log_softmax(model(torch.tensor([TOKENS])).logits[0, -1].double(), -1).numpy()


@contextmanager
def silent(model: Any, mask: Mask) -> Iterator[None]:
    """Let the halves of a mask return zeros within the context, in a model whose layers are named as those of Llama."""
    with ExitStack() as hooks:
        for half in mask.all_halves:
            layer = model.model.layers[half.layer]
            module = layer.self_attn.o_proj if half.part == "attention" else layer.mlp
            hooks.callback(module.register_forward_hook(lambda *call: call[-1] * 0).remove)
        yield


def silent_file(file: Path, mask: Mask, out: Path) -> Path:
    """Write a GGUF file of all layers, in which the halves of a mask return zeros, and return it."""
    names = {
        f"blk.{half.layer}.{'attn_output' if half.part == 'attention' else 'ffn_down'}" for half in mask.all_halves
    }

    def change(tensor: Any) -> tuple[Any, Any]:
        is_silent = tensor.name.rpartition(".")[0] in names
        return tensor.data * 0 if is_silent else tensor.data, tensor.tensor_type

    return rewritten(file, out, change)


def quantised(file: Path, quantisation: str) -> Path:
    """Write a GGUF file whose matrices are quantised, as far as their rows are whole blocks, and return it."""
    kind = gguf.GGMLQuantizationType[quantisation]

    def change(tensor: Any) -> tuple[Any, Any]:
        if tensor.data.ndim == 1 or tensor.data.shape[-1] % 32:
            return tensor.data, tensor.tensor_type
        return gguf.quants.quantize(tensor.data, kind), kind

    return rewritten(file, file.with_name(f"{file.stem}-{quantisation}.gguf"), change)


def dequantised(file: Path, out: Path) -> Path:
    """Write a GGUF file whose tensors are float32, and return it."""

    def change(tensor: Any) -> tuple[Any, Any]:
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type), gguf.GGMLQuantizationType.F32

    return rewritten(file, out, change)


def rewritten(file: Path, out: Path, change: Callable[[Any], tuple[Any, Any]]) -> Path:
    """Write a GGUF file with changed tensors.

    Args:
        file: The file.
        out: The new file.
        change: Returns the stored array and the quantisation of a tensor of gguf's reader.

    Returns:
        The new file.
    """
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, stored in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *item_kinds = stored.types
            writer.add_key_value(name, stored.contents(), kind, item_kinds[0] if item_kinds else None)
    for tensor in reader.tensors:
        values, kind = change(tensor)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
