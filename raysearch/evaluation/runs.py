"""The searches a ledger knows: what was asked for, how far it got, what it found.

Kept in the ledger's own file, so that ``resume``, ``show`` and ``export`` need no tracker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.naming import find

_COLUMNS = "run_id, config, state, failure, result, updated"

State = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class RunRecord:
    """A search as the ledger remembers it.

    Args:
        run_id: Its name.
        config: Its resolved configuration.
        state: ``running`` also after a kill: a dead process cannot write its own end. ``stopped`` by its budget.
        failure: Why, if it failed.
        result: What it found, as `SearchResult.as_json` with its trials; None before the end.
        updated: When the record last changed, ISO 8601, UTC.
    """

    run_id: str
    config: Mapping[str, Any]
    state: State
    failure: str | None
    result: Mapping[str, Any] | None
    updated: str


def write_run(
    ledger: Ledger,
    run_id: str,
    config: Mapping[str, Any],
    state: State,
    result: Mapping[str, Any] | None = None,
    failure: str | None = None,
) -> None:
    """Records where a search stands; what an earlier run of the same search found stays until there is a new result."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")
    ledger.connection.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET config = excluded.config, "
        "state = excluded.state, failure = excluded.failure, result = coalesce(excluded.result, result), "
        "updated = excluded.updated",
        (run_id, json.dumps(config), state, failure, None if result is None else json.dumps(result), now),
    )


def list_runs(ledger: Ledger) -> list[RunRecord]:
    """Every search, the newest first."""
    rows = ledger.connection.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY updated DESC, run_id")
    return [_read(*row) for row in rows]


def read_runs(ledger: Ledger, run_ids: Iterable[str]) -> dict[str, RunRecord]:
    """Those of some searches that the ledger knows, by run id."""
    rows = ledger.connection.execute(
        f"SELECT {_COLUMNS} FROM runs WHERE run_id IN (SELECT value FROM json_each(?))", (json.dumps(list(run_ids)),)
    )
    return {run.run_id: run for run in (_read(*row) for row in rows)}


def find_run(ledger: Ledger, name: str) -> RunRecord:
    """Finds a search by its run id, a prefix of it, its MLflow run id, or ``latest``.

    Raises:
        UserError: There is no such search, or the prefix fits several.
    """
    return find(name, list_runs(ledger), _ids, "search", ledger)


def _ids(run: RunRecord) -> tuple[str, str | None]:
    return run.run_id, (run.result or {}).get("mlflow_run_id")


def _read(run_id: str, config: str, state: State, failure: str | None, result: str | None, updated: str) -> RunRecord:
    found = None if result is None else json.loads(result)
    return RunRecord(run_id, json.loads(config), state, failure, found, updated)
