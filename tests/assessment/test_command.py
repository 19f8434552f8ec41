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


def test_another_size_of_the_path(run: Run, searched: str, overrides: list[str]) -> None:
    value = json.loads(run("assess", "latest", *overrides, "--remove", 1, "--json").out)
    assert len(value["removed"]) == 1
    outcome = run("assess", "latest", *overrides, "--remove", 4)
    assert outcome.code == 2
    assert "choose one of: 1, 2" in outcome.err


def test_python(searched: str, world: World) -> None:
    lines: list[str] = []

    class Lines(Observer):
        def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
            lines.append(event.line)

    text = of_text("mine", world.text)
    how = {"seq_len": 16, "limit": 2}
    search = raysearch.open().search(searched)
    done = search.assess("assess=none", text, assess=how, observer=Lines())
    assert isinstance(done, SearchAssessment) and done.search_id == searched
    assert done.assessments.computed == 2 and lines
    assert done.pruned["mine"].estimate.value > 0 and done.dense["mine"].detail["n_samples"] == 2
    second = search.assess("assess=none", assess={**how, "texts": {"mine": text.partition("=")[2]}})
    assert isinstance(second, SearchAssessment) and second.assessments.computed == 0


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
    assert len(warnings) == 1 and warnings[0].startswith("the assessment is not recorded in MLflow")


MISTAKES: list[tuple[list[str], str]] = [
    (["assess.limits=3"], "assess.limits is not a key of this configuration; did you mean 'assess.limit'?"),
    (["assess.limit=0"], "assess.limit=0 should be greater than 0"),
    (["assess.speed.repeats=0", "assess.speed.enabled=true"], "assess.speed.repeats=0 should be greater than 0"),
    (["assess.tasks=[piqq]"], "assess.tasks has piqq, for which no file is ready"),
    (["assess.tasks=[piqq]"], "did you mean 'piqa'?"),
    (["assess.tasks=[piqa,piqa]"], "assess.tasks=[piqa,piqa] names a task twice"),
    (["assess.data_dir=nowhere"], "assess.data_dir=nowhere is not a folder"),
    (["assess.data_dir="], "assess.data_dir= is empty; give a path"),
    (["assess.data_dir=."], "assess.data_dir=. holds no piqa/validation.jsonl for piqa of assess.tasks"),
    (["assess.task_dir=nowhere"], "assess.task_dir=nowhere is not a folder"),
    (["assess.shots=1"], "takes examples from"),
    (["--out", "there"], "--out=there is of a study, which has a report; leave it out for one search"),
    (["assess.seq_len=4096"], "assess.seq_len=4096 is longer than the 64 positions of"),
    (["assess.speed.enabled=true"], "assess.speed.context_tokens=512 with assess.speed.new_tokens=64 is longer"),
    (["assess.texts.mine=null", "assess.tasks=[]"], "assess measures nothing"),
    (["assess.texts.other=data=sotu"], "assess.texts.other is not taken in order"),
    (
        ["assess.texts.c4=data=c4 data.split=validation data.allow_evaluation_split=true data.sampling=sequential"],
        "holds no c4/test.jsonl for assess.texts.c4",
    ),
    (
        ["assess.texts.hub=data=wikitext2 data.name=no/such data.sampling=sequential", "assess.data_dir=null"],
        "error: assess.texts.hub: data.name=no/such cannot be read (",
    ),
    (
        ["assess.texts.hub=data=wikitext2 data.name=no/such data.sampling=sequential", "assess.data_dir=null"],
        "; or a folder of local files with assess.data_dir=…",
    ),
    (["assess.texts.piqa=data=sotu data.sampling=whole"], "assess.texts and assess.tasks both have piqa"),
]


def test_mistakes_are_reported_in_a_sentence(
    run: Run, searched: str, overrides: list[str], subtests: pytest.Subtests
) -> None:
    for changed, message in MISTAKES:
        with subtests.test(message):
            outcome = run("assess", "latest", *overrides, *changed)
            assert (outcome.code, outcome.out) == (2, "")
            assert message in outcome.err
            assert outcome.err.startswith("error: ")
            assert outcome.err.count("\n") == 1


@pytest.mark.slow
def test_a_task_that_lm_eval_does_not_know(run: Run, searched: str, overrides: list[str]) -> None:
    outcome = run("assess", "latest", *overrides, "assess.data_dir=null", "assess.tasks=[hellaswagg]")
    assert outcome.code == 2
    assert "which lm-eval does not know; did you mean 'hellaswag'?" in outcome.err
