import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysearch.configuration.build import recorded_search
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger import ledger as ledger_module
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.checking import check_ledger
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked, remove_if_stale
from raysearch.ledger.schema import SCHEMA_VERSION, UPGRADES
from raysearch.searching.search_record import SEARCHES, record_mlflow_run, write_search
from raysearch.studies.study_record import STUDIES, StudyRecord
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search

A = Mask.of(1)
B = Mask.of(1, 2)
RESULT = greedy_search(4, 1)


def test_evaluations_are_read_bit_for_bit_as_they_were_recorded(ledger):
    losses = np.array([0.1, 1e-300, 7.0])
    ledger.record("cal", 3, {A: losses, B: losses * 3})
    with closing(Ledger(ledger.path)) as reopened:
        evaluations = reopened.evaluations("cal", [A, B, Mask()])
    assert set(evaluations) == {A, B}
    assert evaluations[A][3].tobytes() == losses.tobytes()
    assert evaluations[B][3].tobytes() == (losses * 3).tobytes()


def test_calibrations_do_not_share_evaluations(ledger):
    ledger.record("one", 0, {A: np.ones(1)})
    assert ledger.evaluations("other", [A]) == {}


def test_the_first_recorded_value_stays(ledger):
    ledger.record("cal", 0, {A: np.ones(1)})
    ledger.record("cal", 0, {A: np.zeros(1)})
    assert ledger.evaluations("cal", [A])[A][0] == 1


def test_a_failed_transaction_leaves_nothing(ledger):
    with pytest.raises(RuntimeError), ledger.transaction() as connection:
        connection.execute("INSERT INTO evaluations VALUES ('cal', '{1}', 0, x'00', 0)")
        raise RuntimeError
    assert ledger.evaluations("cal", [A]) == {}


def test_numbers_that_a_disk_has_changed_are_refused(ledger, sentences: Sentences):
    ledger.record("cal", 0, {A: np.ones(3)})
    ledger.connection.execute("UPDATE evaluations SET samples = CAST(x'00' || substr(samples, 2) AS BLOB)")
    assert ledger.evaluations("cal", [A])[A][0].tolist() == [1, 1, 1], "the value has not changed"
    ledger.connection.execute("UPDATE evaluations SET samples = CAST(x'01' || substr(samples, 2) AS BLOB)")
    with sentences.refused(UserError):
        ledger.evaluations("cal", [A])
    ledger.record("cal", 1, {A: np.ones(3)})
    ledger.connection.execute("UPDATE evaluations SET subject = ? WHERE shard = 1", (str(B),))
    with sentences.refused(UserError):  # a row under the key of another mask is refused, too
        ledger.evaluations("cal", [B])


@pytest.mark.parametrize("changed", ["'{{}}'", "x'7b7d'", "x''", "{} || ' '", "CAST(x'ff' AS TEXT)"])
def test_records_that_somebody_has_edited_are_refused(ledger, changed, sentences: Sentences):
    write_search(ledger, "a", {"x": 1}, "running", greedy_search())
    STUDIES.write(ledger, StudyRecord("a", {"x": 1}, (), {}, {}, "now"))
    write_assessment(ledger, "a", "b", {A: {"x": 1}})
    assert SEARCHES.find(ledger, "a").config == STUDIES.find(ledger, "a").config == {"x": 1}
    assert read_assessments(ledger, "a", "b", [A]) == {A: {"x": 1}}
    for table, column, read in [
        ("studies", "config", lambda: STUDIES.find(ledger, "a")),
        ("searches", "config", lambda: SEARCHES.find(ledger, "a")),
        ("assessments", "result", lambda: read_assessments(ledger, "a", "b", [A])),
    ]:
        ledger.connection.execute(f"UPDATE {table} SET {column} = {changed.format(column)}")
        with sentences.refused(UserError):
            read()


def test_commits_are_synced_to_disk(ledger):
    assert ledger.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger.connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_files_that_are_not_ledgers_are_refused(tmp_path, sentences: Sentences):
    (tmp_path / "text.db").write_text("not a database, but long enough to look at: " * 10)
    (tmp_path / "folder.db").mkdir()
    for name, version in (("future.db", 99), ("old.db", 4)):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
    sentences.refused_each(
        lambda name: Ledger(tmp_path / name),
        [
            "text.db",
            "folder.db",
            "future.db",
            "old.db",
        ],
    )


def test_a_noted_mlflow_run_stays_and_does_not_change_the_time_of_the_record(ledger):
    write_search(ledger, "a", {"tracking": {"uri": None}, "x": 1}, "finished", RESULT)
    write_search(ledger, "b", {}, "finished", RESULT)
    record_mlflow_run(ledger, "a", "f00", receipt="whole")
    assert SEARCHES.find(ledger, "a").result == replace(RESULT, mlflow_run_id="f00", mlflow_receipt="whole")
    record_mlflow_run(ledger, "a", "f00", tracking={"uri": "http://host"})
    assert SEARCHES.find(ledger, "f00").config == {"tracking": {"uri": "http://host"}, "x": 1}
    record_mlflow_run(ledger, "a", None)
    assert SEARCHES.find(ledger, "a").result == replace(RESULT, mlflow_run_id="f00")
    assert SEARCHES.find(ledger, "latest").search_id == "b"
    write_search(ledger, "a", {}, "finished", replace(RESULT, loss=2.0))
    assert SEARCHES.find(ledger, "latest").result == replace(RESULT, loss=2.0, mlflow_run_id="f00")


def test_every_name_is_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(Ledger(Path(":memory:"))):
        assert (tmp_path / ":memory:").is_file()


def test_a_lock_names_its_owner_and_its_file_is_removed_at_the_end(ledger, sentences: Sentences):
    lock = ledger.path.with_name("ledger.db.a.lock")
    with locked(ledger, "a", "SEARCH"):
        assert f"process {os.getpid()} on " in lock.read_text()
        with sentences.refused(UserError):
            locked(ledger, "a", "SEARCH").__enter__()
        assert not remove_if_stale(lock)
    assert not lock.exists()
    assert remove_if_stale(lock)


def test_a_ledger_of_an_older_format_is_upgraded_completely_or_not_at_all(tmp_path, monkeypatch, sentences: Sentences):
    path = tmp_path / "ledger.db"
    with closing(Ledger(path)) as old:
        old.record("cal", 0, {A: np.ones(2)})
    monkeypatch.setattr(ledger_module, "SCHEMA_VERSION", 8)
    monkeypatch.setattr(ledger_module, "UPGRADES", {7: "CREATE TABLE new (x); INSERT INTO new VALUES (1); nonsense;"})
    with sentences.refused(UserError):
        Ledger(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)
        assert not connection.execute("SELECT name FROM sqlite_master WHERE name = 'new'").fetchall()
    monkeypatch.setattr(ledger_module, "UPGRADES", {7: "CREATE TABLE new (x); INSERT INTO new VALUES (1);"})
    for _ in range(2):
        with closing(Ledger(path)) as new:
            assert new.connection.execute("SELECT x FROM new").fetchall() == [(1,)]
            assert new.connection.execute("PRAGMA user_version").fetchone() == (8,)
            assert new.evaluations("cal", [A])[A][0].tolist() == [1.0, 1.0]
    monkeypatch.undo()
    with sentences.refused(UserError):
        Ledger(path)


FORMATS = sorted(Path(__file__).with_name("formats").glob("*.sql"))


@pytest.mark.parametrize("dump", FORMATS, ids=lambda dump: dump.stem)
def test_a_ledger_of_each_format_is_read(dump, tmp_path):
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
    with closing(Ledger(path)) as ledger:
        assert check_ledger(ledger, [SEARCHES, STUDIES]).damage == []
        records = SEARCHES.all(ledger)
        assert {
            record.search_id: (record.finished_result.removed, round(record.finished_result.loss, 4))
            for record in records
        } == {
            "greedy-m1-b1ba258b": ((0,), 15.6825),
            "greedy-m2-5435624b": ((0, 1), 15.7789),
        }
        for record in records:  # the specification is the one that is resumed
            spec = recorded_search(record.config, goes_on=True)
            assert spec.search_id(record.fingerprints["calibration"]) == record.search_id
        study = STUDIES.find(ledger, "latest")
        assert [cell.search_id for cell in study.cells] == ["greedy-m1-b1ba258b"]
        assert [text.text for text in ledger.texts("writing", A)] == ["four"]
        assert read_assessments(ledger, "model", "assessment", [A]) == {A: {"acc": {"value": 0.25}}}


def test_there_is_a_dump_of_each_format():
    versions = [*UPGRADES, SCHEMA_VERSION]
    assert {dump.stem for dump in FORMATS} == {str(version) for version in versions}


@pytest.mark.parametrize("log", [True, False])
def test_a_ledger_that_cannot_be_written_is_read(tmp_path, log, monkeypatch, sentences: Sentences):
    path = tmp_path / "ledger.db"
    with closing(Ledger(path)) as ledger:
        ledger.record("cal", 0, {A: np.ones(2)})
        if log:  # as a killed process leaves it: the rows are still in the log
            shutil.copytree(tmp_path, tmp_path / "copy")
    path = tmp_path / "copy" / "ledger.db" if log else path
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with closing(Ledger(path)) as ledger:
        assert ledger.evaluations("cal", [A])[A][0].tolist() == [1.0, 1.0]
        with sentences.refused(UserError):
            ledger.record("cal", 1, {A: np.ones(2)})
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    assert {name: content for name, content in after.items() if not name.endswith("-shm")} == {
        name: content for name, content in before.items() if not name.endswith("-shm")
    }
