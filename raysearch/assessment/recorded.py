"""The assessments of masks as trackers take them: numbers and answers, kept in the ledger for a later sync."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.assessment.results import Assessments
from raysearch.core.json import Number
from raysearch.core.mask import Mask
from raysearch.generation.examples import examples
from raysearch.ledger.assessments import change_assessment, read_assessments
from raysearch.ledger.ledger import Ledger
from raysearch.searching.observer import Observer
from raysearch.searching.record import SearchRecord

#: In the ledger, where others are named by a fingerprint.
_NUMBERS, _ANSWERS = "recorded numbers", "recorded answers"


@dataclass(frozen=True)
class _Answers:
    """The fingerprints under which the ledger has two models' answers to a task, and the right answers."""

    dense: str
    pruned: str
    expected: tuple[str, ...]


def record_assessments(
    ledger: Ledger, searches: Sequence[SearchRecord], assessments: Assessments, observer: Observer
) -> None:
    """Put the assessed numbers and the answers of searches' masks on record, and give them to the observer."""
    for search in searches:
        _add(ledger, search, _ANSWERS, _answers(assessments, search.found.mask), _Answers)
    record_numbers(ledger, [(search, assessments.named(search.found.mask)) for search in searches], observer)
    observer.answered([(search, answers) for search in searches if (answers := recorded_answers(ledger, search))])


def record_numbers(
    ledger: Ledger, found: Sequence[tuple[SearchRecord, Mapping[str, float]]], observer: Observer
) -> None:
    """Put numbers, by MLflow's names, of searches' masks on record beside others, and give them to the observer."""
    for search, numbers in found:
        _add(ledger, search, _NUMBERS, numbers, Number)
    observer.assessed(found)


def recorded_assessments(ledger: Ledger, search: SearchRecord) -> dict[str, float]:
    """Return all assessed numbers of a search's mask so far, by the names of MLflow's metrics."""
    return _known(ledger, search, _NUMBERS, Number)


def recorded_answers(ledger: Ledger, search: SearchRecord) -> dict[str, str]:
    """Return all answers of a search's mask so far beside the dense model's: JSON Lines, an item each, by task."""
    found = {}
    for name, of in _known(ledger, search, _ANSWERS, _Answers).items():
        every = examples(of.expected, ledger.texts(of.dense, Mask()), ledger.texts(of.pruned, search.found.mask))
        found[name] = "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in every)
    return found


def _answers(assessments: Assessments, mask: Mask) -> dict[str, _Answers]:
    dense = assessments.by_mask[Mask()]
    return {
        name: _Answers(dense[name].detail["fingerprint"], result.detail["fingerprint"], result.expected)
        for name, result in assessments.by_mask[mask].items()
        if result.expected
    }


def _known(ledger: Ledger, search: SearchRecord, what: str, kind: Any) -> dict[str, Any]:
    """Return what the ledger has of a search's mask by name, each of a type."""
    mask, model = search.found.mask, search.found.fingerprints["model"]
    found: dict[str, Any] = read_assessments(ledger, model, what, [mask], dict[str, kind]).get(mask, {})
    return found


def _add(ledger: Ledger, search: SearchRecord, what: str, new: Mapping[str, Any], kind: Any) -> None:
    """Put something beside what the ledger has of a search's mask."""
    if new:
        mask, model = search.found.mask, search.found.fingerprints["model"]
        change_assessment(ledger, model, what, mask, lambda known: {**(known or {}), **new}, dict[str, kind])
