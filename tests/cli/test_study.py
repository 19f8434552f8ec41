"""Studies: grids of searches on Ray Tune that share replicas and ledger, and resume whatever ended them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import raysearch
from raysearch.core.json import plain
from raysearch.ledger.ledger import opened
from raysearch.searching import notices
from raysearch.searching.events import WarningRaised
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SEARCHES
from raysearch.studies.study_record import STUDIES
from tests.cli.answers import evaluations, json_answer
from tests.cli.conftest import Run, World
from tests.cli.refusals import refuses_cleanly
from tests.cli.studies import small_study, study_overrides
from tests.conftest import leave_report_blank
from tests.sentences import Sentences


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory, one_ray: None) -> tuple[dict[str, Any], Path]:
    """Run an undisturbed study on a CPU that is slow in its dtype; return its answer and its folder."""
    folder = tmp_path_factory.mktemp("study")
    warned: list[str] = []

    class Warned(Observer):
        @override
        def on_warning_raised(self, event: WarningRaised) -> None:
            warned.append(event.message)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        leave_report_blank(patch)
        patch.setattr(notices, "has_instructions", lambda dtype: dtype != "float32")
        study = raysearch.study(*study_overrides(world), observer=Warned())
    return {**plain(study.result), "report": str(study.files[0]), "warned": warned}, folder


@pytest.mark.slow
def test_all_searches_are_done_and_counted(done: tuple[dict[str, Any], Path]) -> None:
    value, folder = done
    assert len(value["cells"]) == 8
    assert all(cell["state"] == "finished" for cell in value["cells"])
    assert 0 < value["layer_forwards"]["shared"] < 0.6 * value["layer_forwards"]["separate"]
    assert value["layer_forwards"]["separate"] < value["layer_forwards"]["naive"]
    assert (folder / value["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with opened(folder / "mlruns/ledger.db") as ledger:
        runs = SEARCHES.by_ids(ledger, [cell["search_id"] for cell in value["cells"]])
    computed = sum(run.result.work.evaluations.computed for run in runs.values() if run.result)
    masks = {mask for _, mask, _ in evaluations(folder / "mlruns")}
    assert computed == len(masks) - 1, "each mask once, whoever asked at the same time; the dense model is not counted"


def test_a_study_reports_a_dtype_without_instructions_once(done: tuple[dict[str, Any], Path]) -> None:
    value, _ = done
    assert sum("this machine's CPU has no instructions for float32" in warning for warning in value["warned"]) == 1


def test_a_search_alone_finds_the_same(done: tuple[dict[str, Any], Path], world: World, run: Run) -> None:
    value, _ = done
    for cell in value["cells"]:
        overrides = world.search(searcher=cell["searcher"], remove=cell["remove"], screening="off")
        separate = json_answer(run("search", *overrides, "--json", f"store={cell['search_id']}"))
        for key in ("search_id", "removed", "loss", "dense_loss"):
            assert separate[key] == cell[key]
        assert (
            separate["layer_forwards"]["computed"]
            == separate["layer_forwards"]["alone"]
            == cell["layer_forwards"]["alone"]
        )


def test_a_dry_run_shows_cells_cost_and_time(world: World, run: Run, cwd: Path) -> None:
    plan = json_answer(run("study", *study_overrides(world), "--dry-run", "--json"))
    assert len(plan["cells"]) == 8
    assert plan["layer_forwards"]["shared"] < plan["layer_forwards"]["separate"] < plan["layer_forwards"]["naive"]
    assert plan["eta_seconds"] > 0
    assert not (cwd / "mlruns").exists()
    outcome = run("study", *study_overrides(world), "--dry-run")
    assert "layer-forwards together instead of" in outcome.out
    assert "of searching; about" in outcome.out
    assert "GB of memory" in outcome.out
    assert "rehearsal: search 1 of 8" in outcome.err
    assert "on a shard of each calibration" in outcome.err


@pytest.mark.parametrize(
    "mistake",
    [
        "store=file assess.seq_len=32",
        "data.samples=100000",
        "study.grid.remove=[1,9]",
        "assess.tasks=[nothing]",
        "assess.seq_len=9999",
    ],
)
def test_a_dry_run_refuses_what_the_study_would(
    mistake: str, world: World, run: Run, cwd: Path, sentences: Sentences
) -> None:
    (cwd / "file").touch()
    overrides = [
        *study_overrides(world),
        f"assess.texts.prose=data=file data.path={world.text} data.sampling=sequential",
        *mistake.split(),
    ]
    dry = run("study", *overrides, "--dry-run")
    real = run("study", *overrides)
    sentences.refused_command(dry)
    assert real.code == 2
    assert dry.err.splitlines()[-1] == real.err.splitlines()[-1]
    assert [path.name for path in cwd.iterdir()] == ["file"]


def test_a_report_is_written_from_the_ledger_alone(done: tuple[dict[str, Any], Path], run: Run, cwd: Path) -> None:
    value, folder = done
    told_again = json_answer(run("report", "latest", "--store", folder / "mlruns", "--out", "again", "--json"))
    assert told_again["cells"] == value["cells"]
    assert (cwd / "again/report.html").is_file()
    by_ledger = json_answer(run("report", "latest", "--store", folder / "mlruns/ledger.db", "--json"))
    assert by_ledger["report"] == str(folder.resolve() / value["report"])
    assert not (cwd / "mlruns").exists()
    with opened(folder / "mlruns/ledger.db") as ledger:
        assert STUDIES.find(ledger, value["study_id"][:-3]).study_id == value["study_id"]


def test_an_address_of_mlflow_must_be_a_web_address(
    done: tuple[dict[str, Any], Path], run: Run, sentences: Sentences
) -> None:
    _, folder = done
    sentences.refused_command(
        run("report", "latest", "--store", folder / "mlruns", "--mlflow-url", "javascript:alert(1)")
    )


def test_what_a_study_found_can_be_assessed_later(
    done: tuple[dict[str, Any], Path], world: World, run: Run, sentences: Sentences
) -> None:
    value, folder = done
    text = f"assess.texts.prose=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    command = ["assess", value["study_id"], "assess=none", text, "assess.seq_len=32", "assess.limit=6"]
    command += ["cluster=inline", "--store", str(folder / "mlruns"), "--json"]
    assessed = json_answer(run(*command))
    (metric,) = assessed["metrics"]
    assert metric["name"] == "prose"
    (dense,) = assessed["dense"].values()
    for cell in assessed["cells"]:
        assert cell["assessed"]["prose"]["value"] != dense["prose"]["value"]
    repeated = run(*command[:-1], "--out", "elsewhere")
    assert repeated.code == 0
    assert "Report: elsewhere/report.html" in repeated.out
    weights = world.model / "model.safetensors"
    before = weights.read_bytes()
    try:
        weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        refused = run(*command)
    finally:
        weights.write_bytes(before)
    assert refused.out == ""
    sentences.refused_command(refused)


REFUSED = [
    ["study.concurrency=0"],
    ["study.stop.evaluations=0"],
    ["cluster=inline", "cluster.replicas=1"],
    ["study.grid.searcher={a: searcher=greedy, b: searcher=greedy}"],
    ["assess.tasks=[piqua]", "assess.data_dir=."],
    ["assess.tasks=[piqa]", "assess.data_dir=nowhere"],
    ["assess.seq_len=9", "assess.texts.mine=data=file data.path=nowhere.txt data.sampling=whole"],
    ["assess.speed.enabled=true", "assess.speed.context_tokens=999"],
]


def test_what_cannot_be_run_is_refused_before_anything_is(
    world: World, run: Run, cwd: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    usual = small_study(world, "searcher=[greedy]", "remove=[1]")
    for overrides in REFUSED:
        case = " ".join(overrides)
        with subtests.test(case):
            refuses_cleanly(run, ["study", *usual, *overrides], sentences, case, cwd)


def test_a_folder_that_tune_cannot_write_to_is_refused(world: World, run: Run, cwd: Path, sentences: Sentences) -> None:
    (cwd / "taken").mkdir()
    (cwd / "taken/tune").write_text("a file where a folder should be")
    outcome = run("study", *small_study(world, "searcher=[one_shot]", "remove=[1]"), "store=taken", "ledger=my.db")
    sentences.refused_command(outcome)
