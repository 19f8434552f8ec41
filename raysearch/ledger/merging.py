"""Merges ledgers, such as those of two machines. Each is merged completely or not at all.

Two ledgers that have the same evaluation must have the same numbers for it, bit for bit.
"""

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
from raysearch.ledger.ledger import Ledger, put
from raysearch.ledger.schema import ROWS
from raysearch.ledger.table import RecordTable

#: The condition for assessments whose name is not a fingerprint. They are lists or dicts that grow, such as all
#: assessed numbers of a mask, or its recoveries.
_GROWS = "assessment GLOB '*[^0-9a-f]*'"
#: The conditions, by table, under which two ledgers may have different bytes: measured times differ, and builds of zlib
#: compress texts differently.
_MAY_DIFFER = {
    "assessments": f"({_GROWS} OR json_extract(theirs.result, '$.measured_on') NOTNULL)",
    "texts": "(unpacked(texts.texts) = unpacked(theirs.texts))",
}


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Args:
        path: The ledger into which others were merged.
        rows: The number of rows that were added or changed, by table.
    """

    path: Path
    rows: dict[str, int]


def merge_ledgers(ledger: Ledger, paths: Sequence[Path], records: Sequence[RecordTable[Any]]) -> Merged:
    """Add the rows of other ledgers to a ledger.

    The other ledgers are merged one after the other, each completely or not at all.

    Args:
        ledger: The ledger to which rows are added.
        paths: The files of the other ledgers.
        records: The tables whose rows are records of a class.

    Returns:
        How many rows were added.

    Raises:
        UserError: A ledger is damaged, or has another number for the same evaluation; those before it are merged.
    """
    rows = dict.fromkeys([*ROWS, *(table.name for table in records)], 0)
    for path in paths:
        if not path.is_file():
            raise UserError(f"OTHER={path} is not a ledger; name the file ledger.db of another store")
        if path.samefile(ledger.path):
            raise UserError(f"OTHER={path} is the ledger that the others are merged into; name another")
        with closing(Ledger(path)) as other_ledger:
            check = check_ledger(other_ledger, records)
            if not check.is_whole:
                raise UserError(f"OTHER={path} is damaged ({check.damage[0]}); merge a copy that is whole")
            for name, n_rows in _merge(ledger, other_ledger, records).items():
                rows[name] += n_rows
    return Merged(ledger.path, rows)


def _join_growing_assessments(connection: sqlite3.Connection) -> int:
    """Join the growing assessments that both ledgers have, and return how many rows have changed.

    If both have a key or a recovery, this ledger's value stays.
    """
    rows = connection.execute(
        "SELECT model, mask, assessment, assessments.result, theirs.result FROM assessments "
        f"JOIN other.assessments AS theirs USING (model, mask, assessment) WHERE {_GROWS}"
    ).fetchall()
    changed = 0
    for *key, result_text, other_text in rows:
        result = json.loads(result_text)
        other_result = json.loads(other_text)
        if isinstance(result, dict):
            joined: Any = {**other_result, **result}
        else:  # recoveries of a mask
            recovery_ids = {recovery["recovery_id"] for recovery in result}
            joined = [*result, *(recovery for recovery in other_result if recovery["recovery_id"] not in recovery_ids)]
        if joined != result:
            put(connection, "assessments", [(*key, json.dumps(joined))], "REPLACE")
            changed += 1
    return changed


def _merge(ledger: Ledger, other_ledger: Ledger, records: Sequence[RecordTable[Any]]) -> dict[str, int]:
    """Add the rows of one other ledger, and return how many were added or changed, by table."""
    n_rows: dict[str, int] = {}
    with other_ledger.explaining():
        ledger.connection.execute("ATTACH DATABASE ? AS other", (other_ledger.address,))
    try:
        with ledger.transaction() as connection:
            connection.create_function("unpacked", 1, zlib.decompress, deterministic=True)
            for name, (key, content) in ROWS.items():
                same = f"SELECT {', '.join(key)} FROM {name} JOIN other.{name} AS theirs USING ({', '.join(key)})"
                where = f"{name}.{content} <> theirs.{content} AND NOT {_MAY_DIFFER.get(name, 'FALSE')}"
                differs = connection.execute(f"{same} WHERE {where} LIMIT 1").fetchone()
                if differs is not None:
                    raise UserError(
                        f"OTHER={other_ledger.path} has other numbers than {ledger.path} for {differs[1]} ({name}, "
                        f"{', '.join(f'{column} {value}' for column, value in zip(key, differs, strict=True))}); "
                        "the two were not computed alike, so keep them apart"
                    )
                columns = ", ".join([*key, content, "checksum"])
                insert = f"INSERT OR IGNORE INTO {name} ({columns}) SELECT {columns} FROM other.{name}"
                n_rows[name] = connection.execute(insert).rowcount
            n_rows["assessments"] += _join_growing_assessments(connection)
            for table in records:
                n_rows[table.name] = table.take_over(ledger, other_ledger)
    finally:
        ledger.connection.execute("DETACH DATABASE other")
    return n_rows
