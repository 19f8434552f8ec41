"""The KV cache of other runtimes: llama.cpp's log tells the same cells and bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysearch.checkpoints.gguf_pruning import prune_gguf
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.models.description import describe
from raysearch.models.runtime_cache import kv_cache_in
from raysearch.models.spec import ModelSpec
from tests.models.conftest import write_llama
from tests.models.families import FAMILIES, HYBRIDS
from tests.sentences import Sentences

_LOAD = """
import os, sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.warmup, params.n_gpu_layers, params.verbosity = False, 0, 10
server = xllamacpp.Server(params)
time.sleep(1)  # the log is written by a thread
os._exit(0)  # a server that ends before its loop starts would wait forever
"""
_LINE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")


def told_by_llama_cpp(file: Path, n_tokens: int, n_sequences: int) -> set[tuple[float, int, int]]:
    """Load a GGUF file, and return MiB, cells and layers of each part of its cache, as the log has them."""
    command = [sys.executable, "-c", _LOAD, str(file), str(n_tokens * n_sequences), str(n_sequences)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {(float(size), int(cells), int(layers)) for size, cells, layers in _LINE.findall(done.stdout + done.stderr)}


def test_cells_and_bytes_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Blocks have 256 cells; Gemma's window of 4 tokens has room for a batch of 512 more."""
    masks = (("llama", Mask.of(1), 1024), ("gemma3", Mask.of(1, 4), 768), ("llama", Mask.of("1a", "2a", "5m"), 1024))
    for architecture, mask, n_cells in masks:
        file = write_llama(tmp_path / f"{architecture}.gguf", 7, context=4096, architecture=architecture)
        info = describe(ModelSpec("m", str(file)))
        pruned = tmp_path / f"{architecture}-pruned.gguf"
        prune_gguf(file, mask, pruned, sizes=info.sizes, search_id="search", overwrite=True)
        cache = kv_cache_in("llama.cpp", info, 1000, 2)
        for path, removed in ((file, Mask()), (pruned, mask)):
            parts = told_by_llama_cpp(path, 1000, 2)
            assert {cells for _, cells, _ in parts} == {1024, n_cells}
            assert sum(layers for *_, layers in parts) == len(info.sites.blocks(removed))
            size_bytes = cache.size_without(removed, info.sites)
            assert sum(mib for mib, *_ in parts) == pytest.approx(size_bytes / 2**20, abs=0.01 * len(parts))


def test_vllm_has_blocks_of_all_tokens(tmp_path: Path) -> None:
    """Of the demo model, vLLM 0.32.0 reports pages of 98,304 bytes: 128 tokens of 2 x 3 heads of 64 numbers."""
    info = describe(ModelSpec("m", str(write_llama(tmp_path / "m.gguf", 5)), dtype="bfloat16"))
    token_bytes = kv_cache_in("vllm", info, 1, 1, block_tokens=1).layer_bytes[0]
    assert token_bytes == 2 * 2 * 8 * 2, "keys and values of 2 heads of 8 numbers"
    assert kv_cache_in("vllm", info, 33, 3).layer_bytes == (3 * 48 * token_bytes,) * 5
    assert kv_cache_in("vllm", info, 33, 3, block_tokens=128).layer_bytes == (3 * 128 * token_bytes,) * 5


def test_what_is_not_known_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    for name, runtime in (("mamba", "llama.cpp"), ("deepseek_v3", "llama.cpp"), ("gemma2", "vllm")):
        {**FAMILIES, **HYBRIDS}[name]().save_pretrained(tmp_path / name)
        info = describe(ModelSpec(name, str(tmp_path / name)))
        with sentences.refused(UnsupportedModelError, name):
            kv_cache_in(runtime, info, 33, 1)
