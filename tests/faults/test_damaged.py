"""A damaged ledger is refused, or its undamaged part is used; it never gives wrong answers."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import Run, World
from tests.faults.injection import BEAM, do, kill_at, refused, start, wait_for_rows

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def damaged(how: Callable[[bytearray], object]) -> None:
    """Does something to the bytes of the ledger."""
    path = Path("mlruns/ledger.db")
    content = bytearray(path.read_bytes())
    how(content)
    path.write_bytes(content)


def cut_in_half(content: bytearray) -> None:
    del content[len(content) // 2 :]


def overwritten_in_the_middle(content: bytearray) -> None:
    middle = len(content) // 2
    content[middle : middle + 8192] = np.random.default_rng(0).bytes(8192)


def edited_by_hand(content: bytearray) -> None:
    at = content.index(b'"remove": 3')
    content[at : at + 11] = b'"remove": 4'


@pytest.fixture
def result(undisturbed: dict[str, Any]) -> dict[str, Any]:
    """What the search of `command` has found here."""
    shutil.copytree("undisturbed", "mlruns")
    return undisturbed


def test_a_damaged_ledger_is_refused_until_a_copy_is_put_back(
    run: Run, command: list[str], result: dict[str, Any], subtests: pytest.Subtests
) -> None:
    shutil.copy("mlruns/ledger.db", "copy.db")
    for how in (cut_in_half, overwritten_in_the_middle):
        with subtests.test(how.__name__):
            damaged(how)
            sentence = "ledger=mlruns/ledger.db cannot be used (", "; put back a copy of it, or move it away"
            for arguments in command, ["resume", "latest", "--json"]:
                refused(run(*arguments), *sentence)
            shown_search = run("show", "latest", "--json")  # a record that is whole is shown, whatever else is damaged
            if shown_search.code == 0:
                assert same(json.loads(shown_search.out)["result"], result)
            else:
                refused(shown_search, *sentence)
            checked = run("ledger", "check")
            assert checked.code in (1, 2), checked
            assert "Traceback" not in checked.err, checked
        shutil.copy("copy.db", "mlruns/ledger.db")
        again = json_answer(run(*command))
        assert same(again, result)
        assert again["evaluations"]["computed"] == 0
        shutil.copy("copy.db", "mlruns/ledger.db")


def test_a_record_that_was_edited_by_hand_is_refused_until_the_search_writes_it_anew(
    run: Run, command: list[str], result: dict[str, Any]
) -> None:
    damaged(edited_by_hand)
    for arguments in ["resume", "latest", "--json"], ["show", "--json"], ["export", "latest", "--out", "pruned"]:
        refused(run(*arguments), "ledger=mlruns/ledger.db cannot be used (malformed: an entry is not what was written)")
    assert same(json_answer(run(*command)), result)
    assert json.loads(run("show", "latest", "--json").out)["result"]["removed"] == result["removed"]


def test_a_ledger_that_is_moved_away_meanwhile(command: list[str], undisturbed: dict[str, Any]) -> None:
    search = start(*command)
    wait_for_rows(search, "mlruns", 100)
    Path("mlruns").rename("elsewhere")
    sentence = "ledger=mlruns/ledger.db was deleted, moved or replaced while it was in use; put it back, and the same"
    refused(search.finish(), sentence)
    Path("elsewhere").rename("mlruns")
    earlier_evaluations = evaluations("mlruns")
    assert len(earlier_evaluations) >= 100
    assert same(json_answer(do(*command)), undisturbed)
    assert earlier_evaluations.items() <= evaluations("mlruns").items()
    assert evaluations("mlruns") == evaluations("undisturbed")


def test_what_belongs_to_another_model_or_text_is_not_shared(run: Run, world: World, tmp_path: Path) -> None:
    first = json_answer(run("search", *world.search(), "--json"))
    other_model = remade(world, tmp_path / "model", seed=1)
    for changes in ({"model": other_model}, {"data.seed": 1}, {"data.seq_len": 17}, {"objective": "kl"}):
        other = json_answer(run("search", *world.search(**changes), "--json"))
        assert other["search_id"] != first["search_id"]
        assert other["evaluations"]["cached"] == 0, changes
    assert same(json_answer(run("search", *world.search(), "--json")), first)


def test_what_has_changed_since_is_said_and_once_restored_it_goes_on(
    cwd: Path, run: Run, world: World, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    text, folder = cwd / "text.txt", tmp_path / "model"
    text.write_text(world.text.read_text())
    shutil.copytree(world.model, folder)
    arguments = ["search", *world.search(**{**BEAM, "model": folder, "data.path": text}), "--json"]
    kill_at(arguments, "mlruns", 300)

    weights = (folder / "model.safetensors").read_bytes()
    remade(world, folder, seed=1)
    search = f"SEARCH={undisturbed['search_id']}"
    refusal = f"{search} cannot be resumed: "
    remedy = ", or start again with raysearch search"
    sentence = f"{refusal}the files of its model have changed since; put back the old ones{remedy}"
    refused(run("resume", "latest", "--json"), sentence)
    (folder / "model.safetensors").write_bytes(weights)

    text.write_text(world.text.read_text()[::-1])
    refused(run("resume", "latest", "--json"), f"{refusal}its text has changed since; put back the old one{remedy}")
    text.write_text(world.text.read_text())

    earlier_evaluations = evaluations("mlruns")
    resumed: dict[str, Any] = json_answer(run("resume", "latest", "--json"))
    assert same(resumed, undisturbed)
    assert resumed["evaluations"]["cached"] > 0
    remade(world, folder, seed=1)
    speed = ["assess=none", "assess.speed.enabled=true", "assess.speed.context_tokens=8", "assess.speed.new_tokens=2"]
    for arguments in ["export", "latest", "--out", "pruned"], ["assess", "latest", "cluster=inline", *speed]:
        refused(run(*arguments, "--json"), f"{search} is of another model: its files have changed since")
    (folder / "model.safetensors").write_bytes(weights)
    json_answer(run("export", "latest", "--out", "pruned", "--json"))
    assert earlier_evaluations.items() <= evaluations("mlruns").items()
    assert evaluations("mlruns") == evaluations("undisturbed")


def remade(world: World, folder: Path, seed: int) -> Path:
    """A model of the same shape with other weights."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(world.model, folder, dirs_exist_ok=True)
    model: Any = AutoModelForCausalLM.from_pretrained(world.model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weights in model.model.layers[0].parameters():
            weights.add_(torch.randn_like(weights) * 0.1)
    model.save_pretrained(folder)
    return folder


def test_a_ledger_that_another_program_keeps_locked(
    run: Run, command: list[str], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(command, "mlruns", 100)
    earlier_evaluations = evaluations("mlruns")
    monkeypatch.setattr("raysearch.ledger.ledger._LOCKED_S", 1.0)
    with closing(sqlite3.connect("mlruns/ledger.db", isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        refused(run(*command), "ledger=mlruns/ledger.db cannot be used (database is locked)", "end that, and the same")
    assert evaluations("mlruns") == earlier_evaluations
    assert same(json_answer(run(*command)), undisturbed)
