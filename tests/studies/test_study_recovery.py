"""The recoveries in a study's result, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.recovery.recovery_record import RecoveryRecord, Training, write_recovery
from raysearch.searching.search_record import write_search
from raysearch.studies.collect import collect
from raysearch.studies.study_record import CellRecord, StudyRecord
from raysearch.studies.study_recovery import with_distinct_ways
from tests.tracking.simulated import greedy_search

CONFIG: dict[str, Any] = {
    "model": {"name": "tiny", "path": "tiny"},
    "remove": 3,
    "searcher": {},
    "study": {"name": "mine"},
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as opened:
        yield opened


def recovery(
    name: str, search_id: str, mask: Mask, settings: Mapping[str, Any], way: str = "distilled"
) -> RecoveryRecord:
    training = Training((), 2, 2, 200, 64, 9.0, 4)
    return RecoveryRecord(name, search_id, mask, way, 20, {}, training, {}, (), settings=settings)


def test_a_study_has_the_recoveries_of_its_own_samples_and_their_controls(ledger: Ledger) -> None:
    mask = greedy_search().mask
    models = {"model": "m"}
    for name in ("mine", "other"):
        fingerprints = {**models, "calibration": f"samples of {name}"}
        result = replace(greedy_search(search_id=name), fingerprints=fingerprints)
        write_search(ledger, name, CONFIG, "finished", result, fingerprints=fingerprints)
    studies = {
        name: StudyRecord(name, CONFIG, (CellRecord("tiny", "c", "greedy", 3, 0, name),), {}, {}, "")
        for name in ("mine", "other")
    }

    def recovered(study: str) -> list[str]:
        recoveries = collect(studies[study], ledger, lambda run_id: None).recovered
        return [recovery.record.recovery_id for recovery in recoveries]

    for record in (
        recovery("dense of other", "other", Mask(), {"recovery.seed": 0}),
        recovery("other's", "other", mask, {"recovery.seed": 0}),
        recovery("dense of mine", "mine", Mask(), {}, way=""),
    ):
        write_recovery(ledger, "m", record)
    assert recovered("mine") == [], "without a pruned model the dense model is no control"
    assert recovered("other") == ["dense of other", "other's"]
    write_recovery(ledger, "m", recovery("mine's", "mine", mask, {}, way=""))
    assert recovered("mine") == ["dense of mine", "mine's"]


def test_several_masks_of_one_searcher_are_named_in_its_recoveries(ledger: Ledger) -> None:
    searches = {name: greedy_search(search_id=name, seed=seed) for seed, name in enumerate(("a", "b"))}
    for name, result in searches.items():
        fingerprints = {"model": "m", "calibration": name}
        write_search(ledger, name, CONFIG, "finished", replace(result, fingerprints=fingerprints), None, fingerprints)
        write_recovery(ledger, "m", recovery(name, name, result.mask, {}))
    for cells in ("a",), ("a", "b"):
        records = tuple(CellRecord("tiny", "c", "greedy", 3, 0, name, draw=name) for name in cells)
        recoveries = collect(StudyRecord("mine", CONFIG, records, {}, {}, ""), ledger, lambda run_id: None).recovered
        masks = [f" {searches[name].mask}" if len(cells) > 1 else "" for name in cells]
        assert sorted(recovery.searchers for recovery in recoveries) == sorted(f"greedy{mask}" for mask in masks)


def test_recoveries_with_the_same_method_are_named_by_their_differences() -> None:
    def ways(*all_settings: dict[str, Any]) -> list[str]:
        records = [recovery(f"r{number}", "", Mask(), settings) for number, settings in enumerate(all_settings)]
        return [record.way for record in with_distinct_ways(records)]

    alpaca, sotu = ({"choices.data": data, "data.path": data, "recovery.seed": 0} for data in ("alpaca", "sotu"))
    assert ways(alpaca) == ["distilled"]
    assert ways(alpaca, sotu) == ["distilled, data=alpaca", "distilled, data=sotu"]
    assert ways(sotu, {**sotu, "recovery.seed": 1}) == ["distilled, recovery.seed=0", "distilled, recovery.seed=1"]
    assert ways({}, sotu) == ["distilled r0", "distilled r1"], "the settings of older recoveries are unknown"
