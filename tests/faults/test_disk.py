"""A disk that is full or read-only ends a command with one sentence, and spoils nothing that was on it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import Run, World
from tests.faults.injection import Disk, do, mounted, refused

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def disk(cwd: Path) -> Iterator[Disk]:
    """A disk of 1 MiB at the folder ``disk``."""
    (cwd / "disk").mkdir()
    with mounted(cwd / "disk", "1m") as small:
        yield small


def content(folder: Path) -> dict[str, str]:
    """The files of a folder, by name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def losses_on(disk: Disk) -> dict[tuple[str, str, int], bytes]:
    """Every row of the ledger there; of a copy, since SQLite follows links and so does not find it."""
    shutil.copytree(disk.mounted_path, "copy")
    try:
        return evaluations("copy")
    finally:
        shutil.rmtree("copy")


def test_a_search_whose_disk_is_full_goes_on_once_there_is_space(
    disk: Disk, command: list[str], undisturbed: dict[str, Any]
) -> None:
    outcome = do(*command, "store=disk", disk=disk)
    refused(outcome, "ledger=disk/ledger.db cannot be used (", "; free some space on its disk, and the same command")
    earlier = losses_on(disk)
    assert 0 < len(earlier) < len(evaluations("undisturbed"))
    refused(do(*command, "store=disk", disk=disk), "ledger=disk/ledger.db cannot be used (", "; free some space")
    disk.remount("size=64m")
    again = json_answer(do(*command, "store=disk", disk=disk))
    assert same(again, undisturbed)
    assert losses_on(disk) == evaluations("undisturbed")
    assert earlier.items() <= evaluations("undisturbed").items()


@pytest.mark.parametrize("size", ["500k", "900k"], ids=["tables", "metrics"])
def test_a_full_disk_of_mlflow_stops_nothing_and_is_one_sentence(
    disk: Disk, command: list[str], undisturbed: dict[str, Any], size: str
) -> None:
    disk.remount(f"size={size}")
    arguments = [*command, "tracking=mlflow"]
    outcome = do(*arguments, "store=disk", "ledger=ledger.db", disk=disk)
    assert same(json_answer(outcome), undisturbed)
    [warning] = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert "is full" in warning
    assert "by: raysearch sync beam-m3-" in warning
    assert "Traceback" not in outcome.err, outcome.err
    assert "ERROR" not in outcome.err, outcome.err
    sync = ["sync", "latest", "--store", "ledger.db", "--json"]
    refused(do(*sync, disk=disk), "cannot be written to (", "sync again once it can be, or name another")
    disk.remount("size=64m")
    assert json_answer(do(*sync, disk=disk))["missing"] > 0


def test_an_export_to_a_full_disk_leaves_what_was_there(
    disk: Disk, world: World, run: Run, subtests: pytest.Subtests
) -> None:
    json_answer(run("search", *world.search(), "--json"))
    arguments = ["export", "latest", "--json", "--out", "disk/pruned"]
    sentence = f"--out={disk.path}/pruned cannot be written (", "; free some space on its disk"
    enough_for = {"weights": 20 << 10, "the tokenizer": 125 << 10}
    for what, free_bytes in enough_for.items():
        with subtests.test(f"room for {what}"):
            disk.fill(free_bytes)
            refused(do(*arguments, disk=disk), *sentence)
            assert [path.name for path in disk.mounted_path.iterdir()] == ["ballast"]
            disk.empty()
    json_answer(do(*arguments, disk=disk))
    earlier = content(disk.mounted_path)
    for what, free_bytes in enough_for.items():
        with subtests.test(f"over an export, room for {what}"):
            disk.fill(free_bytes)
            refused(do(*arguments, "--overwrite", disk=disk), *sentence)
            disk.empty()
            assert content(disk.mounted_path) == earlier


def test_what_cannot_be_written_is_said(disk: Disk, world: World, run: Run) -> None:
    disk.remount("size=64m")
    search = ["search", *world.search(), "--json"]
    result = json_answer(do(*search, "store=disk", disk=disk))
    json_answer(do("export", "latest", "--store", "disk", "--out", "disk/pruned", "--json", disk=disk))
    earlier = content(disk.mounted_path)
    disk.remount("ro")
    for arguments in search, ["search", *world.search(remove=1), "--json"], ["resume", "latest", "--json"]:
        stored = ["--store", "disk"] if arguments[0] == "resume" else ["store=disk"]
        refused(
            do(*arguments, *stored, disk=disk), "ledger=disk/ledger.db cannot be used (", "name another with ledger=…"
        )
    refused(do(*search, "store=disk/new", disk=disk), "ledger=disk/new/ledger.db cannot be used (Read-only file system")
    json_answer(run("search", *world.search(), "--json"))
    for out in "disk/pruned", "disk/new":
        outcome = do("export", "latest", "--out", out, "--overwrite", "--json", disk=disk)
        refused(outcome, f"{out} cannot be written (Read-only file system); name another folder")
    sweep = do("sweep", *world.overrides(), "store=swept", "--out", "disk/new", disk=disk)
    refused(sweep, "--out=disk/new cannot be written (", "is closed to you or read-only); name another folder")
    assert not Path("swept").exists(), "it is said before anything is computed"
    disk.remount("rw")
    assert content(disk.mounted_path) == earlier
    again = json_answer(do(*search, "store=disk", disk=disk))
    assert same(again, result)
    assert again["evaluations"]["computed"] == 0
