"""The assessments of masks in the form of trackers: numbers and answers, stored in the ledger for a later sync."""

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
from raysearch.searching.events import AnswersGenerated, MasksAssessed
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SearchRecord

#: The names of these results in the ledger; the names of other results are fingerprints.
_NUMBERS = "recorded numbers"
_ANSWERS = "recorded answers"


@dataclass(frozen=True)
class _Answers:
    """The fingerprints under which the ledger has two models' answers to a task, and the right answers."""

    dense: str
    pruned: str
    expected: tuple[str, ...]


def record_assessments(
    ledger: Ledger, searches: Sequence[SearchRecord], assessments: Assessments, observer: Observer
) -> None:
    """Record the assessed numbers and the answers of the masks of searches, and pass them to the observer.

    Args:
        ledger: An open ledger.
        searches: The searches, whose masks were assessed.
        assessments: The results of these masks and of the dense model.
        observer: Receives all numbers and answers.
    """
    for search in searches:
        _add(ledger, search, _ANSWERS, _answers(assessments, search.finished_result.mask), _Answers)
    record_numbers(ledger, [(search, assessments.named(search.finished_result.mask)) for search in searches], observer)
    answers_by_search = [(search, recorded_answers(ledger, search)) for search in searches]
    observer.on_event(AnswersGenerated([(search, answers) for search, answers in answers_by_search if answers]))


def record_numbers(
    ledger: Ledger, numbers_by_search: Sequence[tuple[SearchRecord, Mapping[str, float]]], observer: Observer
) -> None:
    """Add numbers of the masks of searches to those recorded before, and pass them to the observer.

    Args:
        ledger: An open ledger.
        numbers_by_search: Each search with its numbers, by the names of MLflow's metrics.
        observer: Receives the numbers.
    """
    for search, numbers in numbers_by_search:
        _add(ledger, search, _NUMBERS, numbers, Number)
    observer.on_event(MasksAssessed(numbers_by_search))


def recorded_assessments(ledger: Ledger, search: SearchRecord) -> dict[str, float]:
    """Return all recorded numbers of a search's mask, by the names of MLflow's metrics.

    Args:
        ledger: An open ledger.
        search: The search.

    Returns:
        Each number by its metric's name: ``assess/…``. Empty if nothing was assessed.
    """
    return _recorded(ledger, search, _NUMBERS, Number)


def recorded_answers(ledger: Ledger, search: SearchRecord) -> dict[str, str]:
    """Return all recorded answers of a search's mask with the dense model's: by task, JSON Lines of one item each.

    Args:
        ledger: An open ledger.
        search: The search.

    Returns:
        The text of a JSON Lines file for each task. Empty if no answers were recorded.
    """
    by_task = {}
    for name, answers in _recorded(ledger, search, _ANSWERS, _Answers).items():
        dense = ledger.texts(answers.dense, Mask())
        pruned = ledger.texts(answers.pruned, search.finished_result.mask)
        items = examples(answers.expected, dense, pruned)
        by_task[name] = "".join(f"{json.dumps(item, ensure_ascii=False)}\n" for item in items)
    return by_task


def _answers(assessments: Assessments, mask: Mask) -> dict[str, _Answers]:
    dense = assessments.by_mask[Mask()]
    return {
        name: _Answers(dense[name].detail["fingerprint"], result.detail["fingerprint"], result.expected)
        for name, result in assessments.by_mask[mask].items()
        if result.expected
    }


def _recorded(ledger: Ledger, search: SearchRecord, name: str, kind: Any) -> dict[str, Any]:
    """Return the recorded values of a search's mask, each of a type, under a name of the ledger.

    There are none if the search's masks are repaired: those of the same mask are without its repair.
    """
    result = search.finished_result
    if result.settings.is_repaired:
        return {}
    mask = result.mask
    model = result.fingerprints["model"]
    values: dict[str, Any] = read_assessments(ledger, model, name, [mask], dict[str, kind]).get(mask, {})
    return values


def _add(ledger: Ledger, search: SearchRecord, name: str, new_values: Mapping[str, Any], kind: Any) -> None:
    """Add values to those that are recorded of a search's mask under a name of the ledger."""
    if new_values:
        mask = search.finished_result.mask
        model = search.finished_result.fingerprints["model"]
        change_assessment(ledger, model, name, mask, lambda values: {**(values or {}), **new_values}, dict[str, kind])
