"""`raysearch ledger`, as people and programs use it."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Run, World
from tests.cli.found import found


def test_a_ledger_is_checked_merged_exported_and_cleaned(run: Run, here: Path, world: World) -> None:
    first = found(run("search", *world.search(), "--json"))
    shutil.copytree("mlruns", "other")
    said = run("ledger", "check")
    assert said.code == 0 and "mlruns/ledger.db is whole: " in said.out and "1 search" in said.out

    files = json.loads(run("ledger", "export", "--out", "tables", "--json").out)
    assert {Path(one["path"]).name: one["rows"] for one in files}["searches.csv"] == 1
    assert all(Path(one["path"]).is_file() for one in files)

    for words, sentence in {
        (): "Nothing to clean in mlruns/ledger.db: no search was named that it should forget; --yes gives back unused",
        ("--yes",): "Nothing to clean in mlruns/ledger.db: no search was named that it should forget; ",
    }.items():
        assert sentence in run("ledger", "clean", *words).out
    asked = run("ledger", "clean", "latest")
    assert f"1 search ({first['search_id']}) with " in asked.out and "do it with --yes" in asked.out
    assert json.loads(run("ledger", "check", "--json").out)["rows"]["searches"] == 1
    assert run("ledger", "clean", "latest", "--yes").code == 0
    left = json.loads(run("ledger", "check", "--json").out)["rows"]
    assert left["searches"] == left["evaluations"] == 0

    merged = json.loads(run("ledger", "merge", "other", "--json").out)["rows"]
    assert merged["searches"] == 1 and merged["evaluations"] > 0
    again = found(run("search", *world.search(), "--json"))
    assert (again["removed"], again["evaluations"]["computed"]) == (first["removed"], 0)

    with closing(sqlite3.connect(here / "mlruns" / "ledger.db")) as connection, connection:
        connection.execute("UPDATE searches SET state = 'running'")
    damaged = run("ledger", "check")
    assert damaged.code == 1 and f"searches: {first['search_id']}" in damaged.out
    itself = run("ledger", "merge", "mlruns")
    assert itself.code == 2 and "OTHER=mlruns/ledger.db is the ledger that the others are merged into" in itself.err
    refused = run("ledger", "merge", "mlruns", "--store", "other")
    assert refused.code == 2 and "OTHER=mlruns/ledger.db is damaged (searches: " in refused.err
