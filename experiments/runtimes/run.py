"""Runs exported models with heads that predict further tokens in real runtimes, and compares the greedy tokens.

    python experiments/runtimes/run.py --converter FOLDER --vllm-python VENV/bin/python

Each model is exported whole and without two layers by raysearch, converted by llama.cpp's converter, run by llama.cpp
and by vLLM, and compared with transformers. A runtime whose option is left out is not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
import xllamacpp
from mtp_models import FAMILIES, N_LAYERS, write_model
from transformers import AutoModelForCausalLM

import raysearch

PROMPT = list(range(1000, 1400, 25))
N_TOKENS = 16


def export(dense: Path, kind: str) -> Path:
    """Search with one possible mask, export it, and return the folder."""
    removed = FAMILIES[kind].removed
    protected = [layer for layer in range(N_LAYERS) if layer not in removed]
    search = raysearch.search(
        f"model={dense}",
        "model.dtype=float32",
        "searcher=random",
        "searcher.k=1",
        "data=sotu",
        "data.samples=2",
        "data.seq_len=32",
        "tracking=none",
        remove=len(removed),
        protect=protected,
    )
    out = dense.with_name(f"{kind}-pruned")
    search.export(out)
    return out


def by_transformers(folder: Path, dtype: str = "float32") -> list[int]:
    """Return the tokens that transformers generates.

    Args:
        folder: The checkpoint.
        dtype: The dtype of the weights and states.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    tokens = model.generate(torch.tensor([PROMPT]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=None)
    return tokens[0, len(PROMPT) :].tolist()


def convert(folder: Path, converter: Path) -> Path:
    """Write a GGUF file by llama.cpp's converter, which is in a folder of its own: it has its own version of gguf."""
    file = folder.with_suffix(".gguf")
    script = converter / "convert_hf_to_gguf.py"
    command = [sys.executable, str(script), str(folder), "--outfile", str(file), "--outtype", "f32"]
    environment = {**os.environ, "PYTHONPATH": str(converter)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1])
    return file


def by_llama_cpp(file: Path) -> list[int]:
    """Return the tokens that llama.cpp generates."""
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = 256
    params.warmup = False
    params.verbosity = 0
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    request = {"prompt": PROMPT, "n_predict": N_TOKENS, "n_probs": 1, "temperature": 0.0, "ignore_eos": True}
    answer: Any = server.handle_completions(request)
    return [token["id"] for token in answer["choices"][0]["logprobs"]["content"]]


def by_vllm(folder: Path, python: str, dtype: str) -> list[int]:
    """Return the tokens that vLLM generates.

    Args:
        folder: The checkpoint.
        python: The Python of vLLM's environment.
        dtype: The dtype of the weights and states.
    """
    script = Path(__file__).with_name("vllm_tokens.py")
    request = json.dumps({"prompt": PROMPT, "n_tokens": N_TOKENS, "dtype": dtype})
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, str(script), str(folder), request]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = (ended.stdout + ended.stderr).splitlines()  # its engine, another process, writes to the former
        raise RuntimeError(next(line for line in lines if re.search(r"\w+(Error|Exception): ", line)))
    return json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("[")))


def compared(tokens: list[int], run: Callable[[], list[int]]) -> str:
    """Return how many of the tokens a runtime generates, or why it does not run the model.

    Args:
        tokens: The expected tokens.
        run: Generates tokens.
    """
    try:
        others = run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    n_equal = 0
    while n_equal < len(tokens) and tokens[n_equal] == others[n_equal]:
        n_equal += 1
    return f"{n_equal} of {len(tokens)} tokens"


def heads_in(file: Path) -> int:
    """Return the number of heads that a GGUF file names in its metadata."""
    fields = gguf.GGUFReader(file).fields
    return next((int(field.contents()) for name, field in fields.items() if name.endswith("nextn_predict_layers")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, help="the folder of llama.cpp's converter; without it, no llama.cpp")
    parser.add_argument("--vllm-python", help="Python of an environment with vLLM; without it, no vLLM")
    parser.add_argument("--kinds", default=",".join(FAMILIES), help="names of models, separated by commas")
    arguments = parser.parse_args()
    print("| model | layers | heads in the GGUF file | llama.cpp | vLLM |\n|---|---:|---:|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        for kind in arguments.kinds.split(","):
            dense = Path(temporary) / kind
            write_model(dense, kind)
            for folder in (dense, export(dense, kind)):
                cells = ["", "", ""]
                if arguments.converter:
                    try:
                        file = convert(folder, arguments.converter)
                    except RuntimeError as error:
                        cells[1] = f"converter: {error}"
                    else:
                        cells[0] = str(heads_in(file))
                        cells[1] = compared(by_transformers(folder), partial(by_llama_cpp, file))
                if arguments.vllm_python:
                    dtype = FAMILIES[kind].vllm_dtype
                    run = partial(by_vllm, folder, arguments.vllm_python, dtype)
                    cells[2] = compared(by_transformers(folder, dtype), run)
                n_layers = N_LAYERS - len(FAMILIES[kind].removed) * (folder != dense)
                print(f"| {kind} | {n_layers} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
