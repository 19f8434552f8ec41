"""Kill commands at random moments, run them again to their end, and compare their results with an undisturbed run.

    python experiments/soak/run.py --kills 200 --folder /tmp/soak

Every trial has its own seed and its own folder, which is deleted afterwards. Its result is a line of ``trials.jsonl``,
so the same command continues where it was stopped. The model is a random Llama of six layers, written on first use.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long a command may take to end after a signal, and to run, in seconds.
END_S, RUN_S = 60.0, 600.0
_DATA = ["data.samples=12", "data.seq_len=48", "data.shard_samples=2", "model.dtype=float32", "cluster=inline"]


@dataclass(frozen=True)
class Command:
    """A command that is killed.

    Args:
        arguments: The arguments of ``raysearch``; ``MODEL`` stands for the model's folder.
        answer: Reads its result from its standard output and its folder.
        needs: The command that must have run before; its folder is copied.
        nothing_left: Its message, with an exit code, if an earlier command has done all of the work.
    """

    arguments: list[str]
    answer: Callable[[str, Path], Any]
    needs: str | None = None
    nothing_left: str | None = None


def evaluations(store: Path) -> list[Any]:
    """Return the number of evaluations that a ledger has, and the digest of them all."""
    with closing(sqlite3.connect(store / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT * FROM evaluations ORDER BY calibration, subject, shard").fetchall()
    return [len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()]


def search_answer(printed: str, folder: Path) -> Any:
    """Return the mask, its loss, what was requested, and the digest of all losses that the ledger has."""
    result = json.loads(printed)
    whole = [result["search_id"], result["removed"], result["loss"], result["evaluations"]["requested"]]
    return [*whole, *evaluations(folder / "mlruns")]


def listed(printed: str, _: Path) -> Any:
    """Return all that was printed but times, costs, and where an adapter's model lies."""

    def plain(value: Any) -> Any:
        costs = "seconds cached computed decode prefill peak_memory ended busy_share pool"
        left_out = (*costs.split(), "base_model_name_or_path")
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items() if not key.startswith(left_out)}
        return [plain(part) for part in value] if isinstance(value, list) else value

    return plain(json.loads(printed))


def studied(printed: str, folder: Path) -> Any:
    """Return what was printed of each search but times and costs, and what the ledger has of all of them."""
    return [listed(json.dumps(json.loads(printed)["cells"]), folder), *evaluations(folder / "mlruns")]


def written(_: str, folder: Path) -> Any:
    """Return the digests of all files outside the store but model cards; of JSON, all but times and costs."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "README.md"]
    names = {str(file.relative_to(folder)): file for file in files if file.relative_to(folder).parts[0] != "mlruns"}
    return {
        name: listed(file.read_text(), folder)
        if file.suffix == ".json"
        else hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in names.items()
    }


def mlflow_runs(_: str, folder: Path) -> Any:
    """Return the metrics of every run that MLflow has, by its name, and how it ended."""
    script = (
        "import json, mlflow\n"
        "runs = mlflow.MlflowClient('sqlite:///mlruns/mlflow.db').search_runs(['1'], max_results=5000)\n"
        "keep = ('loss/pruned', 'loss/delta', 'perplexity/pruned')\n"
        "print(json.dumps(sorted((run.info.run_name, run.info.status, "
        "{key: run.data.metrics.get(key) for key in keep}) for run in runs), default=str))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


_QUIET = ["tracking=none", "--json"]
_GREEDY = ["search", "model=MODEL", "searcher=greedy", "remove=3", "screening=off", *_DATA]
_TEXT = "assess.texts.held_out=data=sotu data.part=held_out data.samples=all data.sampling=sequential"
_ASKED = "assess.generation.asked=data=generation data.path=MODEL/asked.jsonl data.samples=all data.max_new_tokens=8"
_ASSESS = ["assess=none", "assess.seq_len=48", "assess.limit=8", _TEXT]
_TRAIN = [f"recovery.{how}" for how in ("max_steps=4", "micro_batch_size=4", "checkpoint_steps=1", "top_k=8")]
_RECOVER = [*_ASSESS, "assess.probe.enabled=false", "data.samples=40", "data.seq_len=48", *_TRAIN]
COMMANDS = {
    "search": Command([*_GREEDY, *_QUIET], search_answer),
    "search, screened": Command(["search", "model=MODEL", "searcher=beam", "remove=2", *_DATA, *_QUIET], search_answer),
    "search by a budget": Command(
        ["search", "model=MODEL", "remove=auto", "budget.loss=1", "speed.enabled=false", *_DATA, *_QUIET], search_answer
    ),
    "search of a GGUF file": Command(
        ["search", "searcher=one_shot", "remove=5", *_DATA, "data.samples=2", *_QUIET], search_answer
    ),
    "search with Ray": Command([*_GREEDY[:-1], "cluster=local", "cluster.replicas=2", *_QUIET], search_answer),
    "search with MLflow": Command([*_GREEDY, "--json"], mlflow_runs),
    "resume": Command(["resume", "latest", "--json"], search_answer, "search"),
    "score": Command(["score", "model=MODEL", "masks=[[0],[1,2],[3]]", *_DATA, "--json"], listed),
    "data": Command(["data", "model=MODEL", *_DATA, "--json"], listed),
    "sweep": Command(["sweep", "model=MODEL", *_DATA, "--json"], listed),
    "study": Command(
        ["study", "model=MODEL", "study.grid.remove=[1,2]", "cluster.replicas=1", *_DATA[:-1], *_QUIET], studied
    ),
    "report": Command(["report", "--out", "out"], written, "study"),
    "assess": Command(["assess", "latest", *_ASSESS, "assess.probe.enabled=true", "--json"], listed, "search"),
    "assess, answers": Command(["assess", "latest", *_ASSESS[:-1], _ASKED, "--json"], listed, "search"),
    "recommend": Command(["recommend", "latest", "budget.loss=1", "--json"], listed, "search by a budget"),
    "recover": Command(["recover", "latest", "--out", "out", *_RECOVER], written, "search"),
    "sync": Command(["sync", "latest", "tracking=mlflow"], mlflow_runs, "search"),
    "export": Command(["export", "latest", "--out", "out", "--overwrite"], written, "search"),
    "export --gguf": Command(
        ["export", "latest", "--gguf", "out.gguf", "--overwrite"], written, "search of a GGUF file"
    ),
    "ledger export": Command(["ledger", "export", "--out", "out"], written, "search"),
    "ledger merge": Command(
        ["ledger", "merge", "mlruns", "--store", "all"], lambda _, folder: evaluations(folder / "all"), "search"
    ),
    "ledger clean": Command(
        ["ledger", "clean", "latest", "--yes"],
        lambda _, folder: evaluations(folder / "mlruns"),
        "search",
        nothing_left="holds no search yet",
    ),
}


def main() -> None:
    """Kill commands until there were `--kills` signals, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("soak"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model, log = write_model(folder / "model"), folder / "trials.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    while sum(len(trial["signals"]) for trial in done) < options.kills:
        rng = random.Random(f"{options.seed}-{len(done)}")
        name = options.only[len(done) % len(options.only)]
        trial = {"number": len(done), "command": name, **disturbed(name, folder, model, rng)}
        done.append(trial)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial) + "\n")
        print(json.dumps(trial), flush=True)
    show(done)
    sys.exit(any(trial["wrong"] for trial in done))


@functools.cache
def undisturbed(name: str, folder: Path, model: Path) -> tuple[Any, Path, float]:
    """Return the result of a command, its folder after the command, and its time in seconds."""
    command = COMMANDS[name]
    where = folder / "undisturbed" / name.replace(" ", "-").replace(",", "")
    shutil.rmtree(where, ignore_errors=True)
    before(command, folder, model, where)
    started = time.perf_counter()
    done = run(command, model, where)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{name} fails undisturbed: {done.stderr[-2000:]}")
    return command.answer(done.stdout, where), where, seconds


def before(command: Command, folder: Path, model: Path, where: Path) -> None:
    """Make the folder that a command begins in."""
    if command.needs is None:
        where.mkdir(parents=True)
        return
    _, ready, _ = undisturbed(command.needs, folder, model)
    shutil.copytree(ready, where, ignore=shutil.ignore_patterns("converted"))


def disturbed(name: str, folder: Path, model: Path, rng: random.Random) -> dict[str, Any]:
    """Kill a command up to four times, let it end, and return the signals and what was wrong; empty if nothing was."""
    command, (answer, _, seconds) = COMMANDS[name], undisturbed(name, folder, model)
    where, signals, wrong = folder / "trial", [], ""
    shutil.rmtree(where, ignore_errors=True)
    before(command, folder, model, where)
    for _ in range(rng.randint(1, 4)):
        number = rng.choice(SIGNALS)
        process = start(command, model, where)
        try:
            process.communicate(timeout=rng.uniform(0, 1.1 * seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            signals.append(number.name)
            try:
                _, printed = process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # which prints the stack of each thread
                _, printed = process.communicate()
                wrong = f"did not end within {END_S:.0f} s of {number.name}: {printed}"
            else:
                wrong = f"traceback: {printed}" if has_traceback(printed, number) else wrong
    done = run(command, model, where)
    if "raysearch sync" in done.stderr:  # as it says where MLflow took longer than a search waits for it
        raysearch(["sync", "latest"], where)
    checked = raysearch(["ledger", "check", "--store", "all" if (where / "all").exists() else "mlruns"], where)
    over = bool(signals) and command.nothing_left is not None and command.nothing_left in done.stderr
    if done.returncode and not over:
        wrong = f"exit code {done.returncode}: {done.stderr[-500:]}"
    elif checked.returncode:
        wrong = f"the ledger is damaged: {checked.stdout}"
    elif command.answer(done.stdout, where) != answer:
        wrong = "another answer"
    if not wrong:
        shutil.rmtree(where)
    else:
        (where / "printed").write_text(done.stdout + done.stderr, encoding="utf-8")
        shutil.move(where, folder / f"wrong-{time.time():.0f}")
    return {"signals": signals, "wrong": wrong}


def has_traceback(printed: str, number: signal.Signals) -> bool:
    """Return whether a signal made a traceback that is not Python's own of a Ctrl-C before the command's first line."""
    ours = number != signal.SIGINT or re.search(r'cli/__init__\.py", line \d+, in main', printed)
    return "Traceback" in printed and number != signal.SIGKILL and bool(ours)


def run(command: Command, model: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return raysearch([argument.replace("MODEL", str(model)) for argument in command.arguments], where)


def raysearch(arguments: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    """Run ``raysearch`` with arguments."""
    whole = [sys.executable, "-m", "raysearch", *arguments]
    return subprocess.run(whole, cwd=where, capture_output=True, text=True, timeout=RUN_S, check=False)


def start(command: Command, model: Path, where: Path) -> subprocess.Popen[str]:
    """Start a command."""
    arguments = [argument.replace("MODEL", str(model)) for argument in command.arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "raysearch", *arguments],
        **{"cwd": where, "stdout": pipe, "stderr": pipe, "text": True},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in what a shell runs behind a prompt
    )


def write_model(folder: Path) -> Path:
    """Write a random Llama of six layers, a tokenizer of single bytes and some prompts, unless they are there."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({mark: number for number, mark in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(alphabet), num_hidden_layers=6, initializer_range=0.3, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=alphabet[0]).save_pretrained(folder)
    questions = [
        json.dumps({"question": f"What is {number} and {number}?", "answer": 2 * number}) for number in range(16)
    ]
    (folder / "asked.jsonl").write_text("\n".join(questions))
    return folder


def show(trials: list[dict[str, Any]]) -> None:
    """Print a row for each command: its trials, the signals it got, and what was wrong."""
    print("| command | trials | kills | wrong |\n|---|---|---|---|")
    for name in COMMANDS:
        mine = [trial for trial in trials if trial["command"] == name]
        signals = Counter(name.removeprefix("SIG") for trial in mine for name in trial["signals"])
        kills = ", ".join(f"{number} {kind}" for kind, number in signals.most_common())
        wrong = sum(bool(trial["wrong"]) for trial in mine)
        print(f"| {name} | {len(mine)} | {kills} | {wrong} |")


if __name__ == "__main__":
    main()
