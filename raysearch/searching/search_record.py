"""The records of searches in a ledger: their configuration, state and result. Also how searches are deleted.

They are in the ledger's file, so that ``resume``, ``show`` and ``export`` need no tracker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from raysearch.core.trial import Trial
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_locked
from raysearch.ledger.table import RecordTable, now
from raysearch.searching.result import SearchResult
from raysearch.searching.settings import SearchSettings

State = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class SearchRecord:
    """The record of a search.

    Args:
        search_id: The id of the search.
        config: The resolved configuration, without secrets.
        state: The state; ``stopped`` means by its budget. A killed process cannot write its end, so its search stays
            ``running`` in the ledger; `with_current_states` corrects that.
        failure: The cause, if it failed.
        result: The result, if there is one.
        updated: When the record last changed, ISO 8601, UTC.
        fingerprints: The fingerprints of the ``model``, the ``text`` and the whole ``calibration``; empty before they
            are known.
        mlflow_run_id: MLflow's id of the search, if it is recorded there.
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
    def settings(self) -> SearchSettings:
        """The values of `config` that are read."""
        return SearchSettings(self.config)

    @property
    def finished_result(self) -> SearchResult:
        """The result.

        Raises:
            UserError: There is no result yet.
        """
        if self.result is None:
            remedy = f"first: raysearch resume {self.search_id}{self.settings.places.ledger_option}"
            if self.state == "running":
                remedy = "wait for its end"
            raise UserError(f"SEARCH={self.search_id} is {self.state}, so nothing is found yet; {remedy}")
        return self.result

    @property
    def identifying(self) -> dict[str, str]:
        """The fingerprints in the ids of recoveries: all except ``parts``, which ``calibration`` includes."""
        return {subject: digest for subject, digest in self.fingerprints.items() if subject != "parts"}

    def best_of_size(self, remove: int | None) -> Trial:
        """Return the best trial of a size.

        Args:
            remove: The size of the mask; None for the mask of the search, 0 for the dense model.

        Raises:
            UserError: The search has no result yet, or no such mask.
        """
        if remove == 0:
            return self.finished_result.trials[0]
        best = self.finished_result.best_by_size
        size = self.finished_result.n_removed if remove is None else remove
        if size not in best:
            raise UserError(
                f"--remove={remove} is not a number of {self.finished_result.space.plural} that {self.search_id} has a "
                f"mask of; "
                f"choose one of: {', '.join(map(str, best))}"
            )
        return best[size]

    def check_weights(self, model_fingerprint: str) -> None:
        """Check that the model is the one of the search.

        Raises:
            UserError: The files of the model have changed since the search.
        """
        if self.fingerprints.get("model", model_fingerprint) != model_fingerprint:
            raise UserError(
                f"SEARCH={self.search_id} is of another model: its files have changed since; put back the old ones, "
                "or start again with raysearch search"
            )


def _merged(record: SearchRecord, other_record: SearchRecord) -> SearchRecord:
    """Return the record of a search that two ledgers have: the one with more progress, or else the newer."""
    result = record.result
    other_result = other_record.result
    if (
        result is not None
        and other_result is not None
        and result.complete
        and other_result.complete
        and (result.removed, result.loss) != (other_result.removed, other_result.loss)
    ):
        raise UserError(
            f"SEARCH={record.search_id} found {result.mask} in one ledger and {other_result.mask} in the other; the "
            "two were not computed alike, so keep them apart"
        )

    def progress(record: SearchRecord) -> tuple[bool, bool, str]:
        return bool(record.result), bool(record.result and record.result.complete), record.updated

    return max(record, other_record, key=progress)


#: The table of all searches in a ledger.
SEARCHES = RecordTable(SearchRecord, "searches", "search", _merged)


def with_current_states(ledger: Ledger, records: Sequence[SearchRecord]) -> list[SearchRecord]:
    """Return records with their actual states: a running search without a process is interrupted. Nothing is written.

    Args:
        ledger: The ledger.
        records: Records of the ledger.

    Returns:
        The records, in the same order.
    """
    ended_ids = [
        record.search_id for record in records if record.state == "running" and not is_locked(ledger, record.search_id)
    ]
    current: dict[str, SearchRecord] = {}
    # These are read again, since a search writes its end before it releases its lock.
    for search_id, record in SEARCHES.by_ids(ledger, ended_ids).items():
        current[search_id] = replace(record, state="interrupted") if record.state == "running" else record
    return [current.get(record.search_id, record) for record in records]


def find_search(ledger: Ledger, name: str) -> SearchRecord:
    """Return the search that a name fits, with its actual state (`with_current_states`).

    Args:
        ledger: The ledger.
        name: The id, the beginning of one, or ``latest``; see `RecordTable.find`.

    Returns:
        The record of the search.

    Raises:
        UserError: No search fits the name, or several do.
    """
    (record,) = with_current_states(ledger, [SEARCHES.find(ledger, name)])
    return record


def count_evaluated(ledger: Ledger, record: SearchRecord) -> int:
    """Return how many masks have evaluations on the samples of a search; other searches may share these.

    Args:
        ledger: The ledger.
        record: The search.

    Returns:
        The number of distinct masks.
    """
    query = "subject LIKE '{_%}' AND calibration IN (SELECT value FROM json_each(?))"
    parameters = (json.dumps(_calibrations(record)),)
    ((masks,),) = ledger.read(f"SELECT count(DISTINCT subject) FROM evaluations WHERE {query}", parameters)
    return int(masks)


def write_search(
    ledger: Ledger,
    search_id: str,
    config: Mapping[str, Any],
    state: State,
    result: SearchResult | None = None,
    failure: str | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> SearchRecord:
    """Record the state of a search, and return its record.

    Args:
        ledger: The ledger.
        search_id: The id of the search.
        config: The resolved configuration, without secrets.
        state: The state.
        result: The result; None keeps the recorded one. If all of it came from the ledger, the recorded work and times
            of the search are kept.
        failure: The cause, if the search failed.
        fingerprints: The fingerprints; None keeps the recorded ones.

    Returns:
        The record, as it is in the ledger.
    """

    def changed(before: SearchRecord | None) -> SearchRecord:
        before = before or SearchRecord(search_id, config, state, None, None, "")
        run_id = (result and result.mlflow_run_id) or before.mlflow_run_id
        new_result = result and replace(result.with_work_of(before.result), mlflow_run_id=run_id)
        return SearchRecord(
            search_id,
            config,
            state,
            failure,
            result=new_result or before.result,
            updated=now(),
            fingerprints=before.fingerprints if fingerprints is None else fingerprints,
            mlflow_run_id=run_id,
        )

    return SEARCHES.change(ledger, search_id, changed)


def record_mlflow_run(
    ledger: Ledger,
    search_id: str,
    run_id: str | None,
    receipt: str | None = None,
    tracking: Mapping[str, Any] | None = None,
) -> SearchRecord:
    """Record where MLflow has a search, and return its record. The time of the last change stays.

    Args:
        ledger: The ledger, which contains the search.
        search_id: The id of the search.
        run_id: MLflow's id of the search; None keeps the recorded one.
        receipt: The tracker's receipt; None if something is not written.
        tracking: The new section ``tracking`` of its configuration, without secrets; None keeps the recorded one.

    Returns:
        The record, as it is in the ledger.
    """

    def changed(record: SearchRecord | None) -> SearchRecord:
        assert record is not None, "the ledger contains the search"
        mlflow_run_id = run_id or record.mlflow_run_id
        result = record.result and replace(record.result, mlflow_run_id=mlflow_run_id, mlflow_receipt=receipt)
        config = record.config if tracking is None else {**record.config, "tracking": tracking}
        return replace(record, config=config, result=result, mlflow_run_id=mlflow_run_id)

    return SEARCHES.change(ledger, search_id, changed)


@dataclass(frozen=True)
class Cleaned:
    """The searches and rows that are deleted from a ledger.

    Args:
        path: The file of the ledger.
        searches: The ids of the deleted searches.
        rows: How many evaluations and texts are deleted with them.
        size_bytes: The size of the file before and after; equal unless `done`.
        done: Whether they are deleted, or only would be.
        studies: The ids of the studies that contain one of the searches, and would run it again.
    """

    path: Path
    searches: list[str]
    rows: dict[str, int]
    size_bytes: tuple[int, int]
    done: bool
    studies: Sequence[str] = ()


def clean(ledger: Ledger, names: Sequence[str], *, really: bool) -> Cleaned:
    """Delete searches and their evaluations, and free the space on the disk.

    The evaluations of a search are kept if another recorded search has the same calibration, alone or as a part.
    Deleted evaluations that another command needs later are computed again.

    Args:
        ledger: The ledger.
        names: The searches; without names, only free space is released.
        really: Whether they are deleted; if not, they are only counted.

    Returns:
        The deleted searches, the number of deleted rows, and the sizes of the file before and after, in bytes.

    Raises:
        UserError: A name fits no search or several, or one of the searches is running.
    """
    before = ledger.path.stat().st_size
    rows: dict[str, int] = {}
    # A search takes its lock before it writes, so a search that starts now is detected here, or writes afterwards.
    with ledger.transaction() if really else nullcontext():
        deleted = {record.search_id: record for record in (SEARCHES.find(ledger, name) for name in names)}
        for name in deleted:
            if is_locked(ledger, name):
                raise UserError(f"SEARCH={name} is running; wait for its end, or stop it first")
        needed: set[str] = set()
        for record in SEARCHES.all(ledger):
            if record.search_id not in deleted:
                needed.update(_calibrations(record))
        unneeded = [
            calibration
            for record in deleted.values()
            for calibration in _calibrations(record)
            if calibration not in needed
        ]
        calibrations = json.dumps(unneeded)
        for table in ("evaluations", "texts"):
            where = f"FROM {table} WHERE calibration IN (SELECT value FROM json_each(?))"
            ((rows[table],),) = ledger.read(f"SELECT count(*) {where}", (calibrations,))
            if really:
                ledger.connection.execute(f"DELETE {where}", (calibrations,))
        if really:
            ledger.connection.executemany("DELETE FROM searches WHERE search_id = ?", [(name,) for name in deleted])
    if really:
        ledger.compact()
    return Cleaned(ledger.path, list(deleted), rows, (before, ledger.path.stat().st_size), really)


def _calibrations(record: SearchRecord) -> list[str]:
    """Return the fingerprints of all calibrations of a search, under which its evaluations are stored."""
    fingerprints = record.fingerprints
    return fingerprints.get("parts", fingerprints.get("calibration", "")).split()
