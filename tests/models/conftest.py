from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as library
import numpy as np
import pytest

from tests.models.families import N_LAYERS, VOCABULARY

WIDTH = 32
HEADS = 4


def write_llama(
    path: Path,
    n_layers: int = N_LAYERS,
    context: int = 64,
    architecture: str = "llama",
    quantised: bool = False,
    quantisation: str = "Q8_0",
    **more: Any,
) -> Path:
    """Write a random model and a tokenizer as a GGUF file. A token is one character, except for one merge.

    Args:
        path: The file.
        n_layers: The number of layers.
        context: The longest sequence, in tokens.
        architecture: The architecture. Others than Llama get their additional tensors and metadata.
        quantised: Whether to quantise the matrices.
        quantisation: The quantisation.
        more: Further metadata by key, without the architecture's prefix.
    """
    gemma = architecture.startswith("gemma")
    moe = architecture == "qwen3moe"
    apertus = architecture == "apertus"
    head = 256 if gemma else WIDTH // HEADS
    inner = 96
    writer = library.GGUFWriter(path, architecture)
    writer.add_block_count(n_layers)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(code) if code > 32 else f"<{code}>" for code in range(VOCABULARY - 1)), "ab"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    writer.add_chat_template("{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}{% endfor %}")
    attention = {"attn_q": (HEADS * head, WIDTH), "attn_k": (2 * head, WIDTH), "attn_v": (2 * head, WIDTH)}
    dense: dict[str, tuple[int, ...]]
    dense = {"ffn_gate": (inner, WIDTH), "ffn_up": (inner, WIDTH), "ffn_down": (WIDTH, inner)}
    if moe:
        inner = 768  # transformers accepts no other width
        writer.add_expert_count(2)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(inner)
        dense = {"ffn_gate_exps": (2, inner, WIDTH), "ffn_up_exps": (2, inner, WIDTH)}
        dense |= {"ffn_down_exps": (2, WIDTH, inner), "ffn_gate_inp": (2, WIDTH)}
    elif apertus:
        dense.pop("ffn_gate")
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH}
    if moe or apertus or architecture == "gemma3":
        norms |= {"attn_q_norm": head, "attn_k_norm": head}
    if gemma:
        norms |= {"post_attention_norm": WIDTH, "post_ffw_norm": WIDTH}
        writer.add_sliding_window(4)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    for name, value in more.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(name if name.startswith("xielu.") else f"{architecture}.{name}", value)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    shapes |= {} if gemma else {"output": (VOCABULARY, WIDTH)}
    layer = attention | {"attn_output": (WIDTH, HEADS * head)} | dense | {name: (size,) for name, size in norms.items()}
    for place in range(n_layers):
        shapes |= {f"blk.{place}.{name}": size for name, size in layer.items()}
    rng = np.random.default_rng(0)
    kind = library.GGMLQuantizationType[quantisation]
    for name, size in shapes.items():
        values = (rng.normal(scale=0.15, size=size) + (len(size) == 1)).astype(np.float32)
        if quantised and len(size) > 1:
            writer.add_tensor(f"{name}.weight", library.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split(file: Path, tensors_per_part: int = 16, small_first_part: bool = False) -> list[Path]:
    """Split a GGUF file as llama.cpp does, in another folder.

    Args:
        file: The file.
        tensors_per_part: The number of tensors in each part but the last.
        small_first_part: Whether the first part has metadata only.

    Returns:
        The parts.
    """
    reader = library.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    writer = library.GGUFWriter(
        None, architecture, split_max_tensors=tensors_per_part, small_first_shard=small_first_part
    )
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *item_kinds = field.types
            writer.add_key_value(name, field.contents(), kind, item_kinds[0] if item_kinds else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    folder = file.parent / "parts"
    folder.mkdir(exist_ok=True)
    writer.write_header_to_file(folder / file.name)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{file.stem}-*.gguf"))


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama and its tokenizer in a GGUF file."""
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
