"""The searches that a ledger knows: what was asked for, how far it got, what it found; and how they are forgotten.

They stand in the ledger's own file, so that ``resume``, ``show`` and ``export`` need no tracker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from raysearch.core.paths import option_of
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_held
from raysearch.ledger.table import Table, now
from raysearch.searching.result import SearchResult
from raysearch.searching.trial import Trial

State = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class SearchRecord:
    """A search on record.

    Args:
        state: ``stopped`` by its budget. The ledger has ``running`` also after a kill, as a dead process cannot write
            its own end; `as_they_stand` tells.
        failure: Why, if it failed.
        updated: When it last changed, ISO 8601, UTC.
        fingerprints: Of the model, the text and the whole calibration; empty before they were known.
        mlflow_run_id: MLflow's id of it, if it was recorded there.
    """

    search_id: str
    config: Mapping[str, Any]
    state: State
    failure: str | None
    result: SearchResult | None
    updated: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    mlflow_run_id: str | None = None

    @property
    def found(self) -> SearchResult:
        """The result.

        Raises:
            UserError: It has not finished.
        """
        if self.result is None:
            resume = f"first: raysearch resume {self.search_id}{option_of(self.config)}"
            remedy = "wait for its end" if self.state == "running" else resume
            raise UserError(f"SEARCH={self.search_id} is {self.state}, so nothing is found yet; {remedy}")
        return self.result

    @property
    def identifying(self) -> dict[str, str]:
        """The fingerprints that recoveries are named by: without the parts', which the calibration's stands for."""
        return {subject: digest for subject, digest in self.fingerprints.items() if subject != "parts"}

    def best_of_size(self, remove: int | None) -> Trial:
        """Return the best mask of so many layers; None for the mask that the search found, 0 for the dense model.

        Raises:
            UserError: It has not finished, or has no such mask.
        """
        if remove == 0:
            return self.found.trials[0]
        best = self.found.best_by_size
        size = len(self.found.removed) if remove is None else remove
        if size not in best:
            raise UserError(
                f"--remove={remove} is not a number of layers that {self.search_id} has a mask of; "
                f"choose one of: {', '.join(map(str, best))}"
            )
        return best[size]

    def check_weights(self, model_fingerprint: str) -> None:
        """Refuse a model whose files have changed since the search was made on it."""
        if self.fingerprints.get("model", model_fingerprint) != model_fingerprint:
            raise UserError(
                f"SEARCH={self.search_id} is of another model: its files have changed since; put back the old ones, "
                "or start anew with raysearch search"
            )


def _merged(ours: SearchRecord, theirs: SearchRecord) -> SearchRecord:
    """Return the record of a search that two ledgers have: the one that got further, then the newer."""
    one, other = ours.result, theirs.result
    if one and one.complete and other and other.complete and (one.removed, one.loss) != (other.removed, other.loss):
        raise UserError(
            f"SEARCH={ours.search_id} found {one.mask} in one ledger and {other.mask} in the other; the two were "
            "not computed alike, so keep them apart"
        )

    def progress(record: SearchRecord) -> tuple[bool, bool, str]:
        return bool(record.result), bool(record.result and record.result.complete), record.updated

    return max(ours, theirs, key=progress)


#: All searches of a ledger.
SEARCHES = Table(SearchRecord, "searches", "search", _merged)


def as_they_stand(ledger: Ledger, records: Sequence[SearchRecord]) -> list[SearchRecord]:
    """Return records with the truth of those that nobody runs any more: they are interrupted. Nothing is written."""
    ended = [one.search_id for one in records if one.state == "running" and not is_held(ledger, one.search_id)]
    again = SEARCHES.some(ledger, ended)  # a search writes how it ended before it lets go of its lock
    true = {name: replace(one, state="interrupted") if one.state == "running" else one for name, one in again.items()}
    return [true.get(one.search_id, one) for one in records]


def find_search(ledger: Ledger, name: str) -> SearchRecord:
    """Return the one search that a name fits, as it stands; see `Table.find`."""
    (record,) = as_they_stand(ledger, [SEARCHES.find(ledger, name)])
    return record


def count_evaluated(ledger: Ledger, record: SearchRecord) -> int:
    """Return how many masks the ledger has evaluations of, on a search's own samples; other searches may share them."""
    query = "subject LIKE '{_%}' AND calibration IN (SELECT value FROM json_each(?))"
    of_it = (json.dumps(_calibrations(record)),)
    ((masks,),) = ledger.read(f"SELECT count(DISTINCT subject) FROM evaluations WHERE {query}", of_it)
    return int(masks)


def write_search(
    ledger: Ledger,
    search_id: str,
    config: Mapping[str, Any],
    state: State,
    result: SearchResult | None = None,
    failure: str | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> None:
    """Record where a search stands; result, fingerprints and MLflow's id stay as they are until there are new ones.

    Where all of a result came from the ledger, what the search took is what stands on record.
    """

    def changed(before: SearchRecord | None) -> SearchRecord:
        known = before or SearchRecord(search_id, config, state, None, None, "")
        run_id = (result and result.mlflow_run_id) or known.mlflow_run_id
        new = result and replace(result.with_work_of(known.result), mlflow_run_id=run_id)
        prints = known.fingerprints if fingerprints is None else fingerprints
        return SearchRecord(search_id, config, state, failure, new or known.result, now(), prints, run_id)

    SEARCHES.change(ledger, search_id, changed)


def note_mlflow(
    ledger: Ledger,
    search_id: str,
    run_id: str | None,
    receipt: str | None = None,
    tracking: Mapping[str, Any] | None = None,
) -> None:
    """Put on record where MLflow has a search; when the search changed last stays as it is.

    Args:
        ledger: Has the search.
        search_id: Its id.
        run_id: MLflow's id of it; None leaves the one on record.
        receipt: The tracker's receipt; None where something is not written.
        tracking: The section ``tracking``, without secrets, that it is recorded by from now on; None leaves the one on
            record.
    """
    if run_id is None and tracking is None:
        return

    def changed(record: SearchRecord | None) -> SearchRecord:
        assert record is not None, "it was read before"
        known_as = run_id or record.mlflow_run_id
        result = record.result and replace(record.result, mlflow_run_id=known_as, mlflow_receipt=receipt)
        config = record.config if tracking is None else {**record.config, "tracking": tracking}
        return replace(record, config=config, result=result, mlflow_run_id=known_as)

    SEARCHES.change(ledger, search_id, changed)


@dataclass(frozen=True)
class Cleaned:
    """The searches and rows that go from a ledger.

    Args:
        path: The ledger.
        searches: Their ids.
        rows: How many evaluations and texts go with them.
        size_bytes: The file's size, before and after; the same unless it is done.
        done: Whether they are gone, or only would be.
        studies: The ids of the studies that have one of the searches, and would run it again.
    """

    path: Path
    searches: list[str]
    rows: dict[str, int]
    size_bytes: tuple[int, int]
    done: bool
    studies: Sequence[str] = ()


def clean(ledger: Ledger, names: Sequence[str], *, really: bool) -> Cleaned:
    """Forget searches, and give the space of what is gone back to the disk.

    The evaluations of a search go with it unless another search on record is of the same calibration, or of one that
    it is a part of. What another command needs of them later is computed again. Without names, space alone is given
    back; if not `really`, what would go is counted.

    Raises:
        UserError: A name fits no search or several, or a search that would lose something is running.
    """
    before = ledger.path.stat().st_size
    rows: dict[str, int] = {}
    # A search takes its lock before it writes, so one that begins meanwhile is seen here, or writes afterwards.
    with ledger.transaction() if really else nullcontext():
        gone = {record.search_id: record for record in (SEARCHES.find(ledger, name) for name in names)}
        for name in gone:
            if is_held(ledger, name):
                raise UserError(f"SEARCH={name} is running; wait for its end, or stop it first")
        stay = {one for record in SEARCHES.all(ledger) if record.search_id not in gone for one in _calibrations(record)}
        calibrations = json.dumps([one for record in gone.values() for one in _calibrations(record) if one not in stay])
        for table in ("evaluations", "texts"):
            where = f"FROM {table} WHERE calibration IN (SELECT value FROM json_each(?))"
            ((rows[table],),) = ledger.read(f"SELECT count(*) {where}", (calibrations,))
            if really:
                ledger.connection.execute(f"DELETE {where}", (calibrations,))
        if really:
            ledger.connection.executemany("DELETE FROM searches WHERE search_id = ?", [(name,) for name in gone])
    if really:
        ledger.compact()
    return Cleaned(ledger.path, list(gone), rows, (before, ledger.path.stat().st_size), really)


def _calibrations(record: SearchRecord) -> list[str]:
    """Return the fingerprints that a search's evaluations are kept by: of a weighted one, those of its parts."""
    fingerprints = record.fingerprints
    return fingerprints.get("parts", fingerprints.get("calibration", "")).split()
