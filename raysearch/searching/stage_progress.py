"""Shows the search of a stage as lines on the progress of the search that it is a part of."""

from __future__ import annotations

from typing_extensions import override

from raysearch.searching.events import Event, RoundEnded, RoundProgressed, SearchStarted, WarningRaised
from raysearch.searching.observer import Observer
from raysearch.text.numbers import count


class StageProgress(Observer):
    """Turns the events of a stage's search into lines for the observer of the whole search.

    Args:
        title: The title of the stage, with which each line begins.
        observer: The observer of the whole search.
    """

    def __init__(self, title: str, observer: Observer) -> None:
        self._title = title
        self._observer = observer
        self._round = 1

    @override
    def on_event(self, event: Event) -> None:
        match event:
            case SearchStarted(header):
                self._show(f"searching {header.n_remove} of the {header.n_layers} layers of {header.model}")
            case RoundProgressed(progress):
                if progress.waiting:
                    self._show(progress.waiting)
                else:
                    masks = count(progress.masks_planned, "mask")
                    share = progress.layer_forwards / max(progress.layer_forwards_planned, 1e-9)
                    self._show(f"round {self._round}, {share:.0%} of {masks}")
            case RoundEnded(summary):
                self._round = summary.round + 1
            case WarningRaised(message):
                self._observer.warn(f"{self._title}: {message}")

    def _show(self, line: str) -> None:
        self._observer.assessing(f"{self._title}: {line}")
