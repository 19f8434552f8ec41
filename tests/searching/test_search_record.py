"""Records of searches, and the state of a search without a process."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import raysearch
from raysearch.cli.app import app
from raysearch.cli.ledger import clean
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked
from raysearch.searching.search_record import SEARCHES, SearchRecord, State, with_current_states, write_search
from raysearch.studies.study_record import STUDIES, CellRecord, StudyRecord
from tests.sentences import Sentences

CONFIG: dict[str, Any] = {"model": {"name": "tiny"}, "remove": 1, "choices": {}}


def states(store: Path) -> dict[str, State]:
    """The state of each search in a store."""
    return {record.search_id: record.state for record in raysearch.open(store).records()}


def times(folder: Path) -> dict[str, int]:
    """The times of the files of a folder, without SQLite's shared memory."""
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir() if not file.name.endswith("-shm")}


@pytest.mark.parametrize("read_only", [False, True])
def test_a_running_search_without_a_process_is_interrupted(
    tmp_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "done", CONFIG, "failed")
        for name in ("runs", "killed", "killed too"):
            write_search(ledger, name, CONFIG, "running")
        ledger.file_with_suffix("killed.lock").write_text("process 1 on some-host")  # left by a dead process
        with locked(ledger, "runs", "SEARCH"):
            before = times(tmp_path)
            if read_only:
                monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
            expected = {"done": "failed", "runs": "running", "killed": "interrupted", "killed too": "interrupted"}
            assert states(tmp_path) == expected
            assert raysearch.open(tmp_path).to_frame()["state"].to_dict() == expected
            assert raysearch.open(tmp_path).search("runs").record.state == "running"
            assert raysearch.open(tmp_path).search("killed too").record.state == "interrupted"
            if read_only:
                assert times(tmp_path) == before
        assert states(tmp_path)["runs"] == "interrupted"
        assert SEARCHES.find(ledger, "killed").state == "running", "reading changes no record"


def test_show_prints_how_many_masks_a_killed_search_has_evaluated(tmp_path: Path) -> None:
    choices = {"data": "file", "objective": "kl"}
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "killed", {**CONFIG, "choices": choices}, "running", fingerprints={"calibration": "cal"})
        for shard in range(2):
            ledger.record("cal", shard, {Mask.of(*layers): np.ones(1) for layers in ((), (1,), (2,))})
        ledger.record("other", 0, {Mask.of(3): np.ones(1)})
    assert raysearch.open(tmp_path).search("killed").evaluated() == 2, "without the dense model"
    output = CliRunner().invoke(app, ["show", "killed", "--store", str(tmp_path)]).output
    assert "Evaluated so far: 2 masks" in output


def test_a_search_that_ends_after_it_was_read_has_ended(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "it", CONFIG, "running")
        seen = SEARCHES.all(ledger)
        write_search(ledger, "it", CONFIG, "failed", failure="why")
        assert with_current_states(ledger, seen) == SEARCHES.all(ledger)


def test_the_remedy_names_the_ledger_of_the_search(sentences: Sentences) -> None:
    stopped = SearchRecord("it", {"store": "other", "ledger": None}, "interrupted", None, None, "now")
    with sentences.refused(UserError):
        _ = stopped.finished_result


def test_a_study_in_place_of_a_search_is_an_error_that_says_so(tmp_path: Path, sentences: Sentences) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "it", CONFIG, "running")
        STUDIES.write(ledger, StudyRecord("mine-1", CONFIG, (CellRecord("m", "c", "s", 1, 0, "it"),), {}, {}, "now"))
    with sentences.refused(UserError):
        raysearch.open(tmp_path).search("mine")


def test_cleaning_a_search_shows_which_studies_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for name in "it", "other":
            write_search(ledger, name, CONFIG, "finished")
            cells = (CellRecord("m", "c", "s", 1, 0, name),)
            STUDIES.write(ledger, StudyRecord(f"study-of-{name}", CONFIG, cells, {}, {}, "now"))
    clean(["it"], store_path=tmp_path)
    assert "whose reports lack them until they run again: study-of-it.\n" in capsys.readouterr().out
