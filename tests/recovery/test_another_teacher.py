"""recovery.teacher: another model than the dense one writes the answers, and its distributions are learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from raysearch.models.loading import fingerprint
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery import steps, training
from raysearch.recovery.recovery_record import Training
from tests.cli.conftest import N_LAYERS, Run, World
from tests.recovery.conftest import done
from tests.sentences import Sentences

pytestmark = pytest.mark.slow

TRAIN = (
    *("data.part=all", "recovery.max_tokens=48", "recovery.max_steps=1", "recovery.batch_size=4", "recovery.top_k=8"),
    *("recovery.micro_batch_size=4", "assess=none", "assess.probe.enabled=false"),
)


@pytest.fixture(scope="module")
def teacher(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a deeper model with the tokenizer of the searched one."""
    folder = tmp_path_factory.mktemp("teacher") / "larger"
    config = AutoConfig.from_pretrained(world.model)
    config.num_hidden_layers = N_LAYERS + 2
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.model).save_pretrained(folder)
    return folder


def test_distributions_and_answers_are_those_of_the_teacher(
    run: Run, world: World, teacher: Path, other_text: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle: a plain forward of the teacher."""
    setups: list[Any] = []

    def spied(setup: Any, *arguments: Any, **options: Any) -> Training:
        setups.append(setup)
        return training.train(setup, *arguments, **options)

    monkeypatch.setattr(steps, "train", spied)
    search_id = done(run, "search", *world.search())["search_id"]
    text = ["data=file", f"data.path={other_text}", "data.seq_len=16", "data.samples=12"]
    named = f"recovery.teacher={teacher}"
    by_teacher = done(run, "recover", search_id, *text, *TRAIN, named, "--out", "by_teacher")
    by_dense = done(run, "recover", search_id, *text, *TRAIN, "--out", "by_dense")
    assert by_teacher["recovery_id"] != by_dense["recovery_id"]
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    data = setups[0].data
    for row, start, top_logits in zip(data.rows, data.starts, data.top_logits, strict=True):
        with torch.no_grad():
            log_p = model(torch.tensor([row.ids])).logits[0, start - 1 : -1].log_softmax(-1)
        assert np.abs(top_logits.log_p.astype(np.float32) - log_p.topk(8).values.numpy()).max() < 0.01
    assert "distilled from larger" in (cwd / "by_teacher/README.md").read_text()
    assert str(teacher) not in (cwd / "by_teacher/raysearch.json").read_text(), "cards show no folders"
    words = world.text.read_text().split()
    rows = [{"question": " ".join(words[place : place + 5]), "answer": "law"} for place in range(0, 250, 5)]
    (cwd / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    questions = ["data=questions", "data.path=questions.jsonl", "data.question=question", "data.answer=answer"]
    questions += ["data.prompt={question}", "data.samples=all", "recovery.max_new_tokens=40", "recovery.loss=tokens"]
    done(run, "recover", search_id, *TRAIN, *questions, named, "--out", "answered")
    fingerprint_of_teacher = fingerprint(locate(ModelSpec("teacher", str(teacher), "float32")))
    cards = [json.loads(card.read_text()) for card in (cwd / "mlruns/recoveries").glob("*/rows.json")]
    assert [card["answered_by"] for card in cards if card["answered_by"] is not None] == [fingerprint_of_teacher]


def test_a_teacher_with_other_tokens_is_refused(run: Run, world: World, checkpoint: Path, sentences: Sentences) -> None:
    search_id = done(run, "search", *world.search())["search_id"]
    for name, path in (("another vocabulary", checkpoint), ("nothing", "nowhere/at/all")):
        outcome = run("recover", search_id, *TRAIN, f"recovery.teacher={path}", "--out", "healed")
        sentences.refused_command(outcome, name)
