"""raysearch assess: the mask of a search and the dense model, in a table, as JSON and in MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import raysearch
from raysearch.assessment.results import SearchAssessment
from raysearch.searching.events import AssessmentProgressed, MasksAssessed
from raysearch.searching.observer import Observer
from raysearch.tracking.mlflow.tracker import open_tracker
from raysearch.tracking.options import TrackingOptions
from tests.assessment.conftest import of_text
from tests.cli.conftest import Run, World
from tests.sentences import Sentences
from tests.tracking.conftest import closed_port


@pytest.fixture
def overrides(world: World, items: Path) -> list[str]:
    """A text and a task."""
    how = ["assess.seq_len=16", "assess.limit=4", "assess.tasks=[piqa]", f"assess.data_dir={items}"]
    return ["assess=none", of_text("mine", world.text), *how]


@pytest.fixture
def searched(run: Run, world: World) -> str:
    """A finished search, by its id."""
    return json.loads(run("search", *world.search(), "--json").out)["search_id"]


def test_table_and_json(run: Run, searched: str, overrides: list[str], cwd: Path) -> None:
    shown = run("assess", "latest", *overrides)
    assert shown.code == 0
    assert searched in shown.out
    assert "mine (perplexity, lower is better)" in shown.out
    assert "PIQA (%, higher is better)" in shown.out
    assert "4 windows, 60 scored tokens" in shown.out
    assert "4 items, acc_norm" in shown.out
    assert "4 numbers computed now" in shown.out
    assert f"lm_eval --include_path {cwd / 'mlruns' / 'tasks'}" in shown.out
    outcome = run("assess", searched, *overrides, "--json")
    value = json.loads(outcome.out)
    assert value["computed"] == 0
    assert len(value["removed"]) == 2
    mine = value["pruned"]["mine"]
    assert mine["retention"] == pytest.approx(mine["value"] / value["dense"]["mine"]["value"])
    assert (mine["unit"], mine["group"], mine["higher_is_better"]) == ("perplexity", "perplexity", False)
    assert value["pruned"]["piqa"]["detail"]["metrics"].keys() >= {"acc", "acc_norm", "acc_norm_stderr"}
    assert "nothing was computed" in run("assess", "latest", *overrides).out


def test_a_text_that_was_calibrated_on_is_named(run: Run, searched: str, overrides: list[str], text: Path) -> None:
    by_document = of_text("apart", text, "whole")
    assert json.loads(run("assess", "latest", *overrides, by_document, "--json").out)["overlaps"] == ["mine"]
    assert "Warning: the search calibrated on samples of the same text: mine" in run("assess", "latest", *overrides).out


def test_another_size_of_the_path(run: Run, searched: str, overrides: list[str], sentences: Sentences) -> None:
    value = json.loads(run("assess", "latest", *overrides, "--remove", 1, "--json").out)
    assert len(value["removed"]) == 1
    sentences.refused_command(run("assess", "latest", *overrides, "--remove", 4))


def test_python(searched: str, world: World) -> None:
    lines: list[str] = []

    class Lines(Observer):
        def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
            lines.append(event.line)

    text = of_text("mine", world.text)
    how = {"seq_len": 16, "limit": 2}
    search = raysearch.open().search(searched)
    done = search.assess("assess=none", text, assess=how, observer=Lines())
    assert isinstance(done, SearchAssessment)
    assert done.search_id == searched
    assert done.assessments.computed == 2
    assert lines
    assert done.pruned["mine"].estimate.value > 0
    assert done.dense["mine"].detail["n_samples"] == 2
    second = search.assess("assess=none", assess={**how, "texts": {"mine": text.partition("=")[2]}})
    assert isinstance(second, SearchAssessment)
    assert second.assessments.computed == 0


@pytest.mark.usefixtures("tables", "blank_figures")
def test_mlflow_shows_it(run: Run, world: World, overrides: list[str], cwd: Path) -> None:
    from mlflow import MlflowClient

    result = json.loads(run("search", *world.search(tracking="mlflow"), "--json").out)
    (cwd / "asked.jsonl").write_text(
        '{"question": "what is", "answer": "the"}\n{"question": "peace", "answer": "war"}\n'
    )
    options = "data=generation data.path=asked.jsonl data.samples=all data.max_new_tokens=4 data.seq_len=32"
    value = json.loads(run("assess", "latest", *overrides, f"assess.generation.asked={options}", "--json").out)
    client = MlflowClient(f"sqlite:///{cwd / 'mlruns' / 'mlflow.db'}")
    metrics = client.get_run(result["mlflow_run_id"]).data.metrics
    file = Path(client.download_artifacts(result["mlflow_run_id"], "answers/asked.jsonl"))
    answers = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert {row["expected"] for row in answers} == {"the", "war"}
    assert all(isinstance(row["dense"], str) and row["score"] in (0, 1) for row in answers)
    assert [row["text"] for row in answers] == [row["text"] for row in value["pruned"]["asked"]["detail"]["examples"]]
    assert metrics["assess/mine/pruned"] == pytest.approx(value["pruned"]["mine"]["value"])
    assert metrics["assess/piqa/dense"] == pytest.approx(value["dense"]["piqa"]["value"])
    assert metrics["assess/mine/retention"] == pytest.approx(value["pruned"]["mine"]["retention"])


def test_mlflow_that_cannot_be_reached_only_warns(tmp_path: Path) -> None:
    warnings: list[str] = []
    options = TrackingOptions("mlflow", f"http://127.0.0.1:{closed_port()}", "tests", tmp_path)
    search: Any = SimpleNamespace(mlflow_run_id="x")
    open_tracker(options, warnings.append).on_event(MasksAssessed([(search, {"assess.a": 1.0})]))
    assert len(warnings) == 1
    assert warnings[0].startswith("the assessment is not recorded in MLflow")


MISTAKES = [
    ["assess.limits=3"],
    ["assess.limit=0"],
    ["assess.speed.repeats=0", "assess.speed.enabled=true"],
    ["assess.tasks=[piqq]"],
    ["assess.tasks=[piqa,piqa]"],
    ["assess.data_dir=nowhere"],
    ["assess.data_dir="],
    ["assess.data_dir=."],
    ["assess.task_dir=nowhere"],
    ["assess.shots=1"],
    ["--out", "there"],
    ["assess.seq_len=4096"],
    ["assess.speed.enabled=true"],
    ["assess.texts.mine=null", "assess.tasks=[]"],
    ["assess.texts.other=data=sotu"],
    ["assess.texts.c4=data=c4 data.split=validation data.allow_evaluation_split=true data.sampling=sequential"],
    ["assess.texts.hub=data=wikitext2 data.name=no/such data.sampling=sequential", "assess.data_dir=null"],
    ["assess.texts.piqa=data=sotu data.sampling=whole"],
]


def test_mistakes_are_reported_in_a_sentence(
    run: Run, searched: str, overrides: list[str], subtests: pytest.Subtests, sentences: Sentences
) -> None:
    for changed in MISTAKES:
        case = " ".join(changed)
        with subtests.test(case):
            outcome = run("assess", "latest", *overrides, *changed)
            assert outcome.out == ""
            assert outcome.err.count("\n") == 1
            sentences.refused_command(outcome, case)


@pytest.mark.slow
def test_a_task_that_lm_eval_does_not_know(run: Run, searched: str, overrides: list[str], sentences: Sentences) -> None:
    sentences.refused_command(run("assess", "latest", *overrides, "assess.data_dir=null", "assess.tasks=[hellaswagg]"))
