"""Commands on a recorded search: resume, show, export."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.calibration.batch import Form
from raysearch.calibration.data import Data
from raysearch.calibration.formats.text import TextFormat
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import WindowOptions
from raysearch.core.mask import Mask
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.test_search import GREEDY, numbers, table
from tests.evaluation.oracle import plain_losses
from tests.faults.injection import refused
from tests.sentences import Sentences


def test_resume_takes_up_by_name(run: Run, world: World) -> None:
    result = json_answer(run("search", *world.search(), "--json"))
    for name in ("latest", "greedy", result["search_id"]):
        resumed = json_answer(run("resume", name, "--json"))
        assert numbers(resumed) == numbers(result)
        assert resumed["evaluations"]["computed"] == 0
    shown = json_answer(run("show", "latest", "--json"))["result"]
    work = ("evaluations", "layer_forwards", "layer_tokens", "seconds", "ended")
    assert result["evaluations"]["computed"], "what the search took stays recorded"
    assert {name: shown[name] == result[name] for name in work} == dict.fromkeys(work, True), (
        "what the search took stays recorded"
    )


def test_resume_from_another_folder_uses_the_same_ledger(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json_answer(run("search", *world.search(), "--json"))
    elsewhere = cwd / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    resumed = json_answer(run("resume", "latest", "--store", cwd / "mlruns", "--json"))
    assert resumed["evaluations"]["computed"] == 0
    assert numbers(resumed) == numbers(result)
    resumed = json_answer(run("resume", "latest", "--store", cwd / "mlruns" / "ledger.db", "--json"))
    assert resumed["evaluations"]["computed"] == 0
    assert not list(elsewhere.iterdir())


def test_a_ledger_that_cannot_be_written_is_read_all_the_same(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json_answer(run("search", *world.search(), "store=kept", "--json"))
    before = {file: file.read_bytes() for file in (cwd / "kept").glob("ledger.db*")}
    access = os.access
    monkeypatch.setattr(
        "os.access", lambda file, mode: access(file, mode) and (mode != os.W_OK or "kept" not in str(file))
    )
    reading = ["show latest", "recommend latest budget.loss=9", "export latest --out pruned", "ledger check"]
    for command in [*reading, "ledger export --out tables"]:
        json_answer(run(*command.split(), "--store", "kept", "--json"))
    assert (cwd / "pruned" / "config.json").exists()
    assert (cwd / "tables" / "trials.csv").exists()
    writing = {"search": [*world.search(seed=1), "store=kept"], "resume": [result["search_id"], "--store", "kept"]}
    for command, arguments in writing.items():
        refused(run(command, *arguments, "--json"), "ledger.db cannot be written", "name another with ledger=")
    assert before == {file: file.read_bytes() for file in (cwd / "kept").glob("ledger.db*")}


@pytest.mark.usefixtures("tables", "blank_figures")
def test_a_separate_ledger_is_used_again(run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mlruns").rename("kept")
    outcome = run("search", *world.search(ledger="my own.db", store=cwd / "kept", tracking="mlflow"))
    assert "--out pruned-model --store 'my own.db'" in outcome.out
    assert json_answer(run("show", "--store", "my own.db", "--json"))[0]["state"] == "finished"
    before = sorted(cwd.iterdir())
    elsewhere = cwd / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for command in "resume", "sync":
        assert not json_answer(run(command, "latest", "--store", cwd / "my own.db", "--json")).get("missing")
    assert not list(elsewhere.iterdir()), "the same store"
    assert sorted(cwd.iterdir()) == sorted([*before, elsewhere]), "the same store"


def test_show_lists_searches_and_what_they_saw(run: Run, world: World) -> None:
    greedy = json_answer(run("search", *world.search(), "--json"))
    one_shot = json_answer(run("search", *world.search(searcher="one_shot"), "--json"))
    listed = json_answer(run("show", "--json"))
    assert [search["search_id"] for search in listed] == [one_shot["search_id"], greedy["search_id"]], (
        "the newest first"
    )
    assert [search["state"] for search in listed] == ["finished", "finished"]
    assert listed[1]["result"] == greedy
    readable = run("show").out
    assert [row[0].strip() for row in table(readable)] == [one_shot["search_id"], greedy["search_id"]]
    assert world.model.name in readable, "a path is long"
    assert str(world.model) not in readable, "a path is long"

    whole = json_answer(run("show", greedy["search_id"], "--json"))
    assert whole["config"]["remove"] == 2
    assert len(whole["result"]["trials"]) == GREEDY + 1
    shown = run("show", greedy["search_id"], "--most", "1").out
    assert f"1 of {GREEDY} masks, those of the most layers first, then by loss" in " ".join(shown.split())
    firsts = [row[0].strip() for row in table(shown)]
    assert firsts[-3:] == ["1", "2", str(Mask(tuple(greedy["removed"])))]
    assert {"state", "data", "searcher", "remove", "time", "loss over dense"} <= {*firsts}
    (repeat,) = (line.removeprefix("Repeat: raysearch ") for line in shown.splitlines() if line.startswith("Repeat: "))
    repeated = json_answer(run(*shlex.split(repeat), "--json"))
    assert (repeated["search_id"], repeated["evaluations"]["computed"]) == (greedy["search_id"], 0), "the same search"


def test_an_export_is_what_the_search_judged(run: Run, cwd: Path, world: World) -> None:
    result = json_answer(run("search", *world.search(), "--json"))
    outcome = run("export", "latest", "--out", "pruned model", "--prompt", "the state of")
    assert outcome.code == 0
    assert "Wrote" in outcome.out
    assert "3 layers" in outcome.out
    assert "Before: the state of" in outcome.out
    assert "After:  the state of" in outcome.out

    model = AutoModelForCausalLM.from_pretrained(cwd / "pruned model", dtype=torch.float32).eval()
    assert model.config.num_hidden_layers == 3
    tokenizer = AutoTokenizer.from_pretrained(cwd / "pruned model")
    windows = Data(Rows(str(world.text)), TextFormat(), WindowOptions(8, 16)).samples(tokenizer, Form.TEXT).batch
    loss = plain_losses(model, Mask(), windows).sum() / windows.n_scored
    assert loss == pytest.approx(result["loss"], rel=1e-5)
    scores = json_answer(run("score", *world.overrides(model="./pruned model", masks="[[]]"), "--json"))
    assert scores[0]["loss"] == pytest.approx(result["loss"], rel=1e-6)


def test_an_export_overwrites_only_what_it_may(run: Run, cwd: Path, world: World, sentences: Sentences) -> None:
    json_answer(run("search", *world.search(), "--json"))
    (cwd / "taken").mkdir()
    (cwd / "taken" / "thesis.txt").write_text("mine")
    for folder in cwd / "taken", cwd / "mlruns", cwd:
        before = sorted(path.name for path in folder.iterdir())
        for overwrite in [], ["--overwrite"]:
            ended = run("export", "latest", "--out", folder, *overwrite, "--json")
            assert ended.out == ""
            sentences.refused_command(ended, " ".join([folder.name, *overwrite]))
        assert sorted(path.name for path in folder.iterdir()) == before
    json_answer(run("export", "latest", "--out", "mine", "--json"))
    sentences.refused_command(run("export", "latest", "--out", "mine", "--json"), "an export")
    written = json_answer(run("export", "latest", "--out", "mine", "--overwrite", "--json"))
    assert written["n_layers"] == 3
    assert Path(written["out"]) == cwd / "mine"
