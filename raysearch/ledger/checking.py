"""Checks a whole ledger: SQLite's own pages and indexes, and each row against its checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from raysearch.ledger.ledger import Ledger, checksum
from raysearch.ledger.schema import ROWS, SCHEMA_VERSION, TABLES
from raysearch.ledger.table import RecordTable

_MAX_LINES = 20  # of damage


@dataclass(frozen=True)
class LedgerCheck:
    """The state of a ledger.

    Args:
        path: The ledger's file.
        format: The version of its tables.
        size_bytes: The size of the file.
        rows: The number of rows by table; zeros if the ledger is damaged.
        damage: One line for each damaged page or row, at most twenty; empty if the ledger is whole.
    """

    path: Path
    format: int
    size_bytes: int
    rows: dict[str, int]
    damage: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage


def check_ledger(ledger: Ledger, records: Sequence[RecordTable[Any]]) -> LedgerCheck:
    """Read every row of a ledger and report the damaged ones.

    Args:
        ledger: The ledger.
        records: The tables whose rows are records of a class.

    Returns:
        The number of rows of each table, or the damage.

    Raises:
        UserError: The file cannot be read.
    """
    damage = [*islice(_damage(ledger, records), _MAX_LINES)]
    rows = dict.fromkeys(sorted(TABLES), 0)
    if not damage:
        for name in rows:
            ((rows[name],),) = ledger.read(f"SELECT count(*) FROM {name}")
    return LedgerCheck(ledger.path, SCHEMA_VERSION, ledger.path.stat().st_size, rows, damage)


def _damage(ledger: Ledger, records: Sequence[RecordTable[Any]]) -> Iterator[str]:
    try:
        lines = [line for (line,) in ledger.connection.execute(f"PRAGMA integrity_check({_MAX_LINES})")]
    except sqlite3.Error as error:
        lines = [str(error)]
    if lines != ["ok"]:
        yield from lines
        return  # rows that are read through damaged indexes would only repeat it
    for name, (key, content) in ROWS.items():
        template = "{1}, shard {2} of calibration {0}"
        if name == "assessments":
            template = "{1} of model {0}, assessment {2}"
        for *values, stored_checksum in ledger.read(f"SELECT {', '.join(key)}, {content}, checksum FROM {name}"):
            if stored_checksum != checksum(*values):
                yield f"{name}: {template.format(*values)}"
    for table in records:
        yield from (f"{table.name}: {record_id}" for record_id in table.damaged(ledger))
