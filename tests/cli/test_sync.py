"""raysearch sync: missing runs are uploaded from the ledger to MLflow, once."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

import raysearch
from raysearch.ledger.ledger import opened
from raysearch.ledger.locks import locked
from raysearch.searching import run as search_run
from raysearch.searching.search_record import SEARCHES
from raysearch.studies.study_record import STUDIES
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.studies import small_study
from tests.sentences import Sentences
from tests.tracking.conftest import closed_port

pytestmark = pytest.mark.usefixtures("tables")


def recorded(uri: str, experiment: str = "raysearch") -> list[MlflowRun]:
    """Return all runs of an experiment."""
    client = MlflowClient(uri)
    mlflow_experiment = client.get_experiment_by_name(experiment)
    assert mlflow_experiment is not None
    runs: list[MlflowRun] = client.search_runs(
        [mlflow_experiment.experiment_id], max_results=5000, order_by=["attributes.run_id"]
    )
    return runs


def of_kind(kind: str, runs: list[MlflowRun]) -> list[MlflowRun]:
    return [run for run in runs if run.data.tags["raysearch.kind"] == kind]


def embedded(store: Path) -> str:
    return f"sqlite:///{(store / 'mlflow.db').resolve()}"


@pytest.fixture
def movable(world: World, tmp_path: Path) -> World:
    """Return the same model and text in a folder that can be deleted."""
    shutil.copytree(world.model.parent, tmp_path / "movable")
    return World(tmp_path / "movable/model", tmp_path / "movable/prose.txt")


@pytest.mark.usefixtures("blank_figures")
def test_a_search_that_mlflow_never_saw_is_written_without_its_model(
    run: Run, cwd: Path, movable: World, sentences: Sentences
) -> None:
    uri = f"http://127.0.0.1:{closed_port()}"
    arguments = movable.search(tracking=None, searcher="beam", searcher__width=2)
    plain = json_answer(run("search", *arguments, "tracking=none", "store=plain", "--json"))
    outcome = run("search", *arguments, f"tracking.uri={uri}", "--json")
    result = json_answer(outcome)
    assert [result[key] for key in ("removed", "loss")] == [plain[key] for key in ("removed", "loss")]
    [warning] = [line for line in outcome.err.splitlines() if "warning" in line]
    assert uri in warning
    assert warning.endswith(f"raysearch sync {result['search_id']}")
    assert result["mlflow_run_id"] is None

    shutil.rmtree(movable.model.parent)
    sentences.hide(uri, "uri")
    sentences.hide(re.compile(r"(?<=\()MlflowException.+…(?=\))"), "cause")
    sentences.refused_command(run("sync", "latest"))
    synced = json_answer(run("sync", "latest", "tracking.uri=null", "--json"))
    assert synced["missing"] == synced["trials"] == 1 + result["evaluations"]["requested"]
    before = recorded(embedded(cwd / "mlruns"))
    [parent] = of_kind("search", before)
    assert parent.info.run_id == synced["mlflow_run_id"]
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["loss/pruned"] == result["loss"]
    assert parent.data.metrics["progress/rounds"] == 2
    assert parent.data.params["versions.raysearch"]
    assert parent.data.tags["raysearch.searcher"] == "beam"
    assert {child.info.status for child in of_kind("trial", before)} == {"FINISHED"}
    assert [child.data.metrics["loss/pruned"] for child in of_kind("trial", before)] != []
    assert parent.info.start_time <= parent.info.end_time <= parent.info.start_time + 1000 * result["seconds"] + 1

    repeated = run("sync", synced["mlflow_run_id"])
    assert repeated.code == 0
    assert repeated.out == f"{result['search_id']}: MLflow has all of its {synced['trials']} trials.\n"
    assert [mlflow_run.to_dictionary() for mlflow_run in recorded(embedded(cwd / "mlruns"))] == [
        mlflow_run.to_dictionary() for mlflow_run in before
    ]
    config = json_answer(run("show", "latest", "--json"))["config"]
    assert config["tracking"]["uri"] is None, "from now on it is recorded there"


def test_what_was_recorded_looks_the_same_when_it_is_written_from_the_ledger(run: Run, cwd: Path, world: World) -> None:
    json_answer(run("search", *world.search(tracking="mlflow"), "--json"))
    synced = json_answer(run("sync", "latest", "tracking.experiment=anew", "--json"))
    old, new = (of_kind("search", recorded(embedded(cwd / "mlruns"), name))[0] for name in ("raysearch", "anew"))
    assert new.info.run_id == synced["mlflow_run_id"]
    assert new.data.tags.keys() == old.data.tags.keys()
    assert new.data.metrics == old.data.metrics
    assert {**new.data.params, "tracking.experiment": "raysearch"} == old.data.params
    client = MlflowClient(embedded(cwd / "mlruns"))
    files, new_files = (
        {file.path: file.file_size for file in client.list_artifacts(run_of.info.run_id)} for run_of in (old, new)
    )
    assert files.keys() == new_files.keys()
    assert files["trials.csv"] == new_files["trials.csv"]


@pytest.mark.usefixtures("blank_figures")
def test_a_search_that_was_stopped_is_found_by_its_run_and_has_nothing_to_sync_yet(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search_run, "run_rounds", stop)
        assert run("search", *world.search(tracking="mlflow")).code == 130
    (listed,) = raysearch.open().records()
    sentences.refused_command(run("sync", "latest"))
    assert listed.mlflow_run_id is not None
    assert json_answer(run("resume", listed.mlflow_run_id, "--json"))["mlflow_run_id"] == listed.mlflow_run_id


def test_mistakes_are_refused_in_one_sentence(
    run: Run, world: World, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    assert run("search", *world.search()).code == 0
    for arguments in ([], ["remove=3"], ["tracking.urk=x"]):
        with subtests.test(arguments=arguments):
            sentences.refused_command(run("sync", "latest", *arguments), " ".join(arguments))


@pytest.mark.usefixtures("blank_figures", "blank_report")
def test_a_study_is_filed_with_its_searches_assessments_and_report(run: Run, cwd: Path, world: World) -> None:
    """All evaluations of the study are in the ledger, so that it starts no Ray."""
    arguments = [*small_study(world, "searcher=[one_shot,greedy]", "remove=[2]"), "study.name=late"]
    text = f"assess.texts.mine=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    for searcher in ("one_shot", "greedy"):
        assert run("search", *world.search(searcher=searcher, screening="off")).code == 0
        assert run("assess", "latest", "assess=none", text, "assess.seq_len=16", "cluster=inline").code == 0
    study = json_answer(run("study", *arguments, text, "assess.seq_len=16", "--json"))
    synced = json_answer(run("sync", "late", "tracking=mlflow", "--json"))
    assert synced["study_id"] == study["study_id"]
    assert synced["report"]
    assert synced["unfinished"] == []
    before = recorded(embedded(cwd / "mlruns"))
    [parent] = of_kind("study", before)
    assert (parent.info.run_id, parent.info.status) == (synced["mlflow_run_id"], "FINISHED")
    assert parent.data.metrics["searches/done"] == 2
    files = {file.path for file in MlflowClient(embedded(cwd / "mlruns")).list_artifacts(parent.info.run_id)}
    assert "report.html" in files
    searches = of_kind("search", before)
    assert {search.data.tags["mlflow.parentRunId"] for search in searches} == {parent.info.run_id}
    assert {search.data.params["study.searcher"] for search in searches} == {"one_shot", "greedy"}
    assert all("assess/mine/pruned" in search.data.metrics for search in searches)

    assert raysearch.open("mlruns").study("late").sync().study_id == study["study_id"]
    repeated = json_answer(run("sync", "late", "--json"))
    assert all(synced["missing"] == 0 for synced in repeated["searches"])
    assert [mlflow_run.to_dictionary() for mlflow_run in recorded(embedded(cwd / "mlruns"))] == [
        mlflow_run.to_dictionary() for mlflow_run in before
    ]
    with (
        opened(cwd / "mlruns/ledger.db") as ledger,
        locked(ledger, first := repeated["searches"][0]["search_id"], "SEARCH"),
    ):
        assert "is already being run by" in run("sync", first).err
        assert json_answer(run("sync", "late", "--json"))["unfinished"] == [first]
    down = [word for word in arguments if word != "tracking=none"] + [f"tracking.uri=http://127.0.0.1:{closed_port()}"]
    assert "is not recorded in MLflow" in run("study", *down, "--json").err
    with opened(cwd / "mlruns/ledger.db") as ledger:
        assert STUDIES.find(ledger, "late").mlflow_run_id == parent.info.run_id, "it is where it was"
    page = json_answer(run("report", "late", "--json"))
    assert page["cells"][0]["search_id"] in {synced["search_id"] for synced in repeated["searches"]}

    # As if one had been killed while it was recorded, and one before its record named its run.
    client = MlflowClient(embedded(cwd / "mlruns"))
    client.update_run(searches[0].info.run_id, status="RUNNING")
    with opened(cwd / "mlruns" / "ledger.db") as ledger:
        unnamed = SEARCHES.find(ledger, searches[1].data.tags["raysearch.search_id"])
        SEARCHES.write(ledger, replace(unnamed, mlflow_run_id=None))
    json_answer(run("study", *arguments, "tracking=mlflow", text, "assess.seq_len=16", "--json"))
    assert {client.get_run(search.info.run_id).info.status for search in searches} == {"FINISHED"}
    assert json_answer(run("show", unnamed.search_id, "--json"))["mlflow_run_id"] == searches[1].info.run_id
