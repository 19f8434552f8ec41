"""Merges ledgers, such as those of two machines: each whole, with the same numbers bit for bit, or not at all."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.errors import UserError
from raysearch.ledger.checking import check_ledger
from raysearch.ledger.ledger import ROWS, Ledger, put
from raysearch.ledger.table import Table

#: Assessments that no fingerprint names: what is added to, as all assessed numbers, or may differ by the machine, as
#: trainings.
_GROWS = "assessment GLOB '*[^0-9a-f]*'"
#: Where the content of two ledgers need not be the same bytes: times differ, and builds of zlib pack texts differently.
_MAY_DIFFER = {
    "assessments": f"({_GROWS} OR json_extract(theirs.result, '$.measured_on') NOTNULL)",
    "texts": "(unpacked(texts.texts) = unpacked(theirs.texts))",
}


@dataclass(frozen=True)
class Merged:
    """The rows that a ledger has taken from others."""

    path: Path
    rows: dict[str, int]  # that it lacked, by table, or records that have changed


def merge_ledgers(ledger: Ledger, others: Sequence[Path], records: Sequence[Table[Any]]) -> Merged:
    """Take over what others have and this ledger lacks; `records` are the tables of records of a class.

    They are merged one after the other, each whole or not at all.

    Raises:
        UserError: One of them is damaged, or has another number for the same evaluation; those before it are merged.
    """
    rows = dict.fromkeys([*ROWS, *(one.name for one in records)], 0)
    for path in others:
        if not path.is_file():
            raise UserError(f"OTHER={path} is not a ledger; name the file ledger.db of another store")
        if path.samefile(ledger.path):
            raise UserError(f"OTHER={path} is the ledger that the others are merged into; name another")
        with closing(Ledger(path)) as other:
            checked = check_ledger(other, records)
            if not checked.is_whole:
                raise UserError(f"OTHER={path} is damaged ({checked.damage[0]}); merge a copy that is whole")
            for name, number in _merge(ledger, other, records).items():
                rows[name] += number
    return Merged(ledger.path, rows)


def _join_what_grows(connection: sqlite3.Connection) -> int:
    """Join rows that both ledgers have, and return how many have changed; what both hold stays as it is here."""
    rows = connection.execute(
        "SELECT model, mask, assessment, assessments.result, theirs.result FROM assessments "
        f"JOIN other.assessments AS theirs USING (model, mask, assessment) WHERE {_GROWS}"
    ).fetchall()
    changed = 0
    for *key, ours, theirs in rows:
        mine, others = json.loads(ours), json.loads(theirs)
        if isinstance(mine, dict):
            joined: Any = {**others, **mine}
        else:  # recoveries of a mask
            known = {one["recovery_id"] for one in mine}
            joined = [*mine, *(one for one in others if one["recovery_id"] not in known)]
        if joined != mine:
            put(connection, "assessments", [(*key, json.dumps(joined))], "REPLACE")
            changed += 1
    return changed


def _merge(ledger: Ledger, other: Ledger, records: Sequence[Table[Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    with other.explaining():
        ledger.connection.execute("ATTACH DATABASE ? AS other", (other.address,))
    try:
        with ledger.transaction() as connection:
            connection.create_function("unpacked", 1, zlib.decompress, deterministic=True)
            for name, (key, content) in ROWS.items():
                same = f"SELECT {', '.join(key)} FROM {name} JOIN other.{name} AS theirs USING ({', '.join(key)})"
                where = f"{name}.{content} <> theirs.{content} AND NOT {_MAY_DIFFER.get(name, 'FALSE')}"
                differs = connection.execute(f"{same} WHERE {where} LIMIT 1").fetchone()
                if differs is not None:
                    raise UserError(
                        f"OTHER={other.path} has other numbers than {ledger.path} for {differs[1]} ({name}, "
                        f"{', '.join(f'{column} {value}' for column, value in zip(key, differs, strict=True))}); "
                        "the two were not computed alike, so keep them apart"
                    )
                columns = ", ".join([*key, content, "checksum"])
                taken = f"INSERT OR IGNORE INTO {name} ({columns}) SELECT {columns} FROM other.{name}"
                found[name] = connection.execute(taken).rowcount
            found["assessments"] += _join_what_grows(connection)
            for one in records:
                found[one.name] = one.take_over(ledger, other)
    finally:
        ledger.connection.execute("DETACH DATABASE other")
    return found
