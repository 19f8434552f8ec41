"""Answers of the dense model: the size of jobs, and fewer rows at once if memory is short."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysearch.errors import UserError
from raysearch.generation import decoding
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.ledger.assessments import assessment_fingerprint
from raysearch.ledger.ledger import Ledger
from raysearch.models.stack import LayerStack
from raysearch.recovery.prompts import Question
from raysearch.recovery.responses import AnswerJob, _job_size, write_answers
from raysearch.recovery.spec import RecoveryOptions
from raysearch.testing.objective_suite import tiny_model
from tests.generation.test_decoding import Numbers
from tests.sentences import Sentences


def test_memory_that_does_not_hold_the_rows_gets_half_of_them(
    monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    replica: Any = SimpleNamespace(stack=LayerStack(tiny_model(n_layers=2)), tokenizer=Numbers(), texts_at_once=None)
    job = AnswerJob(tuple(Prompt((n, 5), 4) for n in range(1, 10)), Decoding(1.0))
    expected = job.run(replica)
    assert replica.texts_at_once is None
    go_on = decoding._continue
    tried = list[int]()
    fits = 3

    def short(model: Any, texts: Any, *how: Any) -> int:
        tried.append(len(texts))
        if len(texts) > fits:
            raise torch.OutOfMemoryError("no room")
        return go_on(model, texts, *how)

    monkeypatch.setattr(decoding, "_continue", short)
    assert job.run(replica) == expected
    assert tried[:3] == [9, 4, 2]
    assert job.run(replica) == expected, "the number is remembered"
    assert tried.count(9) == 1, "the number is remembered"
    fits = 0
    with sentences.refused(UserError):
        job.run(replica)


def test_equal_prompts_are_answered_once(tmp_path: Path) -> None:
    class Answering:
        """A pool that records its jobs."""

        def __init__(self) -> None:
            self.done: list[Any] = []

        def run(self, jobs: Any) -> Any:
            self.done += jobs
            return ((job, [Written("a", 1, False)] * len(job.prompts)) for job in jobs)

    info = SimpleNamespace(model=SimpleNamespace(on_gpu=False))
    what: Any = SimpleNamespace(fingerprint="x", info=info, named=assessment_fingerprint)
    questions = [Question((), str(n), (3, 4)) for n in range(64)]
    pool = Answering()
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        replicas: Any = lambda: pool  # noqa: E731
        answers, n_written = write_answers(questions, RecoveryOptions(), what, ledger, replicas, lambda line: None)
    assert len(answers) == 64, "two jobs of 32 equal prompts are one"
    assert len(pool.done) == 1, "two jobs of 32 equal prompts are one"
    assert n_written == 32, "two jobs of 32 equal prompts are one"


def test_a_gpu_gets_many_prompts_and_many_replicas_get_some() -> None:
    on_gpu = {n: _job_size(n, on_gpu=True) for n in (10, 1000, 5000, 100_000)}
    assert on_gpu == {10: 128, 1000: 128, 5000: 313, 100_000: 512}
    assert _job_size(100_000, on_gpu=False) == 32
