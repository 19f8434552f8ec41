"""Runs one search with its tracker and, for a search by budget, its meter of speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysearch.api.tracked import tracker_for
from raysearch.ledger.ledger import opened
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import find_search

if TYPE_CHECKING:
    from raysearch.searching.recommend import SpeedMeter
    from raysearch.searching.result import SearchResult
    from raysearch.searching.spec import SearchSpec
    from raysearch.tracking.options import TrackingOptions


def run_tracked_search(
    spec: SearchSpec, tracking: TrackingOptions, observer: Observer, resumed_id: str | None = None
) -> SearchResult:
    """Run a search, and record it.

    Args:
        spec: The search.
        tracking: Where to record it.
        observer: Receives the progress.
        resumed_id: The id that the search must have, if it is resumed by its id.

    Returns:
        The result of the search, which the ledger contains.

    Raises:
        UserError: The specification does not fit the model, the data or the machine.
        EvaluationError: An evaluation failed.
    """
    from raysearch.searching.run import run_search

    tracker = tracker_for(tracking, observer)
    result = run_search(spec, observer, tracker, resumed_id, speed_meter_for(spec, observer))
    if result.staged is not None and tracking.type != "none":
        from raysearch.tracking.sync import publish_stages  # imports MLflow

        with opened(spec.evaluation.ledger) as ledger:
            publish_stages(find_search(ledger, result.search_id), ledger, tracking, observer.warn)
    return result


def speed_meter_for(spec: SearchSpec, observer: Observer) -> SpeedMeter | None:
    """Return the meter of speeds for a search by budget; None for a search without a budget.

    Args:
        spec: The search.
        observer: Receives the progress.

    Returns:
        The meter, which measures masks when it is called; or None.

    Raises:
        UserError: The options of the speeds cannot be measured.
    """
    if spec.budget is None:
        return None
    from raysearch.assessment.assess import speed_meter

    return speed_meter(spec, observer)
