"""Answers of a tiny model: the same from any pool, recorded, never generated twice, and from a server, too."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.assessment.assess import assess_masks
from raysearch.cluster.options import ClusterOptions
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.generation.decoding import generate
from raysearch.generation.prompt import Prompt
from raysearch.generation.score import ScoredText
from raysearch.ledger.ledger import Ledger
from tests.assessment.conftest import Assess, Stopping, assert_recorded, no_pool, of_text, read, without_layers
from tests.cli.conftest import World
from tests.sentences import Sentences

MASK = Mask.of(1, 3)
ASKED = ["the people of the", "the army and the", "what is", "peace", "every citizen shall pay the", "war"]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [{"question": question, "answer": "the"} for question in ASKED]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.fixture
def overrides(questions: Path) -> list[str]:
    draw = "data.samples=all data.seq_len=32 data.shard_samples=2 data.max_new_tokens=6"
    return [f"assess.generation.mine=data=generation data.path={questions} {draw}"]


def texts(ledger: Ledger, overrides: list[str], world: World) -> list[ScoredText]:
    what = read(overrides, world.model, ledger.path)
    return ledger.texts(what.tasks[0].fingerprint, MASK)


def test_texts_are_recorded_and_those_of_the_model_without_the_layers(
    assess: Assess, world: World, ledger: Ledger, overrides: list[str]
) -> None:
    result = assess([MASK], *overrides).by_mask[MASK]["mine"]
    model = without_layers(world.model, MASK)
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    scored = texts(ledger, overrides, world)
    assert len(scored) == len(ASKED)
    single = {
        generate(model, tokenizer, [Prompt(tuple(tokenizer(f"{question}\n\n")["input_ids"]), 6)])[0][0].text
        for question in ASKED
    }
    assert {answer.text for answer in scored} == single
    assert result.estimate.value == pytest.approx(100 * sum(answer.score.value for answer in scored) / len(scored))
    assert result.items == tuple(100 * answer.score.value / len(scored) for answer in scored)
    assert result.detail["tokens"] == sum(answer.n_tokens for answer in scored) / len(scored)
    assert result.metric.group == "generation"
    assert result.extent.startswith("6 items")


def test_nothing_is_generated_twice(assess: Assess, overrides: list[str]) -> None:
    assert_recorded(assess, MASK, overrides, computed=2)
    assert assess([MASK], *overrides, "assess.answers.temperature=0.8").computed == 2, "other texts"


def test_a_stop_loses_only_what_was_in_flight(
    assess: Assess, world: World, ledger: Ledger, overrides: list[str], tmp_path: Path
) -> None:
    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        assess([MASK], *overrides, make_pool=lambda: Stopping(world.model, done, after=2))
    assess([MASK], *overrides, make_pool=lambda: Stopping(world.model, done, after=99))
    assert len(done) == len(set(done)) == 6, "three shards of two masks"
    with closing(Ledger(tmp_path / "other.db")) as other_ledger:
        assess_masks(read(overrides, world.model, other_ledger.path), other_ledger, [MASK])
        assert texts(other_ledger, overrides, world) == texts(ledger, overrides, world)


@pytest.fixture
def server(world: World) -> Iterator[str]:
    """A server of the tiny model that speaks OpenAI's protocol, by this project's own generator."""
    model = AutoModelForCausalLM.from_pretrained(world.model).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = Prompt(tuple(tokenizer(request["prompt"])["input_ids"]), request["max_tokens"])
            with lock:
                (written,), _ = generate(model, tokenizer, [prompt])
            choice = {"text": written.text, "finish_reason": "length" if written.cut_off else "stop"}
            self.answer({"choices": [choice], "usage": {"completion_tokens": written.n_tokens}})

        def answer(self, body: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/v1"
        served.shutdown()


def test_a_server_answers_for_the_mask(assess: Assess, overrides: list[str], server: str, sentences: Sentences) -> None:
    """It serves the dense model here, so its answers are the dense model's."""
    assessments = assess([MASK], *overrides, f"assess.server={server}")
    dense, served = (assessments.by_mask[mask]["mine"] for mask in (Mask(), MASK))
    assert served.estimate == dense.estimate
    assert served.detail["tokens"] == dense.detail["tokens"]
    assert served.detail["fingerprint"] != dense.detail["fingerprint"]
    assert assess([MASK], *overrides, f"assess.server={server}").computed == 0
    with sentences.refused(UserError):
        assess([MASK, Mask.of(2)], *overrides, f"assess.server={server}")


def test_refusals_come_before_anything_is_computed(
    assess: Assess, overrides: list[str], text: Path, sentences: Sentences
) -> None:
    overrides = [*overrides, of_text("whole", text), "assess.seq_len=16"]
    cases = [
        "assess.server=127.0.0.1",
        "assess.server=http://127.0.0.1:9/v1",
        "assess.answers.temperature=-1",
        "assess.answers.top_p=0",
        "assess.answers.max_new_tokens=0",
        "assess.share=1.5",
        "assess.generation.mine=data=sotu",
        "assess.generation.other=data=generation data.path=nowhere.jsonl",
        "assess.tasks=[mine]",
        "assess.texts.mine=data=sotu",
    ]
    sentences.refused_each(
        lambda more: assess([MASK], *overrides, more, make_pool=no_pool),
        cases,
    )


def test_bad_tasks_are_refused(assess: Assess, questions: Path, sentences: Sentences) -> None:
    data = f"assess.generation.mine=data=generation data.path={questions} data.samples=all data.seq_len=32"
    cases = [
        "data.check=words",
        "data.check=code",
        "data.check=regex",
        "data.check=regex data.pattern=(",
        "data.answer=null",
        "data.answer=reply",
        "data.max_new_tokens=0",
        "data.timeout_s=0.0 data.check=code data.tests=x",
        "data.chat=true",
        "data.opening={word}",
        "data.check=code data.tests={answer}",
    ]
    sentences.refused_each(lambda keys: assess([], f"{data} {keys}"), cases)


@pytest.mark.slow
def test_two_replicas_of_ray_read_and_write_the_same(
    assess: Assess, world: World, overrides: list[str], text: Path, tmp_path: Path, one_ray: None
) -> None:
    overrides = [
        *overrides,
        "assess.answers.temperature=0.9",
        *(of_text("whole", text), of_text("apart", text, "whole"), "assess.seq_len=16"),
    ]
    masks = [Mask.of(1), Mask.of(1, 2), MASK]
    inline = assess(masks, *overrides)
    assert [*inline.by_mask] == [Mask(), *masks]
    assert inline.computed == 3 * 4
    assert {metric.name for metric in inline.metrics} >= {"mine", "whole", "apart"}
    with closing(Ledger(tmp_path / "ray" / "ledger.db")) as ledger:
        what = read(overrides, world.model, ledger.path, ClusterOptions("ray", replicas=2))
        on_ray = assess_masks(what, ledger, masks)
    details = [
        {name: result.detail for name, result in assessments.by_mask[MASK].items()} for assessments in (inline, on_ray)
    ]
    assert details[0] == details[1]
    assert on_ray.values == inline.values
    assert on_ray.computed == inline.computed
