"""Studies: grids of searches on Ray Tune that share replicas and ledger, and go on whatever ended them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysearch.config import build
from raysearch.errors import EvaluationError
from raysearch.ledger.ledger import opened
from raysearch.search.observer import Observer, Tracker
from raysearch.search.record import SEARCHES
from raysearch.search.run import StudyContext
from raysearch.study import run as running
from raysearch.study.assess import assess_found
from raysearch.study.model_group import prepare
from raysearch.study.plan import plan_study
from raysearch.study.record import STUDIES
from raysearch.study.trials import TrialTask, run_trials
from tests.cli.conftest import Run, World
from tests.cli.found import evaluations, found
from tests.cli.studies import done, small_study, study_words

__all__ = ["done"]  # a fixture


@pytest.fixture(scope="module", autouse=True)
def _one_ray() -> Iterator[None]:
    """Ray for all commands that are typed in this process: it takes seconds to start."""
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_all_searches_are_done_and_counted(done: tuple[dict[str, Any], Path]) -> None:
    value, folder = done
    assert len(value["cells"]) == 8
    assert all(cell["state"] == "finished" for cell in value["cells"])
    assert 0 < value["layer_forwards"]["shared"] < 0.6 * value["layer_forwards"]["separate"]
    assert value["layer_forwards"]["separate"] < value["layer_forwards"]["naive"]
    assert (folder / value["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with opened(folder / "mlruns/ledger.db") as ledger:
        runs = SEARCHES.some(ledger, [cell["search_id"] for cell in value["cells"]])
    computed = sum(run.result.evaluations.computed for run in runs.values() if run.result)
    masks = {mask for _, mask, _ in evaluations(folder / "mlruns")}
    assert computed == len(masks) - 1, "each mask once, whoever asked at the same time; the dense model is not counted"


def test_a_search_alone_finds_the_same(done: tuple[dict[str, Any], Path], world: World, run: Run) -> None:
    value, _ = done
    for cell in value["cells"]:
        words = world.search(searcher=cell["searcher"], remove=cell["remove"])
        alone = found(run("search", *words, "--json", f"store={cell['search_id']}"))
        for key in ("search_id", "removed", "loss", "dense_loss"):
            assert alone[key] == cell[key]
        assert (
            alone["layer_forwards"]["computed"] == alone["layer_forwards"]["alone"] == cell["layer_forwards"]["alone"]
        )


def test_one_after_another_searches_run_just_what_is_called_shared(world: World, run: Run) -> None:
    value = found(run("study", *small_study(world, "searcher=[one_shot,greedy,beam]", "remove=[1,2]"), "--json"))
    with opened(Path("mlruns/ledger.db")) as ledger:
        runs = SEARCHES.some(ledger, [cell["search_id"] for cell in value["cells"]])
    for cell in value["cells"]:
        assert runs[cell["search_id"]].found.layer_forwards.computed == cell["layer_forwards"]["shared"]


def test_a_search_that_fails_stops_no_other_and_is_tried_again_alone(world: World, run: Run, here: Path) -> None:
    words = small_study(world, "searcher=[taylor,one_shot]", "remove=[1]", objective="hidden_cosine")  # no gradients
    words += ["study.retries=0"]
    for tried in range(2):
        outcome = run("study", *words, "--json")
        assert outcome.code == 1
        assert outcome.err.count("this searcher takes gradients") == 2, "as it fails, and at the end"
        assert ("1 search done already" if tried else "2 searches") in outcome.err
        taylor, one_shot = json.loads(outcome.out)["cells"]
        assert (taylor["state"], one_shot["state"]) == ("failed", "finished")
        assert taylor["failure"].startswith("this searcher takes gradients")


def test_a_search_that_cannot_even_be_put_on_record_has_failed(world: World, here: Path) -> None:
    spec = build.study_spec(study_words(world))
    search = spec.cells[0].search.elsewhere()
    (here / "folder").mkdir()
    search = replace(search, evaluation=replace(search.evaluation, ledger=here / "folder"))
    (model_group,) = prepare(spec)
    context = StudyContext(model_group.info, model_group.prepared_for(search.evaluation), {}, None)
    nobody: Any = SimpleNamespace(fleet=None, recipe=[], most=1, unit_timeout_s="auto")
    tasks = {7: TrialTask(search, context, nobody, lambda _: Tracker())}
    failed = run_trials(tasks, spec.options.stop, 1, 0, here / "tune", Observer())
    assert failed.keys() == {7} and "ledger=" in failed[7] and "cannot be used" in failed[7]


def test_an_assessment_that_fails_stops_no_other_model(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    models = f"{{one: model={world.model}, other: model={world.model} model.attention=eager}}"
    words = small_study(world, "searcher=[one_shot]", "remove=[1]", f"model={models}", model=None)
    words += ["assess.speed.enabled=true", "assess.speed.context_tokens=8", "assess.speed.new_tokens=2"]
    assess = assess_found

    def fails_once(what: Any, *rest: Any) -> Any:
        if what.model.attention != "eager":
            raise EvaluationError("out of luck")
        return assess(what, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(running, "assess_found", fails_once)
        outcome = run("study", *words, "--json")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, "failed: out of luck")
    as_far = json.loads(run("report", "latest", "--json").out)
    assert [cell["state"] for cell in as_far["cells"]] == ["finished"] * 2
    assert all(cell["layer_forwards"]["shared"] > 0 for cell in as_far["cells"])
    assert [bool(cell["assessed"]) for cell in as_far["cells"]] == [False, True]
    assert all(cell["assessed"] for cell in found(run("study", *words, "--json"))["cells"])


def test_a_budget_ends_searches_with_the_best_so_far(world: World, run: Run) -> None:
    searchers = "{BO: searcher=bayesian searcher.initial=2, greedy: searcher=greedy}"
    words = [*small_study(world, f"searcher={searchers}", "remove=[3]"), "study.stop.evaluations=9"]
    value = found(run("study", *words, "--json"))
    bayesian, greedy = value["cells"]
    assert (bayesian["state"], bayesian["evaluations"], len(bayesian["removed"])) == ("stopped", 9, 3)
    assert greedy["state"] == "stopped" and "removed" not in greedy, "5 and 4 masks, and 3 to go"
    again = found(run("study", *words, "--json"))
    assert again["cells"] == value["cells"]


def test_a_budget_spent_before_there_is_a_mask_is_said(world: World, run: Run) -> None:
    words = small_study(world, "searcher=[greedy]", "remove=[3]")
    value = found(run("study", *words, "study.stop.evaluations=6", "--json"))
    (cell,) = value["cells"]
    assert (cell["state"], cell["failure"]) == (
        "stopped",
        "its budget was spent before a mask of 3 layers was scored",
    )
    assert "removed" not in cell


def test_dry_run_tells_cells_cost_and_time(world: World, run: Run, here: Path) -> None:
    plan = found(run("study", *study_words(world), "--dry-run", "--json"))
    assert len(plan["cells"]) == 8
    assert plan["layer_forwards"]["shared"] < plan["layer_forwards"]["separate"] < plan["layer_forwards"]["naive"]
    assert plan["eta_seconds"] > 0
    assert not (here / "mlruns").exists()
    said = run("study", *study_words(world), "--dry-run")
    assert "layer-forwards together instead of" in said.out


def test_a_study_is_the_same_wherever_it_runs_and_is_recorded(world: World) -> None:
    here, there = study_words(world), study_words(world, tracking="mlflow", cluster="elastic", store="elsewhere")
    assert build.study_spec(here).study_id == build.study_spec(there).study_id


def test_the_plan_is_what_searches_of_known_cost_run(done: tuple[dict[str, Any], Path], world: World) -> None:
    plan = plan_study(build.study_spec(study_words(world)))
    value, _ = done
    for planned, cell in zip(plan.cells, value["cells"], strict=True):
        if cell["searcher"] == "one_shot":
            assert planned.evaluations == cell["evaluations"]


def test_report_writes_anew_from_the_ledger_alone(done: tuple[dict[str, Any], Path], run: Run, here: Path) -> None:
    value, folder = done
    told_again = found(run("report", "latest", "--store", folder / "mlruns", "--out", "again", "--json"))
    assert told_again["cells"] == value["cells"]
    assert (here / "again/report.html").is_file()
    with opened(folder / "mlruns/ledger.db") as ledger:
        assert STUDIES.find(ledger, value["study_id"][:-3]).study_id == value["study_id"]


def test_what_a_study_found_can_be_assessed_later(done: tuple[dict[str, Any], Path], world: World, run: Run) -> None:
    value, folder = done
    text = f"assess.texts.prose=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    words = ["assess", value["study_id"], "assess=none", text, "assess.seq_len=32", "assess.limit=6"]
    words += ["cluster=inline", "--store", str(folder / "mlruns"), "--json"]
    assessed = found(run(*words))
    (metric,) = assessed["metrics"]
    assert metric["name"] == "prose"
    (dense,) = assessed["dense"].values()
    for cell in assessed["cells"]:
        assert cell["assessed"]["prose"]["value"] != dense["prose"]["value"]
    again = run(*words[:-1])
    assert again.code == 0 and "Report: " in again.out
    weights = world.model / "model.safetensors"
    before = weights.read_bytes()
    try:
        weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        refused = run(*words)
    finally:
        weights.write_bytes(before)
    assert (refused.code, refused.out) == (2, "")
    assert "is of another model: its files have changed since" in refused.err, refused.err


REFUSED: list[tuple[list[str], str]] = [
    (["study.grid.remove=[1,5]"], "remove=5 leaves no layer of the 5"),
    (["study.grid.sercher=[greedy]"], "sercher is no key of this configuration; did you mean 'searcher'"),
    (["study.grid.searcher=[gredy]"], "searcher=gredy is unknown; did you mean 'greedy'"),
    (["study.grid.searcher=greedy"], "study.grid.searcher=greedy is no list"),
    (["study.concurrency=0"], "study.concurrency=0 runs nothing"),
    (["study.stop.evaluations=0"], "study.stop.evaluations=0 ends every search at once"),
    (["study.name=a/b"], "study.name=a/b cannot name a folder"),
    (["cluster=inline", "cluster.replicas=1"], "cluster.backend=inline runs no study"),
    (["study.grid.searcher={a: searcher=greedy, b: searcher=greedy}"], "study.grid has one search twice"),
    (["assess.tasks=[piqua]", "assess.data_dir=."], "assess.tasks has piqua, for which no file is ready"),
    (["assess.tasks=[piqa]", "assess.data_dir=nowhere"], "assess.data_dir=nowhere"),
    (
        ["assess.seq_len=9", "assess.texts.mine=data=file data.path=nowhere.txt data.sampling=whole"],
        "nowhere.txt does not exist",
    ),
    (["assess.speed.enabled=true", "assess.speed.context_tokens=999"], "assess.speed.context_tokens=999"),
]


def test_what_cannot_be_run_is_refused_before_anything_is(
    world: World, run: Run, here: Path, subtests: pytest.Subtests
) -> None:
    for words, said in REFUSED:
        changed = [one.partition("=")[0] for one in words]
        given = [word for word in study_words(world) if word.partition("=")[0] not in changed]
        with subtests.test(said):
            outcome = run("study", *given, *words)
            assert outcome.code == 2
            assert said in outcome.err
            assert "Traceback" not in outcome.err
            assert not (here / "mlruns/ledger.db").exists()
