"""The assessed numbers of searches' masks, kept in the ledger by the names of MLflow's metrics, for a later sync."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raysearch.core.json import Number
from raysearch.core.mask import Mask
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.search.observer import Observer
from raysearch.search.record import SearchRecord

_ASSESSMENT = "recorded"  # among the ledger's assessments, where others are named by a fingerprint


def record_assessments(
    ledger: Ledger, searches: Sequence[SearchRecord], named: Callable[[Mask], Mapping[str, float]], observer: Observer
) -> None:
    """Put the assessed numbers of searches' masks on record, and give them to the observer.

    Args:
        ledger: Where the searches are recorded.
        searches: Searches that have found something.
        named: Returns a mask's numbers by the names of MLflow's metrics.
        observer: Gets the numbers; a tracker among them puts them on the searches' MLflow runs.
    """
    found = {search.search_id: named(search.found.mask) for search in searches}
    for search in searches:
        whole = {**recorded_assessments(ledger, search), **found[search.search_id]}
        write_assessment(ledger, _model(search), _ASSESSMENT, {search.found.mask: whole}, dict[str, Number])
    observer.assessed([(search, found[search.search_id]) for search in searches])


def recorded_assessments(ledger: Ledger, search: SearchRecord) -> dict[str, float]:
    """Return all assessed numbers of a search's mask so far, by the names of MLflow's metrics."""
    mask = search.found.mask
    known = read_assessments(ledger, _model(search), _ASSESSMENT, [mask], dict[str, Number])
    numbers: dict[str, float] = known.get(mask, {})
    return numbers


def _model(search: SearchRecord) -> str:
    return search.found.fingerprints["model"]
