"""Checking, merging and cleaning ledgers."""

import threading
import time
import zlib
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.generation.score import AnswerScore, ScoredText
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.checking import check_ledger
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked
from raysearch.ledger.merging import merge_ledgers
from raysearch.ledger.table import RecordTable
from raysearch.searching.frames import export_frames
from raysearch.searching.search_record import SEARCHES, clean, write_search
from raysearch.studies.study_record import STUDIES, StudyRecord
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search

A = Mask.of(1)
B = Mask.of(1, 2)
RECORDS: list[RecordTable[Any]] = [SEARCHES, STUDIES]
CONFIG = {"model": {"name": "m"}, "remove": 1}


def test_a_ledger_without_damage_is_reported_as_whole(ledger):
    ledger.record("cal", 0, {A: np.ones(1), B: np.ones(1)})
    write_search(ledger, "a", CONFIG, "running")
    checked = check_ledger(ledger, RECORDS)
    assert checked.is_whole
    assert [checked.rows[name] for name in ("evaluations", "searches", "texts")] == [2, 1, 0]


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ("UPDATE evaluations SET samples = x'0000000000000000' WHERE shard = 1", "evaluations: {1}, shard 1 of"),
        ("UPDATE evaluations SET subject = '{7}' WHERE shard = 1", "evaluations: {7}, shard 1 of calibration cal"),
        ("UPDATE assessments SET result = '{}'", "assessments: {1} of model model, assessment 0a1"),
        ("UPDATE searches SET state = 'finished'", "searches: a"),
        ("UPDATE searches SET failure = 'none'", "searches: a"),
        ("UPDATE searches SET updated = 'now'", "searches: a"),
        ("UPDATE studies SET facts = '[]'", "studies: s"),
    ],
)
def test_damaged_rows_are_named(ledger, change, damage):
    for shard in range(3):
        ledger.record("cal", shard, {A: np.ones(1)})
    write_assessment(ledger, "model", "0a1", {A: {"x": 1}})
    write_search(ledger, "a", CONFIG, "running")
    STUDIES.write(ledger, StudyRecord("s", {}, (), {}, {}, "now"))
    ledger.connection.execute(change)
    (line,) = check_ledger(ledger, RECORDS).damage
    assert line.startswith(damage)


def test_rows_in_a_wrong_order_are_named(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(Ledger(path)) as ledger:
        for shard in range(9):
            ledger.record("calibration", shard, {A: np.ones(1), B: np.ones(1)})
    content = path.read_bytes()
    position = content.rindex(b"calibration{1}")  # the key of a row that is not the last
    path.write_bytes(content[:position] + b"\x7f" + content[position + 1 :])
    with closing(Ledger(path)) as damaged:
        assert "row not in PRIMARY KEY order" in check_ledger(damaged, RECORDS).damage[0]


def test_ledgers_are_merged_bit_for_bit(ledger, other_ledger):
    ledger.record("cal", 0, {A: np.array([0.1, 2.0])})
    other_ledger.record("cal", 0, {A: np.array([0.1, 2.0]), B: np.array([1e-300, 3.0])})
    write_assessment(other_ledger, "model", "0a1", {A: {"x": 1}})
    for each, seconds in ((ledger, 1.0), (other_ledger, 2.0)):
        write_assessment(each, "model", "0b2", {A: {"measured_on": "a machine", "seconds": seconds}})
    write_search(ledger, "both", CONFIG, "interrupted")
    write_search(other_ledger, "both", CONFIG, "finished", greedy_search(4, 1))
    write_search(other_ledger, "theirs", CONFIG, "running")
    study = StudyRecord("s", {}, (), {"machine": "theirs"}, {}, "2026-01-01")
    STUDIES.write(ledger, replace(study, facts={"machine": "ours"}, updated="2025-01-01"))
    STUDIES.write(other_ledger, study)
    before = other_ledger.path.read_bytes()
    merged = merge_ledgers(ledger, [other_ledger.path], RECORDS)
    assert merged.rows == {"evaluations": 1, "texts": 0, "assessments": 1, "searches": 2, "studies": 1}
    assert ledger.evaluations("cal", [B])[B][0].tobytes() == np.array([1e-300, 3.0]).tobytes()
    assert read_assessments(ledger, "model", "0a1", [A]) == {A: {"x": 1}}
    assert read_assessments(ledger, "model", "0b2", [A])[A]["seconds"] == 1.0, (
        "times differ, and those of the ledger stay"
    )
    assert SEARCHES.find(ledger, "both").finished_result.removed
    assert SEARCHES.find(ledger, "theirs").state == "running"
    assert STUDIES.find(ledger, "s").facts == {"machine": "theirs"}
    assert check_ledger(ledger, RECORDS).is_whole
    assert other_ledger.path.read_bytes() == before
    assert not any(merge_ledgers(ledger, [other_ledger.path], RECORDS).rows.values()), "nothing twice"


def test_texts_that_another_zlib_has_compressed_are_equal(ledger, other_ledger, monkeypatch, sentences: Sentences):
    def record(ledger_of_text, text):
        ledger_of_text.record("cal", 0, {A: np.zeros(1)}, {A: [ScoredText(text, 1, False, AnswerScore(0.0))]})

    record(ledger, "four " * 99)
    with monkeypatch.context() as patch:
        compress = zlib.compress
        patch.setattr("raysearch.ledger.ledger.zlib.compress", lambda text, level: compress(text, level=1))
        record(other_ledger, "four " * 99)
    query = "SELECT texts FROM texts"
    assert ledger.connection.execute(query).fetchall() != other_ledger.connection.execute(query).fetchall()
    assert not any(merge_ledgers(ledger, [other_ledger.path], RECORDS).rows.values())
    with other_ledger.transaction() as connection:
        connection.execute("DELETE FROM texts")
    record(other_ledger, "five")
    with sentences.refused(UserError):
        merge_ledgers(ledger, [other_ledger.path], RECORDS)


def test_nothing_of_a_ledger_with_different_numbers_is_merged(ledger, other_ledger, tmp_path, sentences: Sentences):
    ledger.record("cal", 0, {B: np.array([1.0])})
    other_ledger.record("cal", 0, {A: np.array([5.0]), B: np.array([np.nextafter(1.0, 2.0)])})
    with sentences.refused(UserError):
        merge_ledgers(ledger, [other_ledger.path], RECORDS)
    assert not ledger.evaluations("cal", [A])
    write_assessment(ledger, "model", "0a1", {A: {"x": 1}})
    with closing(Ledger(tmp_path / "third.db")) as third:
        write_assessment(third, "model", "0a1", {A: {"x": 2}})
    with sentences.refused(UserError):
        merge_ledgers(ledger, [third.path], RECORDS)
    with sentences.refused(UserError):
        merge_ledgers(ledger, [tmp_path / "none.db"], RECORDS)
    other_ledger.connection.execute("UPDATE evaluations SET shard = 3 WHERE subject = '{1}'")
    with sentences.refused(UserError):
        merge_ledgers(ledger, [other_ledger.path], RECORDS)


def test_growing_assessments_of_two_ledgers_are_joined(ledger, other_ledger):
    assessments = {"recorded numbers": {"x": 1.0, "speed": 5.0}, "recoveries": [{"recovery_id": "a", "seconds": 1.0}]}
    other_recoveries = [{"recovery_id": "a"}, {"recovery_id": "b"}]
    other_assessments = {"recorded numbers": {"y": 2.0, "speed": 6.0}, "recoveries": other_recoveries}
    for each, results in ((ledger, assessments), (other_ledger, other_assessments)):
        for name, value in results.items():
            write_assessment(each, "model", name, {A: value}, Any)
    assert merge_ledgers(ledger, [other_ledger.path], RECORDS).rows["assessments"] == 2
    assert read_assessments(ledger, "model", "recorded numbers", [A])[A] == {"x": 1.0, "y": 2.0, "speed": 5.0}
    (recoveries,) = read_assessments(ledger, "model", "recoveries", [A], list[dict[str, Any]]).values()
    assert recoveries == [{"recovery_id": "a", "seconds": 1.0}, {"recovery_id": "b"}]
    assert check_ledger(ledger, RECORDS).is_whole
    assert not any(merge_ledgers(ledger, [other_ledger.path], RECORDS).rows.values()), "nothing twice"


def test_a_ledger_that_cannot_be_written_is_merged(ledger, tmp_path, monkeypatch):
    (folder := tmp_path / "a store #1").mkdir()
    with closing(Ledger(folder / "ledger.db")) as read_only_ledger:
        read_only_ledger.record("cal", 0, {A: np.ones(1)})
    monkeypatch.setattr("os.access", lambda file, *_: "store" not in str(file))
    statements: list[str] = []
    ledger.connection.set_trace_callback(statements.append)
    assert merge_ledgers(ledger, [folder / "ledger.db"], RECORDS).rows["evaluations"] == 1
    assert any("immutable=1" in statement for statement in statements), "SQLite writes no files next to it"


def test_searches_that_found_other_masks_are_not_merged(ledger, other_ledger, sentences: Sentences):
    result = greedy_search(4, 1)
    write_search(ledger, "a", CONFIG, "finished", result)
    write_search(other_ledger, "a", CONFIG, "finished", replace(result, loss=result.loss + 1))
    with sentences.refused(UserError):
        merge_ledgers(ledger, [other_ledger.path], RECORDS)


def test_searches_are_deleted_with_the_evaluations_that_no_other_search_has(ledger):
    for name, calibration in (("a", "one"), ("b", "two"), ("c", "two")):
        write_search(ledger, name, CONFIG, "running", fingerprints={"calibration": calibration})
        for shard in range(50):
            ledger.record(calibration, shard, {A: np.zeros(1000)})
    ledger.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that all rows are in the file
    preview = clean(ledger, ["a", "b"], really=False)
    assert (preview.searches, preview.rows, preview.done) == (["a", "b"], {"evaluations": 50, "texts": 0}, False)
    assert len(SEARCHES.all(ledger)) == 3
    done = clean(ledger, ["a", "b"], really=True)
    assert done.rows == preview.rows
    assert ledger.path.stat().st_size == done.size_bytes[1] < 0.8 * done.size_bytes[0]
    assert [record.search_id for record in SEARCHES.all(ledger)] == ["c"]
    assert not ledger.evaluations("one", [A])
    assert len(ledger.evaluations("two", [A])[A]) == 50
    assert check_ledger(ledger, RECORDS).is_whole


def test_a_weighted_search_has_the_evaluations_of_its_parts(ledger):
    weighted = {"calibration": "joint", "parts": "one two"}
    for name, fingerprints in (("alone", {"calibration": "one"}), ("weighted", weighted)):
        write_search(ledger, name, CONFIG, "running", fingerprints=fingerprints)
    for calibration in ("one", "two"):
        ledger.record(calibration, 0, {A: np.zeros(4)})
    assert clean(ledger, ["alone"], really=True).rows["evaluations"] == 0
    assert ledger.evaluations("one", [A])
    assert clean(ledger, ["weighted"], really=True).rows["evaluations"] == 2


def test_a_running_search_is_not_deleted(ledger, sentences: Sentences):
    write_search(ledger, "a", CONFIG, "running", fingerprints={"calibration": "one"})
    with locked(ledger, "a", "SEARCH"), sentences.refused(UserError):
        clean(ledger, ["a"], really=False)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_tables_hold_every_number(ledger, tmp_path, form, sentences: Sentences):
    import pandas as pd

    losses = np.array([0.1, 1 / 3])
    ledger.record("cal", 0, {A: losses})
    write_search(ledger, "a", {"model": {"name": "=m"}, "remove": 1}, "finished", greedy_search(4, 1))
    write_search(ledger, "b", CONFIG, "running")
    files = export_frames(ledger, tmp_path / "out", form)
    assert {file.name: rows for file, rows in files.items()} == {
        f"searches.{form}": 2, f"trials.{form}": 5, f"evaluations.{form}": 2,
    }  # fmt: skip
    read = {
        "csv": pd.read_csv,
        "parquet": pd.read_parquet,
        "jsonl": partial(pd.read_json, lines=True, precise_float=True),
    }[form]
    evaluations = read(tmp_path / "out" / f"evaluations.{form}")
    searches = read(tmp_path / "out" / f"searches.{form}")
    assert evaluations["loss"].tolist() == losses.tolist(), "to the last bit"
    assert list(searches["search_id"]) == ["b", "a"]
    assert searches["loss"].notna().tolist() == [False, True]
    assert searches["model"][1] == ("'=m" if form == "csv" else "=m"), "a spreadsheet computes nothing"
    with sentences.refused(UserError):
        export_frames(ledger, tmp_path / "out", "excel")


def test_a_search_that_starts_while_another_is_deleted_keeps_its_evaluations(ledger, monkeypatch):
    write_search(ledger, "old", CONFIG, "finished", fingerprints={"calibration": "cal"})
    ledger.record("cal", 0, {A: np.ones(2)})
    read = SEARCHES.all
    began = threading.Event()

    def begin():
        with closing(Ledger(ledger.path)) as elsewhere, locked(elsewhere, "new", "SEARCH"):
            began.set()
            write_search(elsewhere, "new", CONFIG, "running", fingerprints={"calibration": "cal"})
            elsewhere.record("cal", 0, {B: np.ones(2)})

    thread = threading.Thread(target=begin)

    def read_slowly(self, opened):
        records = read(opened)
        thread.start()
        assert began.wait(10)
        time.sleep(0.3)  # the thread would write in this time if no lock kept it from that
        return records

    with monkeypatch.context() as patch:
        patch.setattr(RecordTable, "all", read_slowly)
        clean(ledger, ["old"], really=True)
    thread.join()
    assert ledger.evaluations("cal", [B])[B]
    assert [record.search_id for record in SEARCHES.all(ledger)] == ["new"]


def test_rows_to_delete_are_counted_in_a_read_only_ledger(ledger, sentences: Sentences):
    write_search(ledger, "old", CONFIG, "finished", fingerprints={"calibration": "cal"})
    ledger.record("cal", 0, {A: np.ones(2)})
    ledger.is_read_only = True
    assert clean(ledger, ["old"], really=False).rows == {"evaluations": 1, "texts": 0}
    ledger.connection.execute("DROP TABLE evaluations")
    with sentences.refused(UserError):
        clean(ledger, ["old"], really=False)
