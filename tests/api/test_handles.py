"""Handles on a store, its searches and its studies."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import raysearch
from raysearch.api.location import StoreLocation
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.searching.result import SearchResult
from raysearch.searching.search_record import write_search
from raysearch.studies.study_record import STUDIES, CellRecord, StudyRecord
from tests.cli.conftest import Run, World, cwd, run, world
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search

__all__ = ["cwd", "run", "world"]  # fixtures

CONFIG: dict[str, Any] = {"model": {"name": "tiny"}, "remove": 1, "choices": {}, "store": "mlruns"}


@pytest.fixture
def store(tmp_path: Path) -> raysearch.Store:
    """A store with a finished search, a killed search, and a study of both."""
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "greedy-m2-1", CONFIG, "finished", finished_result())
        write_search(ledger, "greedy-m2-2", CONFIG, "running")
        cells = tuple(CellRecord("m", "c", "greedy", 2, seed, f"greedy-m2-{seed}") for seed in (1, 2))
        STUDIES.write(ledger, StudyRecord("mine-1", CONFIG, cells, {}, {}, "now"))
    return raysearch.open(tmp_path)


def finished_result() -> SearchResult:
    return greedy_search(search_id="greedy-m2-1")


def test_a_store_lists_its_searches_and_studies(store: raysearch.Store) -> None:
    assert [search.search_id for search in store.searches()] == ["greedy-m2-2", "greedy-m2-1"]
    assert [study.study_id for study in store.studies()] == ["mine-1"]
    assert [record.search_id for record in store.records()] == ["greedy-m2-2", "greedy-m2-1"]
    assert store.cells_by_search()["greedy-m2-1"][0] == "mine-1"
    assert "greedy-m2-2" in store._repr_html_()


def test_a_name_finds_a_search_or_a_study(store: raysearch.Store, sentences: Sentences) -> None:
    assert store.search() == store.search("latest") == store.searches()[0]
    assert store.search("greedy-m2-1") in store.searches()
    assert store.study("mine") == store.studies()[0] == store.search_or_study("mine")
    with sentences.refused(UserError):
        store.search("greedy")


def test_a_finished_search_has_its_result(store: raysearch.Store) -> None:
    search = store.search("greedy-m2-1")
    result = finished_result()
    assert search.result == search.record.result
    assert search.layers == result.removed
    assert search.mask == result.mask
    assert str(search) == str(result)
    assert search._repr_html_() == result._repr_html_()


def test_an_unfinished_search_shows_its_state(store: raysearch.Store, sentences: Sentences) -> None:
    search = store.search("greedy-m2-2")
    assert str(search) == "greedy-m2-2: interrupted"
    assert search._repr_html_() == "<p>greedy-m2-2: interrupted</p>"
    assert search.assessed() == {}
    assert search.recoveries() == []
    with sentences.refused(UserError):
        _ = search.layers


def test_a_handle_keeps_no_file_open(store: raysearch.Store) -> None:
    _ = store.search("greedy-m2-1").result
    descriptors = Path("/proc/self/fd").iterdir()
    open_files = [os.readlink(descriptor) for descriptor in descriptors if descriptor.is_symlink()]
    assert not [file for file in open_files if "ledger.db" in file]


def test_a_handle_is_pickled_with_its_absolute_path(
    store: raysearch.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = raysearch.open(".")
    content = pickle.dumps([relative, relative.search("greedy-m2-1"), relative.study()])
    monkeypatch.chdir("/")
    unpickled_store, search, study = pickle.loads(content)
    assert unpickled_store == store
    assert search.result == store.search("greedy-m2-1").result
    assert study.record == store.study().record


def test_another_process_may_have_a_handle_on_the_same_store(store: raysearch.Store) -> None:
    code = "import raysearch, sys; print(raysearch.open(sys.argv[1]).search('greedy-m2-1').layers)"
    with store.location.opened_ledger():
        command = [sys.executable, "-c", code, str(store.path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(store.search("greedy-m2-1").layers)


def test_a_deleted_search_is_missing(store: raysearch.Store, sentences: Sentences) -> None:
    search = store.search("greedy-m2-1")
    assert store.clean("greedy-m2-1", yes=True).searches == ["greedy-m2-1"]
    with sentences.refused(UserError):
        _ = search.record


def test_a_store_that_is_not_there_is_refused_at_its_first_use(cwd: Path, sentences: Sentences) -> None:
    store = raysearch.open("elsewhere")
    with sentences.refused(UserError):
        store.searches()
    assert not [*cwd.iterdir()]


def test_a_handle_of_a_search_has_the_result_of_its_own_call(world: World, cwd: Path) -> None:
    search = raysearch.search(*world.search())
    repeated = raysearch.search(*world.search())
    assert repeated == search
    assert repeated.result.work.evaluations.computed == 0
    recorded = raysearch.open().search()
    assert recorded == search
    assert recorded.result.work.evaluations == search.result.work.evaluations, (
        "the ledger keeps the counts of the first call"
    )
    assert recorded.resume().result.work.evaluations.computed == 0
    assert recorded.command().startswith("raysearch search ")


def test_a_search_with_a_separate_ledger_is_found_by_its_handle(world: World, cwd: Path) -> None:
    search = raysearch.search(*world.search(), "ledger=apart/all.db", "store=folder")
    assert search.location == StoreLocation(Path("apart/all.db"))
    assert search.record.search_id == search.search_id
    exported = search.export("pruned")
    assert exported.n_layers == 5 - len(search.layers)
    assert raysearch.open("apart/all.db").search().resume().result.config["store"] == "folder"


@pytest.mark.usefixtures("blank_report")
def test_a_report_has_the_results_and_its_files(run: Run, world: World, cwd: Path) -> None:
    search = raysearch.search(*world.search())
    with closing(Ledger(cwd / "mlruns/ledger.db")) as ledger:
        cell = CellRecord("m", "c", "greedy", 2, 0, search.search_id)
        config = {**search.record.config, "study": {"name": "mine"}}
        STUDIES.write(ledger, StudyRecord("mine-1", config, (cell,), {}, {}, "now"))
    study = raysearch.open().study()
    assert study.files == ()
    assert [cell.search_id for cell in study.result.cells] == [search.search_id]
    report = study.report()
    assert report.result == study.result
    assert report.page == Path("mlruns/reports/mine-1/report.html")
    assert all(file.is_file() for file in report.files)
    assert study.report("elsewhere").page == Path("elsewhere/report.html")
