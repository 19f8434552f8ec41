"""Checks a whole ledger: SQLite's own pages and indexes, and each row against its checksum."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.ledger.ledger import SCHEMA_VERSION, TABLES, Ledger, checksum
from raysearch.ledger.table import Table

_MOST = 20  # lines of damage
#: The tables that are no records of a class: the columns of a row in the order of its checksum, and how it is called.
_ROWS = {
    "evaluations": (("calibration", "subject", "shard", "samples"), "{1}, shard {2} of calibration {0}"),
    "texts": (("calibration", "mask", "shard", "texts"), "{1}, shard {2} of calibration {0}"),
    "assessments": (("model", "mask", "assessment", "result"), "{1} of model {0}, assessment {2}"),
}


@dataclass(frozen=True)
class LedgerCheck:
    """The state of a ledger.

    Args:
        path: The file.
        format: Its format.
        size_bytes: The file's size.
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
    """Read every row of a ledger, and say what is damaged.

    Args:
        ledger: The ledger.
        records: The tables that are records of a class.
    """
    damage = []
    for line in _damage(ledger, records):
        damage.append(line)
        if len(damage) == _MOST:
            break
    rows = {name: 0 if damage else _count(ledger, name) for name in sorted(TABLES)}
    return LedgerCheck(ledger.path, SCHEMA_VERSION, ledger.path.stat().st_size, rows, damage)


def _damage(ledger: Ledger, records: Sequence[Table[Any]]) -> Iterator[str]:
    try:
        lines = [line for (line,) in ledger.connection.execute(f"PRAGMA integrity_check({_MOST})")]
    except sqlite3.Error as error:
        lines = [str(error)]
    if lines != ["ok"]:
        yield from lines
        return  # what is read by damaged indexes is no news
    for name, (columns, described) in _ROWS.items():
        for *values, kept in ledger.read(f"SELECT {', '.join(columns)}, checksum FROM {name}"):
            if kept != checksum(*values):
                yield f"{name}: {described.format(*values)}"
    for table in records:
        yield from (f"{table.name}: {name}" for name in table.damaged(ledger))


def _count(ledger: Ledger, table: str) -> int:
    (count,) = next(iter(ledger.read(f"SELECT count(*) FROM {table}")))
    return int(count)
