"""The JSON answer of a command, and the rows of a ledger."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.cli.conftest import Outcome


def json_answer(outcome: Outcome) -> Any:
    """Return the JSON value that a successful command printed."""
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1, "one line, and nothing else on standard output"
    return json.loads(outcome.out)


def same(result: Mapping[str, Any], other_result: Mapping[str, Any]) -> bool:
    """Return whether two searches have the same result, bit for bit."""
    keys = ("search_id", "removed", "removal_order", "dense_loss", "loss", "n_tokens")
    return [result[key] for key in keys] == [other_result[key] for key in keys]


def evaluations(store: str | Path) -> dict[tuple[str, str, int], bytes]:
    """Return every evaluation of a ledger, which must be undamaged."""
    with closing(sqlite3.connect(Path(store) / "ledger.db")) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'evaluations'").fetchone():
            return {}  # it was killed before there was anything
        rows = ledger.execute("SELECT calibration, subject, shard, samples FROM evaluations")
        return {(calibration, mask, shard): blob for calibration, mask, shard, blob in rows}
