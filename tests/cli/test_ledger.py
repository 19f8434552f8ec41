"""`raysearch ledger`, as people and programs use it."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.sentences import Sentences


def test_a_ledger_is_checked_merged_exported_and_cleaned(
    run: Run, cwd: Path, world: World, sentences: Sentences
) -> None:
    first = json_answer(run("search", *world.search(), "--json"))
    shutil.copytree("mlruns", "other")
    checked = run("ledger", "check")
    assert checked.code == 0
    assert "mlruns/ledger.db is whole: " in checked.out
    assert "1 search" in checked.out

    files = json.loads(run("ledger", "export", "--out", "tables", "--json").out)
    assert {Path(file["path"]).name: file["rows"] for file in files}["searches.csv"] == 1
    assert all(Path(file["path"]).is_file() for file in files)

    for options, sentence in {
        (): "Nothing to delete in mlruns/ledger.db: no search was named; --yes only shrinks the file",
        ("--yes",): "Nothing to delete in mlruns/ledger.db: no search was named; ",
    }.items():
        assert sentence in run("ledger", "clean", *options).out
    preview = run("ledger", "clean", "latest")
    assert f"1 search ({first['search_id']}) with " in preview.out
    assert "delete with --yes" in preview.out
    assert json.loads(run("ledger", "check", "--json").out)["rows"]["searches"] == 1
    assert run("ledger", "clean", "latest", "--yes").code == 0
    rows = json.loads(run("ledger", "check", "--json").out)["rows"]
    assert rows["searches"] == rows["evaluations"] == 0

    merged = json.loads(run("ledger", "merge", "other", "--json").out)["rows"]
    assert merged["searches"] == 1
    assert merged["evaluations"] > 0
    repeated = json_answer(run("search", *world.search(), "--json"))
    assert (repeated["removed"], repeated["evaluations"]["computed"]) == (first["removed"], 0)

    with closing(sqlite3.connect(cwd / "mlruns" / "ledger.db")) as connection, connection:
        connection.execute("UPDATE searches SET state = 'running'")
    damaged = run("ledger", "check")
    assert damaged.code == 1
    assert f"searches: {first['search_id']}" in damaged.out
    sentences.refused_command(run("ledger", "merge", "mlruns"), "itself")
    sentences.refused_command(run("ledger", "merge", "mlruns", "--store", "other"), "a damaged ledger")
