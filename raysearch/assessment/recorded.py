"""What searches' masks were assessed at, as MLflow is told it: kept in the ledger, so that it can be told again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysearch.core.mask import Mask
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.searches import SearchRecord
from raysearch.search.observer import Observer

_TOLD = "told"  # among the ledger's assessments, where others are named by a fingerprint


def tell_assessments(
    ledger: Ledger,
    runs: Sequence[SearchRecord],
    named: Callable[[Mask], Mapping[str, float]],
    observer: Observer,
) -> None:
    """Puts what searches' masks were assessed at on record, and on the searches' MLflow runs.

    Args:
        ledger: Where the searches are recorded.
        runs: Searches that have found something.
        named: Gives a mask's numbers by the names of MLflow's metrics.
        observer: Gets the numbers, as does the tracker with it.
    """
    found = {run.search_id: named(_found(run)) for run in runs}
    for run in runs:
        whole = {**told_assessments(ledger, run), **found[run.search_id]}
        write_assessment(ledger, _model(run), _TOLD, {_found(run): whole})
    observer.assessed([(run, found[run.search_id]) for run in runs])


def told_assessments(ledger: Ledger, run: SearchRecord) -> dict[str, Any]:
    """All that a search's mask was assessed at so far, by the names of MLflow's metrics."""
    return read_assessments(ledger, _model(run), _TOLD, [_found(run)]).get(_found(run), {})


def _found(run: SearchRecord) -> Mask:
    return Mask(tuple((run.result or {})["removed"]))


def _model(run: SearchRecord) -> str:
    fingerprint: str = (run.result or {})["fingerprints"]["model"]
    return fingerprint
