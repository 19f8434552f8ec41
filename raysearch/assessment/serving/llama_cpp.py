"""llama.cpp's servers, which load a GGUF file."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysearch.assessment.serving.client import Client
from raysearch.assessment.serving.process import cause_of
from raysearch.assessment.serving.runtime import ServingRuntime, as_words, written_checkpoint
from raysearch.checkpoints.gguf_pruning import prune_gguf
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.export import kept_blocks
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelInfo
from raysearch.searching.serve_options import ServeOptions

#: The sizes of caches in the log: of keys and values, and of the states of recurrent layers.
_CACHE = re.compile(r"\b(?:llama_kv_cache\w*|llama_memory_recurrent): size = +([\d.]+) MiB")
_CELLS = re.compile(r"\bllama_kv_cache\w*: size = .*?\( *(\d+) cells")
_INFO = "4"  # the level of the log at which it has the size of the KV cache


class LlamaCpp(ServingRuntime):
    """llama.cpp."""

    title = "llama.cpp"
    name = "llama.cpp"
    program = ("llama-server",)

    @override
    def version_words(self, words: Sequence[str]) -> Sequence[str]:
        return [*words, "--version"]

    @override
    def served_version(self, client: Client) -> str:
        return str(client.read("../props")["build_info"])

    @override
    def check(self, info: ModelInfo, options: ServeOptions) -> None:
        if gguf_file(info.model) is None and options.converter is None:
            raise UserError(
                f"a server of llama.cpp needs a GGUF file, and {info.model.name} is none; name llama.cpp's "
                "convert_hf_to_gguf.py with serve.converter=…"
            )
        if options.converter is not None and not options.converter.is_file():
            raise UserError(f"serve.converter={options.converter} is no file; name llama.cpp's convert_hf_to_gguf.py")

    @override
    def write(self, info: ModelInfo, mask: Mask, folder: Path, options: ServeOptions, files: ExitStack) -> Path:
        source = gguf_file(info.model)
        out = folder / "model.gguf"
        if source is not None:
            if mask:
                prune_gguf(source, mask, out, sizes=info.sizes, search_id="")
            return out if mask else source
        if not kept_blocks(info, mask).are_complete:
            raise UserError(
                f"llama.cpp's converter reads no layers without one of their halves, which {mask} leaves; use a GGUF "
                "file as the model"
            )
        pruned = folder / "checkpoint"
        pruned.mkdir()
        checkpoint = written_checkpoint(info, mask, pruned, files)
        return _converted(checkpoint, out, options)

    @override
    def arguments(self, model: Path, port: int, options: ServeOptions, info: ModelInfo, mask: Mask) -> Sequence[str]:
        # A sequence that fills its share of the context ends early.
        settings = {
            "-m": model,
            "--host": "127.0.0.1",
            "--port": port,
            "-c": options.batch * (options.n_tokens + 1),
            "-np": options.batch,
            "-lv": _INFO,
        }
        return as_words(settings)

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        return {"LLAMA_ARG_CACHE_RAM": "0"}  # else the states of earlier prompts stay in memory

    @override
    def kv_cache(self, log: str, client: Client) -> Mapping[str, Any]:
        sizes = [float(size) for size in _CACHE.findall(log)]
        if not sizes:
            return {}
        cells = [int(number) for number in _CELLS.findall(log)]
        return {"kv_cache_bytes": round(sum(sizes) * 2**20), "kv_cache_told": {"cells": cells, "MiB": sizes}}


def _converted(checkpoint: Path, out: Path, options: ServeOptions) -> Path:
    """Convert a checkpoint by llama.cpp's converter, and return the GGUF file."""
    words = [sys.executable, str(options.converter), str(checkpoint), "--outfile", str(out)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode or not out.is_file():
        cause = cause_of([*done.stderr.splitlines(), *done.stdout.splitlines()])
        raise UserError(f"serve.converter={options.converter} fails ({cause}); check that it knows this model")
    return out
