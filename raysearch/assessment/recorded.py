"""What searches' masks were assessed at, as MLflow is told it: kept in the ledger, so that it can be told again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysearch.core.mask import Mask
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.searches import SearchRecord
from raysearch.tracking.options import TrackingOptions

_TOLD = "told"  # among the ledger's assessments, where others are named by a fingerprint


def tell_assessments(
    ledger: Ledger,
    tracking: TrackingOptions,
    runs: Sequence[SearchRecord],
    named: Callable[[Mask], Mapping[str, float]],
    warn: Callable[[str], None],
) -> None:
    """Puts what searches' masks were assessed at on record, and on the searches' MLflow runs.

    Args:
        ledger: Where the searches are recorded.
        tracking: Where they are recorded for people to look at.
        runs: Searches that have found something.
        named: Gives a mask's numbers by the names of MLflow's metrics.
        warn: Told in a sentence if MLflow cannot be written to.
    """
    found = {run.search_id: named(_found(run)) for run in runs}
    for run in runs:
        whole = {**told_assessments(ledger, run), **found[run.search_id]}
        write_assessment(ledger, _model(run), _TOLD, {_found(run): whole})
    tracking.record_assessments({run.mlflow_run_id: found[run.search_id] for run in runs}, warn)


def told_assessments(ledger: Ledger, run: SearchRecord) -> dict[str, Any]:
    """All that a search's mask was assessed at so far, by the names of MLflow's metrics."""
    return read_assessments(ledger, _model(run), _TOLD, [_found(run)]).get(_found(run), {})


def _found(run: SearchRecord) -> Mask:
    return Mask(tuple((run.result or {})["removed"]))


def _model(run: SearchRecord) -> str:
    fingerprint: str = (run.result or {})["fingerprints"]["model"]
    return fingerprint
