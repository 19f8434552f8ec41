"""raysearch assess after a search on the user's own data: on the part of them that the search has not used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from raysearch.assessment.assess import plan_assessment
from raysearch.calibration.calibration import Calibration
from raysearch.configuration import build
from raysearch.configuration.compose import compose
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.models.description import describe
from tests.cli.conftest import Run, World

ASSESS = ["assess=offline", "assess.seq_len=16", "assess.speed.enabled=false"]


def assessed(run: Run, *overrides: str) -> tuple[dict[str, Any], str]:
    """Return the results of an assessment of the last search, and the messages on standard error."""
    outcome = run("assess", "latest", *ASSESS, *overrides, "--json")
    assert outcome.code == 0, outcome.err
    value: dict[str, Any] = json.loads(outcome.out)
    return value, outcome.err


def search(run: Run, overrides: list[str]) -> None:
    outcome = run("search", *overrides, "--json")
    assert outcome.code == 0, outcome.err


def texts_of(calibration: Calibration, folder: Path) -> list[str]:
    """The words of each sample."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        " ".join(str(tokenizer.decode(ids[:length], skip_special_tokens=True)).split())
        for shard in calibration.shards
        for ids, length in zip(shard.input_ids, shard.lengths, strict=True)
    ]


def test_the_text_is_a_part_of_the_searched_file_that_the_search_has_not_used(run: Run, world: World) -> None:
    search(run, world.search())
    value, messages = assessed(run)
    (name,) = value["pruned"]
    detail = value["pruned"][name]["detail"]
    assert name == "own"
    assert detail["data"]["path"] == str(world.text)
    assert detail["data"]["part"] == "held_out"
    assert value["overlaps"] == []
    assert "warning" not in messages
    assert "the search's own data (perplexity" in run("assess", "latest", *ASSESS).out


@pytest.mark.parametrize("part", ["all", "rest", "held_out"])
def test_no_window_has_words_in_a_row_in_common_with_a_sample(part: str, world: World, cwd: Path) -> None:
    search = build.search_spec(world.search(**{"data.part": part, "data.samples": 20}))
    info = describe(search.evaluation.model)
    spec = build.assess_spec(compose("assess", ASSESS))
    plan = plan_assessment(
        spec, search.evaluation.model, search.evaluation.cluster, cwd / "l.db", searched=search.evaluation
    )
    (samples,) = prepare_data(search.evaluation, info).calibrations
    used = "\n".join(texts_of(samples, world.model))
    (unused_text,) = plan.texts
    windows = texts_of(unused_text, world.model)
    assert len(windows) >= 4
    assert len(used.splitlines()) == 20
    runs = [words[at : at + 13] for words in map(str.split, windows) for at in range(len(words) - 12)]
    assert runs
    assert not [run for run in runs if " ".join(run) in used]


def test_questions_that_were_searched_on_are_left_out(run: Run, world: World, cwd: Path) -> None:
    words = [*world.text.read_text().replace(".", "").split()]
    rows = [{"question": " ".join(words[at : at + 5]), "answer": words[at + 5]} for at in range(0, 360, 6)]
    (cwd / "asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    changed = {"data": "questions", "data.path": "asked.jsonl", "data.seq_len": 32, "data.samples": 40}
    search(run, world.search(**changed, **{"data.prompt": "{question}"}))
    value, messages = assessed(run)
    detail = value["pruned"]["own"]
    assert detail["extent"].startswith(("4 items", "5 items", "6 items", "20 items")), detail["extent"]
    searched = build.recorded_search(json.loads(run("show", "latest", "--json").out)["config"])
    spec = build.assess_spec(compose("assess", ASSESS))
    plan = plan_assessment(
        spec, searched.evaluation.model, searched.evaluation.cluster, cwd / "l.db", searched=searched.evaluation
    )
    (used,) = prepare_data(searched.evaluation, plan.info).calibrations
    assert not {*texts_of(used, world.model)} & {*texts_of(plan.texts[0], world.model)}
    assert "warning" not in messages


def test_a_sentence_says_which_text_is_used_if_the_search_used_all(run: Run, world: World, cwd: Path) -> None:
    (cwd / "small.txt").write_text(world.text.read_text()[:600])
    search(run, world.search(**{"data.path": "small.txt", "data.samples": "all", "data.sampling": "sequential"}))
    value, messages = assessed(run)
    assert [*value["pruned"]] == ["sotu"]
    assert np.isfinite(value["pruned"]["sotu"]["value"])
    assert "the search's own data cannot be assessed" in messages
    assert "is measured on assess.texts.sotu" in messages


def test_addresses_are_assessed_if_they_were_searched_on_or_requested(run: Run, world: World) -> None:
    search(run, world.search())
    assert [*assessed(run, "assess.own_data=false")[0]["pruned"]] == ["sotu"]
    search(run, world.search(data="sotu", **{"data.path": None, "data.part": "rest"}))
    value, _ = assessed(run)
    assert [*value["pruned"]] == ["sotu"]
    assert value["pruned"]["sotu"]["detail"]["data"]["part"] == "held_out"


def test_other_texts_stay_in_addition(run: Run, world: World) -> None:
    search(run, world.search())
    mine = f"assess.texts.mine=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    assert [*assessed(run, mine, "assess.limit=4")[0]["pruned"]] == ["own", "mine"]
