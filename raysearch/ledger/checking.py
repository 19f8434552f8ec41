"""Checks a whole ledger: SQLite's own pages and indexes, and each row against its checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from raysearch.ledger.ledger import ROWS, SCHEMA_VERSION, TABLES, Ledger, checksum
from raysearch.ledger.table import Table

_MOST = 20  # lines of damage


@dataclass(frozen=True)
class LedgerCheck:
    """The state of a ledger.

    Args:
        rows: The number of rows by table.
        damage: What is damaged, a line each, the first twenty; empty if it is whole.
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


def check_ledger(ledger: Ledger, records: Sequence[Table[Any]]) -> LedgerCheck:
    """Read every row of a ledger, and say what is damaged; `records` are the tables that are records of a class."""
    damage = [*islice(_damage(ledger, records), _MOST)]
    rows = dict.fromkeys(sorted(TABLES), 0)
    if not damage:
        for name in rows:
            ((rows[name],),) = ledger.read(f"SELECT count(*) FROM {name}")
    return LedgerCheck(ledger.path, SCHEMA_VERSION, ledger.path.stat().st_size, rows, damage)


def _damage(ledger: Ledger, records: Sequence[Table[Any]]) -> Iterator[str]:
    try:
        lines = [line for (line,) in ledger.connection.execute(f"PRAGMA integrity_check({_MOST})")]
    except sqlite3.Error as error:
        lines = [str(error)]
    if lines != ["ok"]:
        yield from lines
        return  # what is read by damaged indexes is no news
    for name, (key, content) in ROWS.items():
        described = "{1} of model {0}, assessment {2}" if name == "assessments" else "{1}, shard {2} of calibration {0}"
        for *values, kept in ledger.read(f"SELECT {', '.join(key)}, {content}, checksum FROM {name}"):
            if kept != checksum(*values):
                yield f"{name}: {described.format(*values)}"
    for table in records:
        yield from (f"{table.name}: {name}" for name in table.damaged(ledger))
