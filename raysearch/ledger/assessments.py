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
    """Return the name of an assessment, 32 hexadecimal digits.

    Args:
        identity: Everything that the result depends on besides model and mask, as JSON values.
    """
    return digest(identity, 32)


def read_assessments(
    ledger: Ledger, model: str, assessment: str, masks: Iterable[Mask], kind: Any = dict[str, Any]
) -> dict[Mask, Any]:
    """Read the results of masks.

    Args:
        ledger: The ledger.
        model: The fingerprint of the dense model.
        assessment: The assessment's name, see `assessment_fingerprint`.
        masks: The masks.
        kind: The type of a result.

    Returns:
        The result of each mask that has one.

    Raises:
        UserError: The ledger cannot be read, or a row is damaged.
    """
    by_text = {str(mask): mask for mask in masks}
    condition = "model = ? AND assessment = ? AND mask IN (SELECT value FROM json_each(?))"
    rows = ledger.rows("assessments", condition, model, assessment, json.dumps([*by_text]))
    return {by_text[text]: from_json(kind, result) for _, text, _, result in rows}


def assessments_with(ledger: Ledger, model: str, key: str) -> list[tuple[Mask, dict[str, Any]]]:
    """Return a model's results that contain a key, of all assessments.

    Args:
        ledger: The ledger.
        model: The fingerprint of the dense model.
        key: A key of the result.

    Returns:
        Pairs of mask and result; a mask with several assessments has several.

    Raises:
        UserError: The ledger cannot be read, or a row is damaged.
    """
    rows = ledger.rows(
        "assessments", "model = ? AND instr(result, ?) ORDER BY assessment, mask", model, json.dumps(key)
    )
    results = [(Mask.parse(text), json.loads(result)) for _, text, _, result in rows]
    return [(mask, result) for mask, result in results if isinstance(result, dict) and key in result]


def write_assessment(
    ledger: Ledger, model: str, assessment: str, results: Mapping[Mask, Any], kind: Any = dict[str, Any]
) -> None:
    """Write results, all or none; they replace older ones.

    Args:
        ledger: The ledger.
        model: The fingerprint of the dense model.
        assessment: The assessment's name, see `assessment_fingerprint`.
        results: The results by mask.
        kind: The type of a result.

    Raises:
        UserError: The ledger cannot be written.
    """
    rows = [(model, str(mask), assessment, to_record(result, kind)) for mask, result in results.items()]
    with ledger.transaction() as connection:
        put(connection, "assessments", rows, "REPLACE")


def change_assessment(
    ledger: Ledger, model: str, assessment: str, mask: Mask, change: Callable[[Any], Any], kind: Any = dict[str, Any]
) -> Any:
    """Replace a result by one that is computed from it, in one transaction.

    Args:
        ledger: The ledger.
        model: The fingerprint of the dense model.
        assessment: The assessment's name, see `assessment_fingerprint`.
        mask: The mask.
        change: Returns the new result of the old one, which is None if the mask has none yet.
        kind: The type of a result.

    Returns:
        The new result.

    Raises:
        UserError: The ledger cannot be written.
    """
    with ledger.transaction() as connection:
        result = change(read_assessments(ledger, model, assessment, [mask], kind).get(mask))
        put(connection, "assessments", [(model, str(mask), assessment, to_record(result, kind))], "REPLACE")
    return result
