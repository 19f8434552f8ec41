"""What masks were assessed at, as the ledger remembers it: one JSON object for each model, mask and assessment.

An assessment is named by a fingerprint of all that its result depends on besides model and mask.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from raysearch.core.mask import Mask
from raysearch.ledger.checksum import sealed_json
from raysearch.ledger.ledger import Ledger


def assessment_fingerprint(identity: Mapping[str, Any]) -> str:
    """Names an assessment by what it depends on, JSON values: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def read_assessments(ledger: Ledger, model: str, assessment: str, masks: Iterable[Mask]) -> dict[Mask, dict[str, Any]]:
    """The results of those masks that are known.

    Args:
        ledger: Where.
        model: The dense model's fingerprint.
        assessment: The assessment's fingerprint.
        masks: Which masks are asked for.
    """
    by_text = {str(mask): mask for mask in masks}
    rows = ledger.read(
        "SELECT mask, result FROM assessments WHERE model = ? AND assessment = ? "
        "AND mask IN (SELECT value FROM json_each(?))",
        (model, assessment, json.dumps(list(by_text))),
    )
    return {by_text[text]: ledger.json(result, model, text, assessment) for text, result in rows}


def write_assessment(ledger: Ledger, model: str, assessment: str, results: Mapping[Mask, Mapping[str, Any]]) -> None:
    """Makes results durable, all or none, in place of older ones."""
    with ledger.transaction() as connection:
        connection.executemany(
            "INSERT OR REPLACE INTO assessments VALUES (?, ?, ?, ?)",
            [
                (model, str(mask), assessment, sealed_json(result, model, str(mask), assessment))
                for mask, result in results.items()
            ],
        )
