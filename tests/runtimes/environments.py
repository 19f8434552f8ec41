"""The environments that `make runtimes` installs, and the runtimes in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtimes.models import N_TOKENS, PROMPT
from tests.test_structure import ROOT

#: The options of vLLM on a CPU: no compilation, and a small cache.
_VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def environment(name: str) -> Path:
    """Return the folder of a runtime: that of the variable ``RAYSEARCH_VLLM`` etc., or that of `make runtimes`.

    Args:
        name: ``vllm``, ``mlx`` or ``llama.cpp``.
    """
    folder = Path(os.environ.get(f"RAYSEARCH_{name.upper().replace('.', '_')}", ROOT / "build" / "runtimes" / name))
    if not folder.is_dir():
        pytest.fail(f"{name} is not in {folder}; run: make runtimes")
    return folder


def variables(**more: str) -> dict[str, str]:
    """Return the variables of a runtime's process, which must not import what the tests do."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _VLLM_VARIABLES | more


def by_python(name: str, folders: list[Path]) -> dict[Path, list[int] | str]:
    """Return the greedy tokens of checkpoints, or an error, by a runtime that is a Python package.

    One process runs all, since the import takes longer than a tiny model.

    Args:
        name: ``vllm`` or ``mlx``.
        folders: The checkpoints.
    """
    python = environment(name) / "bin" / "python"
    request = {"folders": list(map(str, folders)), "prompt": PROMPT, "n_tokens": N_TOKENS}
    script = Path(__file__).with_name(f"{name}_tokens.py")
    command = [str(python), str(script), json.dumps(request)]
    ended = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False, timeout=1500)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"folder"')]
    return {Path(answer["folder"]): answer["tokens"] for answer in answers}


def convert(folder: Path, file: Path) -> Path:
    """Write a checkpoint as a GGUF file in float32 by llama.cpp's converter.

    Args:
        folder: The checkpoint.
        file: The file to write.
    """
    run_converter(["convert_hf_to_gguf.py", str(folder), "--outfile", str(file), "--outtype", "f32"])
    return file


def run_converter(command: list[str], cwd: Path | None = None) -> None:
    """Run llama.cpp's converter, which brings its own `gguf`.

    Args:
        command: Its name and its arguments.
        cwd: The folder to run it in; None for the current one.
    """
    llama_cpp = environment("llama.cpp")
    script, *arguments = command
    command = [sys.executable, str(llama_cpp / script), *arguments]
    packages = {"PYTHONPATH": str(llama_cpp / "python")}  # sentencepiece, which it imports
    ended = subprocess.run(
        command, cwd=cwd, env=variables(**packages), capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
