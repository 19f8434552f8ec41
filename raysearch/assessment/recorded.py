"""What searches' masks were assessed at, as MLflow is told it: kept in the ledger, so that it can be told again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raysearch.core.json import Number
from raysearch.core.mask import Mask
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.search.observer import Observer
from raysearch.search.record import SearchRecord

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
    found = {run.search_id: named(run.found.mask) for run in runs}
    for run in runs:
        whole = {**told_assessments(ledger, run), **found[run.search_id]}
        write_assessment(ledger, _model(run), _TOLD, {run.found.mask: whole}, dict[str, Number])
    observer.assessed([(run, found[run.search_id]) for run in runs])


def told_assessments(ledger: Ledger, run: SearchRecord) -> dict[str, float]:
    """Return all that a search's mask was assessed at so far, by the names of MLflow's metrics."""
    mask = run.found.mask
    numbers: dict[str, float] = read_assessments(ledger, _model(run), _TOLD, [mask], dict[str, Number]).get(mask, {})
    return numbers


def _model(run: SearchRecord) -> str:
    return run.found.fingerprints["model"]
