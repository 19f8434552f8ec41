"""Records of a class in a table of the ledger: written, found by name, and read one by one."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from raysearch.errors import UserError
from raysearch.searching.search_record import SEARCHES, SearchRecord
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search

RESULT = replace(greedy_search(4, 1), mlflow_run_id="f00")


def record(search_id, remove, state="running", result=None, updated="2026-01-01"):
    """Return the record of a search."""
    run_id = result and result.mlflow_run_id
    return SearchRecord(search_id, {"remove": remove}, state, None, result, updated, mlflow_run_id=run_id)


OLD = record("greedy-m5-aa", 1)
NEW = record("greedy-m5-ab", 2, "finished", RESULT, "2026-01-02")


@pytest.fixture
def filled(ledger):
    for each in (OLD, NEW):
        SEARCHES.write(ledger, each)
    return ledger


def test_a_record_comes_back_as_it_was_written(filled):
    assert SEARCHES.all(filled) == [NEW, OLD], "the newest first"
    assert SEARCHES.by_ids(filled, ["greedy-m5-aa", "nobody"]) == {"greedy-m5-aa": OLD}
    assert SEARCHES.get(filled, "greedy-m5-ab") == NEW
    assert SEARCHES.get(filled, "nobody") is None


def test_a_record_is_found_by_name_prefix_mlflow_id_and_latest(filled, sentences: Sentences):
    for name, expected in {"greedy-m5-aa": OLD, "f00": NEW, "greedy-m5-ab": NEW, "latest": NEW}.items():
        assert SEARCHES.find(filled, name) == expected
    assert SEARCHES.names(filled, "greedy") == ["greedy-m5-ab", "greedy-m5-aa"]
    SEARCHES.write(filled, replace(OLD, updated="2026-01-03"))
    assert SEARCHES.find(filled, "latest").search_id == "greedy-m5-aa"
    for name in ["greedy", "gredy-m5-aa", ""]:
        with sentences.refused(UserError, case=repr(name)):
            SEARCHES.find(filled, name)


def test_the_error_of_an_empty_table_names_the_command_to_start(ledger, sentences: Sentences):
    with sentences.refused(UserError):
        SEARCHES.find(ledger, "latest")


def test_a_change_receives_the_old_record(filled):
    SEARCHES.change(filled, OLD.search_id, lambda before: replace(before or NEW, state="failed", failure="why"))
    assert SEARCHES.get(filled, OLD.search_id) == replace(OLD, state="failed", failure="why")
    filled.connection.execute("UPDATE searches SET config = '{}'")
    # A damaged record is passed as None.
    SEARCHES.change(filled, OLD.search_id, lambda before: OLD if before is None else NEW)
    assert SEARCHES.get(filled, OLD.search_id) == OLD


def test_finding_a_record_reads_no_other_record(filled, sentences: Sentences):
    filled.connection.execute("UPDATE searches SET config = '{}' WHERE search_id = 'greedy-m5-ab'")
    assert SEARCHES.find(filled, "greedy-m5-aa") == OLD
    with sentences.refused(UserError):
        SEARCHES.find(filled, "latest")


def test_records_are_readable_with_plain_sqlite(filled):
    query = "SELECT state, config ->> '$.remove', result ->> '$.evaluations.requested' FROM searches"
    with closing(sqlite3.connect(filled.path)) as shell:
        row = shell.execute(f"{query} WHERE mlflow_run_id = 'f00'").fetchone()
    assert row == ("finished", 2, RESULT.work.evaluations.requested)
