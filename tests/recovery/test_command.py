"""raysearch recover: from a search to a checkpoint that plain transformers and peft load, each step once."""

from __future__ import annotations

import json
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import raysearch
from raysearch.checkpoints.runtimes import VLLM
from raysearch.cli.recovery_tables import recovery_parts
from raysearch.recovery import planned_recovery, recover, step_time, steps, training
from raysearch.recovery.step_time import StepTime
from raysearch.recovery.trainer import RecoveryTrainer, make_trainer
from tests.cli.conftest import Run, World
from tests.recovery.conftest import done, search_once
from tests.sentences import Sentences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the id and the store of a finished search."""
    return search_once(world.search(), tmp_path_factory)


@pytest.fixture
def searched(whole: tuple[str, Path], cwd: Path) -> str:
    """Copy the store of that search to the current folder."""
    search_id, store = whole
    shutil.copytree(store, cwd / "mlruns")
    return search_id


@pytest.fixture
def arguments(searched: str, assessed_by: list[str]) -> list[str]:
    """Return the overrides of a quick training, and of a text to assess by."""
    return [
        searched,
        *("data=file", "data.seq_len=16", "data.samples=24", "recovery.max_tokens=48", "recovery.top_k=8"),
        *("recovery.max_steps=3", "recovery.micro_batch_size=4", "recovery.checkpoint_steps=1"),
        *assessed_by,
    ]


def test_a_recovered_model_is_a_checkpoint_and_nothing_is_done_twice(
    run: Run, arguments: list[str], other_text: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    command = ["recover", *arguments, f"data.path={other_text}", "--out", "healed"]
    shown = run(*command)
    assert shown.code == 0, shown.err
    assert "recovered" in shown.out
    assert "mine (perplexity, lower is better)" in shown.out
    healed = AutoModelForCausalLM.from_pretrained(cwd / "healed")
    assert healed.config.num_hidden_layers == 3
    (folder,) = (cwd / "mlruns/recoveries").iterdir()
    assert not {"pruned", "teacher"} & {entry.name for entry in folder.iterdir()}, "what nobody needs any more"
    raysearch.open().search().export("pruned")
    pruned = AutoModelForCausalLM.from_pretrained(cwd / "pruned")
    PeftModel.from_pretrained(pruned, str(cwd / "healed/adapter"))
    assert f"Left on the disk: {folder} (" in shown.out
    assert "Next: convert_hf_to_gguf.py healed" in shown.out
    targets = json.loads((cwd / "healed/adapter/adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets), "the same bytes in every process"
    card = json.loads((folder / "rows.json").read_text())
    assert card["rows"] + sum(card["left_out"].values()) == 24
    printed = run("show", "latest").out
    assert folder.name in printed
    assert "recovered / dense" in printed
    assert "Loss on held-out rows by tokens" in printed
    (record,) = raysearch.open().search().recoveries()
    table, *_ = recovery_parts(record, "of-another")
    title = str(getattr(table, "title", ""))
    assert title.endswith(f"as {record.search_id} found it")
    assert "found it" not in printed
    (three,) = record.numbers
    assert three.metric.name == "mine"
    assert three.regained is not None
    assert three.regained.error is not None
    assert three.regained.value == pytest.approx(three.recovered.value / three.dense.value)
    assert {f"assess/mine/{model}" for model in ("dense", "pruned", "recovered")} <= record.named.keys()
    assert not raysearch.open().search().assessed(), "the search has the numbers of its own assessment alone"
    assert {"data", "logits", "training", "assessment"} <= record.seconds.keys()
    assert record.training.tokens > 0
    readme = (cwd / "healed/README.md").read_text()
    assert "| | dense | pruned | recovered | pruned / dense | recovered / dense |" in readme
    assert f"| {VLLM.text} | its rules | `vllm serve ./healed` |" in readme
    assert "layers 0 to 4: █ kept, · removed" in readme
    with monkeypatch.context() as patch:
        patch.setattr(training, "make_trainer", pytest.fail)
        patch.setattr(planned_recovery, "draw_prompts", pytest.fail)
        for name in ("write_checkpoint", "top_logits_of", "export_search"):
            patch.setattr(steps, name, pytest.fail)
        assert done(run, *command)["recovery_id"] == folder.name
        name, *arguments = arguments
        recovered = raysearch.open().search(name).recover("healed", *arguments, f"data.path={other_text}")
    shown_in_notebooks = recovered._repr_html_()
    assert "<td>mine (perplexity, lower is better)</td>" in shown_in_notebooks
    assert "±" in shown_in_notebooks
    for change in ("recovery.seed=1", "assess.limit=3"):  # rows are drawn apart from what is assessed
        sentences.refused_command(run(*command, change), change)


def test_a_model_may_be_recovered_without_being_assessed(
    run: Run, arguments: list[str], cwd: Path, other_text: Path, sentences: Sentences
) -> None:
    command = ["recover", *arguments, f"data.path={other_text}", "assess=none", "assess.texts.mine=null"]
    value = done(run, *command, "--out", "healed")
    assert value["training"]["steps"] > 0
    assert (value["dense"], value["recovered"]) == ({}, {})
    assert (cwd / "healed" / "model.safetensors").is_file()
    assert not [line for line in run(*command, "--out", "healed", "--overwrite").out.splitlines() if "nan" in line]
    sentences.refused_command(run("assess", "latest", "assess=none"))


def test_text_that_was_measured_is_left_out(run: Run, arguments: list[str], world: World) -> None:
    refused = run("recover", *arguments, f"data.path={world.text}", "data.part=all", "data.samples=250", "--dry-run")
    assert "overlapping" in refused.out + refused.err
    assert "'loss'" not in refused.out, "trl prints nothing of the timed steps"


def test_a_dry_run_times_the_loss_that_is_trained(
    run: Run, arguments: list[str], other_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RecoveryTrainer.compute_loss
    calls = list[float]()
    make = make_trainer
    at_once = list[int]()

    def short(*args: Any, **options: Any) -> Any:
        at_once.append(args[-1])
        if args[-1] > 2:
            raise torch.OutOfMemoryError("no room")
        return make(*args, **options)

    def counted(*args: Any, **options: Any) -> Any:
        loss = step(*args, **options)
        calls.append(float(loss))
        return loss

    monkeypatch.setattr(RecoveryTrainer, "compute_loss", counted)
    monkeypatch.setattr(step_time, "make_trainer", short)
    outcome = run("recover", *arguments, f"data.path={other_text}", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "Not in that time: answers and logits of the teacher" in outcome.out
    assert "drawing the data" in outcome.err
    assert "memory does not hold so many rows at once; 2 of them" in outcome.err
    assert calls, "recovery.loss=distill is the default"
    assert np.isfinite(calls).all(), "recovery.loss=distill is the default"
    assert at_once == [4, 2], "where memory is short, half as many rows at once, as in the training"


def test_the_steps_that_fit_into_minutes_are_chosen_once(
    run: Run, arguments: list[str], other_text: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    command = ["recover", *arguments, f"data.path={other_text}", "recovery.batch_size=4", "recovery.max_steps=6"]
    for room in (recover, steps):
        monkeypatch.setattr(room, "measure_step", lambda *args: StepTime(60.0, 60.0, 0.01, 0.01, 1))
    expected = "--minutes=5 fits 4 of 6 steps, on 18 rows: about 4 min"
    planned = run(*command, "--minutes", "5", "--dry-run")
    assert expected in planned.out, planned.err
    with monkeypatch.context() as patch:
        patch.setattr(steps, "train", interrupt)
        killed = run(*command, "--minutes", "5", "--out", "healed")
    assert killed.code != 0
    assert expected in killed.err
    with monkeypatch.context() as patch:
        patch.setattr(steps, "measure_step", pytest.fail)
        value = done(run, *command, "--minutes", "5", "--out", "healed")
    assert value["training"]["steps"] == 4
    assert value["rows"] == 18
    assert value["left_out"]["beyond --minutes"] + value["rows"] + value["left_out"].get("overlapping", 0) == 24
    record = raysearch.open().search().recoveries()[0]
    assert record.settings["minutes"] == 5
    whole = done(run, *command, "--minutes", "60", "--out", "whole")
    assert whole["recovery_id"] != value["recovery_id"]
    assert whole["training"]["steps"] == 6
    sentences.hide(re.compile(r"(?<=about )\d min \d\d s|(?<=--minutes=)\d\.\d(?= or more)"), "time")
    for more in (
        ["--minutes", "1"],
        ["--minutes", "0"],
        ["--minutes", "2", "recovery.loss=tokens", "recovery.packing=true"],
    ):
        sentences.refused_command(run(*command, *more, "--out", "x"), " ".join(more))


def interrupt(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def test_hidden_states_recover_a_search(run: Run, arguments: list[str], other_text: Path, cwd: Path) -> None:
    from transformers import AutoModelForCausalLM

    command = ["recover", *arguments, f"data.path={other_text}", "recovery=hidden"]
    cost = done(run, *command, "--dry-run")
    shown = run(*command, "--out", "healed")
    assert shown.code == 0, shown.err
    (record,) = raysearch.open().search().recoveries()
    n_cuts = record.training.steps // 3
    assert cost["steps"] == record.training.steps == 3 * n_cuts
    assert cost["tokens"] == pytest.approx(record.training.tokens, rel=0.1)
    assert f"at a learning rate of {record.training.learning_rate:g}" in shown.out
    assert AutoModelForCausalLM.from_pretrained(cwd / "healed").config.num_hidden_layers == 3
    assert not (cwd / "healed/adapter").exists()


def test_the_dense_model_answers_prompts_once(
    run: Run, arguments: list[str], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words_of_text = ("people", "war", "navy", "law", "state", "union", "nation", "laws")
    texts = [f"the {word} of the {second_word}" for word in words_of_text for second_word in words_of_text[:5]]
    arguments = [word for word in arguments if not word.startswith("data")]
    arguments += questions(cwd / "asked.jsonl", *({"question": text, "answer": "the law"} for text in texts))
    arguments += ["recovery.loss=tokens"]
    arguments += ["recovery.max_new_tokens=40", "recovery.max_tokens=60", "recovery.temperature=1.0"]
    value = done(run, "recover", *arguments, "--out", "healed")
    assert value["answers_written"] == 40
    assert value["rows"] >= 2
    from raysearch.recovery import responses

    monkeypatch.setattr(responses.AnswerJob, "run", pytest.fail)
    repeated = done(run, "recover", *arguments, "recovery.method=full", "--out", "full")
    assert repeated["answers_written"] == 0, "the ledger has them"
    assert not (cwd / "full/adapter").exists()


def questions(file: Path, *rows: dict[str, str]) -> list[str]:
    """Write rows of questions, and return the overrides of a training on their answers."""
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = ["data.question=question", "data.answer=answer", "data.prompt={question}"]
    return ["data=questions", f"data.path={file}", *fields, "data.samples=all", "data.part=all"]


def test_a_dry_run_counts_prompts_that_leave_an_answer_no_room(run: Run, arguments: list[str], cwd: Path) -> None:
    arguments = [word for word in arguments if not word.startswith("data")]
    rows = [{"question": f"the law of {n}" + " and the people of the nation" * 20 * (n % 2)} for n in range(40)]
    arguments += questions(cwd / "asked.jsonl", *({**row, "answer": "the law"} for row in rows))
    earlier = torch.ones(2**28)  # 1 GiB, which is of no step
    del earlier
    before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for responses in ("self", "data"):
        cost = done(run, "recover", *arguments, f"recovery.responses={responses}", "--dry-run")
        assert cost["rows"] == 20
        assert cost["left_out"] == {"too long": 20}
        assert 2**26 < cost["memory_bytes"] < before - 2**29


def test_mistakes_are_refused_in_one_sentence(
    run: Run,
    arguments: list[str],
    world: World,
    other_text: Path,
    cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentences: Sentences,
) -> None:
    (cwd / "file").write_text("")
    (cwd / "full").mkdir()
    (cwd / "full/mine").write_text("")
    on_text = [f"data.path={other_text}"]
    out = ["--out", "x"]
    text = [*on_text, *out]
    bare = [*(word for word in arguments if not word.startswith("data")), *out]
    rows = [{"question": f"the {word}", "answer": "law"} for word in ("war", "navy", "trade")]
    cases = [
        (arguments, on_text),
        (arguments, [*on_text, "--out", "file"]),
        (arguments, [*on_text, "--out", "full"]),
        (arguments, [*on_text, "--out", str(world.model)]),
        (arguments, [*text, "recovery.method=dora"]),
        (arguments, [*text, "recovery.max_tokens=4096"]),
        (arguments, [*text, "recovery.max_tokens=8"]),
        (arguments, [*text, "data.samples=1"]),
        (arguments, [*text, "recovery.tokens=20"]),
        (arguments, [*text, "--remove", "4"]),
        (arguments, ["data.path=nothing.txt", *out]),
        (arguments, [*text, "--dry-run", "recovery.targets=[nothing]"]),
        (arguments, [*text, "--dry-run", "assess.tasks=[nothing]"]),
        (arguments, [*text, "recovery.targets='['"]),
        (arguments, [*text, "recovery.workers=9999", "recovery.batch_size=9999"]),
        (arguments, [*text, "recovery.learning_rate=1e30", "recovery.warmup_steps=0"]),
        (arguments, [*text, "assess.server=http://127.0.0.1:9/v1"]),
        (arguments, [*text, "recovery.workers=3"]),
        (["nothing", *arguments[1:]], text),
        (bare, questions(cwd / "no.jsonl")),
        (bare, questions(cwd / "empty.jsonl", *({**row, "question": ""} for row in rows))),
        ([*bare, "recovery.max_prompt_tokens=1"], questions(cwd / "a.jsonl", *rows)),
        ([*bare, "recovery.responses=data"], questions(cwd / "b.jsonl", *({**row, "answer": " "} for row in rows))),
    ]
    sentences.hide(re.compile(r"(?<=the )\d+(?= cores)|(?<=use 1 … )\d+"), "number")
    for before, more in cases:
        sentences.refused_command(run("recover", *before, *more), " ".join(more))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    sentences.hide(re.compile(r"needs [\d.]+ \w?B"), "size")
    sentences.refused_command(run("recover", *arguments, *text), "a full disk")
    assert not (cwd / "x").exists()
