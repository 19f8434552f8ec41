"""The assessed numbers of a mask are added to those recorded before."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from raysearch.assessment.tracked_assessments import record_numbers, recorded_assessments
from raysearch.ledger.ledger import Ledger
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SearchRecord
from tests.tracking.simulated import greedy_search


def test_commands_that_assess_a_mask_at_once_lose_none_of_its_numbers(tmp_path: Path) -> None:
    search = SearchRecord("greedy-m1-00", {}, "finished", None, greedy_search(4, 1), "now")

    def assess(name: str) -> None:
        with closing(Ledger(tmp_path / "ledger.db")) as ledger:
            for number in range(20):
                record_numbers(ledger, [(search, {f"{name}.{number}": float(number)})], Observer())

    with ThreadPoolExecutor(3) as commands:
        list(commands.map(assess, "abc"))
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        numbers = recorded_assessments(ledger, search)
    assert numbers == {f"{name}.{number}": float(number) for name in "abc" for number in range(20)}
