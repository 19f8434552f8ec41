"""The results of assessments: a row for each model, mask and assessment, with a value in JSON.

An assessment is named by a fingerprint of all that its result depends on besides model and mask.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raysearch.core.json import from_json, to_record
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger, check, checksum


def assessment_fingerprint(identity: Mapping[str, Any]) -> str:
    """Return an assessment's name: 32 hexadecimal digits of what it depends on, JSON values."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def read_assessments(
    ledger: Ledger, model: str, assessment: str, masks: Iterable[Mask], kind: Any = dict[str, Any]
) -> dict[Mask, Any]:
    """Return the results of those masks that are known.

    Args:
        ledger: Where.
        model: The dense model's fingerprint.
        assessment: The assessment's fingerprint.
        masks: Which masks are asked for.
        kind: The type of a result.
    """
    by_text = {str(mask): mask for mask in masks}
    rows = ledger.read(
        "SELECT model, mask, assessment, result, checksum FROM assessments WHERE model = ? AND assessment = ? "
        "AND mask IN (SELECT value FROM json_each(?))",
        (model, assessment, json.dumps(list(by_text))),
    )
    found = {}
    for *values, kept in rows:
        with ledger.explaining():
            check(kept, *values)
        found[by_text[values[1]]] = from_json(kind, values[3])
    return found


def write_assessment(
    ledger: Ledger, model: str, assessment: str, results: Mapping[Mask, Any], kind: Any = dict[str, Any]
) -> None:
    """Makes results durable, all or none, in place of older ones; the arguments are those of `read_assessments`."""
    with ledger.transaction() as connection:
        _put(connection, model, assessment, results, kind)


def change_assessment(
    ledger: Ledger, model: str, assessment: str, mask: Mask, change: Callable[[Any], Any], kind: Any = dict[str, Any]
) -> Any:
    """Put a result in the place of the one that it is made from, and return it; nobody else writes meanwhile.

    Args:
        ledger: Where.
        model: The dense model's fingerprint.
        assessment: The assessment's fingerprint.
        mask: Whose result.
        change: Gives the new result. It is given the old one; None if there is none.
        kind: The type of a result.
    """
    with ledger.transaction() as connection:
        result = change(read_assessments(ledger, model, assessment, [mask], kind).get(mask))
        _put(connection, model, assessment, {mask: result}, kind)
    return result


def _put(connection: sqlite3.Connection, model: str, assessment: str, results: Mapping[Mask, Any], kind: Any) -> None:
    rows = [(model, str(mask), assessment, to_record(result, kind)) for mask, result in results.items()]
    connection.executemany(
        "INSERT OR REPLACE INTO assessments VALUES (?, ?, ?, ?, ?)", [(*row, checksum(*row)) for row in rows]
    )
