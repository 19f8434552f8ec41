"""The results of assessments: a row for each model, mask and assessment, with a value in JSON.

An assessment is named by a fingerprint of all that its result depends on besides model and mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raysearch.core.digest import digest
from raysearch.core.json import from_json, to_record
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger, put


def assessment_fingerprint(identity: Mapping[str, Any]) -> str:
    """Return an assessment's name: 32 hexadecimal digits of what it depends on, JSON values."""
    return digest(identity, 32)


def read_assessments(
    ledger: Ledger, model: str, assessment: str, masks: Iterable[Mask], kind: Any = dict[str, Any]
) -> dict[Mask, Any]:
    """Return the results of those masks that are known, of type `kind`; model and assessment are fingerprints."""
    by_text = {str(mask): mask for mask in masks}
    named = "model = ? AND assessment = ? AND mask IN (SELECT value FROM json_each(?))"
    rows = ledger.rows("assessments", named, model, assessment, json.dumps([*by_text]))
    return {by_text[text]: from_json(kind, result) for _, text, _, result in rows}


def assessments_with(ledger: Ledger, model: str, key: str) -> list[tuple[Mask, dict[str, Any]]]:
    """Return a model's results that have a key, by whatever assessment, each with its mask."""
    rows = ledger.rows(
        "assessments", "model = ? AND instr(result, ?) ORDER BY assessment, mask", model, json.dumps(key)
    )
    found = [(Mask.parse(text), json.loads(result)) for _, text, _, result in rows]
    return [(mask, result) for mask, result in found if isinstance(result, dict) and key in result]


def write_assessment(
    ledger: Ledger, model: str, assessment: str, results: Mapping[Mask, Any], kind: Any = dict[str, Any]
) -> None:
    """Make results durable, all or none, in place of older ones; the arguments are those of `read_assessments`."""
    rows = [(model, str(mask), assessment, to_record(result, kind)) for mask, result in results.items()]
    with ledger.transaction() as connection:
        put(connection, "assessments", rows, "REPLACE")


def change_assessment(
    ledger: Ledger, model: str, assessment: str, mask: Mask, change: Callable[[Any], Any], kind: Any = dict[str, Any]
) -> Any:
    """Put a result in the place of the one that it is made from, and return it; nobody else writes meanwhile.

    `change` is given the old one, or None if there is none; the other arguments are those of `read_assessments`.
    """
    with ledger.transaction() as connection:
        result = change(read_assessments(ledger, model, assessment, [mask], kind).get(mask))
        put(connection, "assessments", [(model, str(mask), assessment, to_record(result, kind))], "REPLACE")
    return result
