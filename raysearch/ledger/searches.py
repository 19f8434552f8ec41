"""The searches a ledger knows: what was asked for, how far it got, what it found.

Kept in the ledger's own file, so that ``resume``, ``show`` and ``export`` need no tracker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from raysearch.errors import UserError, redact
from raysearch.ledger.checksum import sealed_json
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import Taken, owned
from raysearch.ledger.naming import find

_COLUMNS = "search_id, config, state, failure, result, updated, fingerprints"

State = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class SearchRecord:
    """A search as the ledger remembers it.

    Args:
        search_id: Its name.
        config: Its resolved configuration.
        state: ``running`` also after a kill: a dead process cannot write its own end. ``stopped`` by its budget.
        failure: Why, if it failed.
        result: What it found, as `raysearch.search.history.as_record` gives it; None before the end.
        updated: When the record last changed, ISO 8601, UTC.
        fingerprints: Of the model, the text and the whole calibration; empty before they were known.
    """

    search_id: str
    config: Mapping[str, Any]
    state: State
    failure: str | None
    result: Mapping[str, Any] | None
    updated: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of it, if it was recorded there."""
        return (self.result or {}).get("mlflow_run_id")


def write_search(
    ledger: Ledger,
    search_id: str,
    config: Mapping[str, Any],
    state: State,
    result: Mapping[str, Any] | None = None,
    failure: str | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> None:
    """Records where a search stands; result and fingerprints stay as they are until there are new ones.

    MLflow's id of it stays until there is another.
    """
    if result is not None and result.get("mlflow_run_id") is None:
        before = read_searches(ledger, [search_id]).get(search_id)
        result = {**result, "mlflow_run_id": before.mlflow_run_id} if before and before.mlflow_run_id else result
    now = datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")
    kept = {"config": config, "fingerprints": fingerprints, "result": result}
    asked, names, found = (sealed_json(value, search_id, name) for name, value in kept.items())
    with ledger.transaction() as connection:
        connection.execute(
            f"INSERT INTO searches ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (search_id) DO UPDATE SET "
            "config = excluded.config, state = excluded.state, failure = excluded.failure, "
            "fingerprints = coalesce(excluded.fingerprints, fingerprints), result = coalesce(excluded.result, result), "
            "updated = excluded.updated",
            (search_id, asked, state, failure and redact(failure), found, now, names),
        )


def note_mlflow(
    ledger: Ledger, search_id: str, mlflow_run_id: str | None, tracking: Mapping[str, Any] | None = None
) -> None:
    """Adds to the record of a search that has a result where MLflow has it; when that happened is left as it was.

    Args:
        ledger: Where.
        search_id: The search.
        mlflow_run_id: MLflow's id of it; None where that was not to be had, and leaves the one on record.
        tracking: The section ``tracking`` that it is recorded by from now on, without secrets; None for the same.
    """
    run = read_searches(ledger, [search_id])[search_id]
    result = {**(run.result or {}), "mlflow_run_id": mlflow_run_id or run.mlflow_run_id}
    config = run.config if tracking is None else {**run.config, "tracking": tracking}
    with ledger.transaction() as connection:
        connection.execute(
            "UPDATE searches SET config = ?, result = ? WHERE search_id = ?",
            (sealed_json(config, search_id, "config"), sealed_json(result, search_id, "result"), search_id),
        )


@contextmanager
def held(ledger: Ledger, name: str, kind: str, *, wait: bool = False) -> Iterator[None]:
    """Keeps other processes from running a search or a study at the same time.

    Args:
        ledger: Where it is recorded.
        name: The search's or the study's.
        kind: What it is called in a command: ``SEARCH``, ``STUDY``.
        wait: Whether to wait for a process that has it, instead of refusing.

    Raises:
        UserError: Another process has it, or there is no room for a lock.
    """
    with ExitStack() as stack:
        try:
            with ledger.explaining():
                stack.enter_context(owned(ledger.path.with_name(f"{ledger.path.name}.{name}.lock"), wait))
        except Taken as taken:
            raise UserError(
                f"{kind}={name} is being run by {taken.owner} already; wait for that to end, or stop it first"
            ) from taken
        yield


def list_searches(ledger: Ledger) -> list[SearchRecord]:
    """Every search, the newest first."""
    rows = ledger.read(f"SELECT {_COLUMNS} FROM searches ORDER BY updated DESC, search_id")
    return [_read(ledger, *row) for row in rows]


def read_searches(ledger: Ledger, search_ids: Iterable[str]) -> dict[str, SearchRecord]:
    """Those of some searches that the ledger knows, by run id."""
    rows = ledger.read(
        f"SELECT {_COLUMNS} FROM searches WHERE search_id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(search_ids)),),
    )
    return {run.search_id: run for run in (_read(ledger, *row) for row in rows)}


def find_search(ledger: Ledger, name: str) -> SearchRecord:
    """Finds a search by its run id, a prefix of it, its MLflow run id, or ``latest``.

    Raises:
        UserError: There is no such search, or the prefix fits several.
    """
    return find(name, list_searches(ledger), _ids, "search", ledger)


def _ids(run: SearchRecord) -> tuple[str, str | None]:
    return run.search_id, run.mlflow_run_id


def _read(
    ledger: Ledger,
    search_id: str,
    config: bytes,
    state: State,
    failure: str | None,
    result: bytes | None,
    updated: str,
    names: bytes | None,
) -> SearchRecord:
    asked, found = ledger.json(config, search_id, "config"), ledger.json(result, search_id, "result")
    return SearchRecord(
        search_id, asked, state, failure, found, updated, ledger.json(names, search_id, "fingerprints") or {}
    )
