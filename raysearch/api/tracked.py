"""Opens the tracker of a search or a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.api.location import StoreLocation
from raysearch.errors import UserError
from raysearch.searching.observer import Observer, Observers, Tracker

if TYPE_CHECKING:
    from raysearch.configuration.overrides import Override
    from raysearch.ledger.ledger import Ledger
    from raysearch.tracking.options import TrackingOptions


def tracker_for(tracking: TrackingOptions, observer: Observer) -> Tracker:
    """Return the tracker of these options.

    Args:
        tracking: Where to record.
        observer: Receives the tracker's warnings, and its progress while the caller waits for it.

    Returns:
        The tracker.
    """
    from raysearch.tracking.mlflow.tracker import open_tracker

    return open_tracker(tracking, observer.warn, observer.recording)


def tracked_observer(tracking: TrackingOptions, observer: Observer) -> Observer:
    """Return an observer that passes every event to the tracker of these options and to another observer.

    Args:
        tracking: Where to record.
        observer: The other observer.

    Returns:
        The observer that forwards each event, first to the tracker.
    """
    return Observers(tracker_for(tracking, observer), observer)


def recorded_tracking(config: Mapping[str, Any], location: StoreLocation, ledger: Ledger) -> TrackingOptions:
    """Return the tracking options of a recorded search or study.

    Args:
        config: Its configuration.
        location: Its store.
        ledger: The open ledger of the store.

    Returns:
        The options, with the present place of the store.

    Raises:
        UserError: The recorded options cannot be used.
    """
    from raysearch.configuration import build
    from raysearch.configuration.compose import with_tracking

    return build.tracking_options({**with_tracking(config, ()), **location.current_paths(config, ledger)})


def tracking_to_sync(
    name: str, config: Mapping[str, Any], overrides: Sequence[Override], location: StoreLocation, ledger: Ledger
) -> TrackingOptions:
    """Return the tracking options by which a recorded search or study is uploaded.

    Args:
        name: The search or the study, for messages: ``SEARCH=greedy-m5-3fa2c1d0``.
        config: Its configuration.
        overrides: ``tracking.key=value`` texts, for another place than the recorded one.
        location: Its store.
        ledger: The open ledger of the store.

    Returns:
        The options, which name a tracker.

    Raises:
        UserError: An override is not of ``tracking``, or the options name no place.
    """
    from raysearch.configuration.compose import with_tracking

    tracking = recorded_tracking(with_tracking(config, overrides), location, ledger)
    if tracking.type == "none":
        raise UserError(f"{name} was run with tracking=none; name a place: tracking=mlflow, and tracking.uri=…")
    return tracking
