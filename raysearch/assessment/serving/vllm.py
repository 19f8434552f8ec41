"""vLLM's servers, which load a folder with config and safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysearch.assessment.serving.client import Client
from raysearch.assessment.serving.runtime import ServingRuntime, as_words, written_checkpoint
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.models.runtime_cache import kv_cache_in
from raysearch.models.spec import ModelInfo
from raysearch.searching.serve_options import ServeOptions
from raysearch.text.numbers import size

#: The room for a KV cache of unknown size. Two servers run at once, and by default each takes most of the memory.
_POOL_BYTES = 2**30
_BLOCK_TOKENS = 128  # the largest of vLLM's default blocks, which are smaller on GPUs
_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_NUMBERS = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_memory_bytes")


class VLLM(ServingRuntime):
    """vLLM."""

    title = "vLLM"
    name = "vllm"
    program = ("vllm", "serve")

    @override
    def version_words(self, words: Sequence[str]) -> Sequence[str]:
        program = words[0]
        if Path(program).name.startswith("python"):  # python -m vllm.entrypoints.openai.api_server
            return [program, "-c", "import vllm; print(vllm.__version__)"]
        return [program, "--version"]

    @override
    def version_in(self, lines: Sequence[str]) -> str:
        return next((line for line in reversed(lines) if re.match(r"\d+\.\d+", line)), lines[-1])

    @override
    def served_version(self, client: Client) -> str:
        return str(client.read("../version")["version"])

    @override
    def check(self, info: ModelInfo, options: ServeOptions) -> None:
        """Any model can be exported."""

    @override
    def write(self, info: ModelInfo, mask: Mask, folder: Path, options: ServeOptions, files: ExitStack) -> Path:
        return written_checkpoint(info, mask, folder, files)

    @override
    def arguments(self, model: Path, port: int, options: ServeOptions, info: ModelInfo, mask: Mask) -> Sequence[str]:
        settings = {
            "--model": model,
            "--host": "127.0.0.1",
            "--port": port,
            "--max-model-len": options.n_tokens,
            "--max-num-seqs": options.batch,
            "--kv-cache-memory-bytes": _cache_bytes(info, mask, options) or _POOL_BYTES,
        }
        has_code = not KeptBlocks.without(mask, info.sites).are_complete  # written by raysearch
        code = ["--trust-remote-code"] if info.model.trust_remote_code or has_code else []
        return [*as_words(settings), "--no-enable-prefix-caching", *code]

    @override
    def memory_note(self, info: ModelInfo, options: ServeOptions) -> str:
        if _cache_bytes(info, Mask(), options) is not None:
            return ""
        return f"; it contains a pool of {size(_POOL_BYTES)} for the KV cache, dense or pruned"

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        return {"VLLM_NO_USAGE_STATS": "1"}

    @override
    def kv_cache(self, log: str, client: Client) -> Mapping[str, Any]:
        config = _CONFIG.search(client.text("../metrics"))
        values = dict(re.findall(r'(\w+)="([^"]*)"', config[1])) if config else {}
        return {"kv_cache_told": {name: int(values[name]) for name in _NUMBERS if values.get(name, "").isdecimal()}}


def _cache_bytes(info: ModelInfo, mask: Mask, options: ServeOptions) -> int | None:
    """Return the size of the KV cache that a server needs; None if it is not known.

    It has room for all sequences in whole blocks, a block more for each, into which vLLM may schedule tokens ahead, and
    vLLM's null block.

    Args:
        info: The dense model.
        mask: The removed layers.
        options: The sequences and tokens.
    """
    try:
        cache = kv_cache_in("vllm", info, options.n_tokens, 1, _BLOCK_TOKENS)
    except UnsupportedModelError:
        return None
    n_blocks = math.ceil(options.n_tokens / _BLOCK_TOKENS)
    return cache.size_without(mask, info.sites) // n_blocks * (options.batch * (n_blocks + 1) + 1)
