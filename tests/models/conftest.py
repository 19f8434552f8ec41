from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from tests.models.families import N_LAYERS, VOCABULARY


def write_llama(path: Path, n_layers: int = N_LAYERS, context: int = 64) -> Path:
    """Write a random Llama and a tokenizer, a character a token but for one merge, as a GGUF file."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(n_layers)
    writer.add_context_length(context)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(chr(code) if code > 32 else f"<{code}>" for code in range(VOCABULARY - 1)), "ab"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    writer.add_chat_template("{% for m in messages %}{{ m['role'] + ':' + m['content'] + ' ' }}{% endfor %}")
    attention = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    layer = {**attention, "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48)}
    sizes: dict[str, tuple[int, ...]] = {
        f"blk.{place}.{name}": size for place in range(n_layers) for name, size in layer.items()
    }
    norms = [f"blk.{place}.{name}_norm" for place in range(n_layers) for name in ("attn", "ffn")]
    sizes |= {"token_embd": (VOCABULARY, 32), **dict.fromkeys([*norms, "output_norm"], (32,))}
    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama and its tokenizer in a GGUF file."""
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
