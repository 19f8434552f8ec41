"""Results of assessments: found by a key that they contain, and refused if they are damaged."""

from __future__ import annotations

import pytest

from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger.assessments import assessments_with, write_assessment
from raysearch.ledger.ledger import Ledger
from tests.sentences import Sentences


@pytest.fixture
def measured(ledger: Ledger) -> Ledger:
    write_assessment(ledger, "model", "speed", {Mask.of(3): {"decode_s": [1.0]}, Mask(): {"decode_s": [2.0]}})
    write_assessment(ledger, "model", "text", {Mask.of(3): {"said": "decode_s", "of": {"decode_s": 1}}})
    write_assessment(ledger, "other", "speed", {Mask.of(4): {"decode_s": [3.0]}})
    return ledger


def test_results_are_found_by_a_key_that_they_contain(measured: Ledger) -> None:
    results = assessments_with(measured, "model", "decode_s")
    assert dict(results) == {Mask.of(3): {"decode_s": [1.0]}, Mask(): {"decode_s": [2.0]}}
    assert len(results) == 2


def test_a_result_that_was_changed_is_refused(measured: Ledger, sentences: Sentences) -> None:
    with measured.transaction() as connection:
        connection.execute("UPDATE assessments SET result = replace(result, '1.0', '9.0')")
    with sentences.refused(UserError):
        assessments_with(measured, "model", "decode_s")
