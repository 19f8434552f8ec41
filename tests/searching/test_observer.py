"""Observers that pass events on."""

import re
from typing import get_args
from unittest.mock import Mock

import pytest
from typing_extensions import override

from raysearch.searching.events import (
    AssessmentProgressed,
    Event,
    RecordingProgressed,
    SearchEnded,
    WarningRaised,
)
from raysearch.searching.observer import Observer, Observers, Prefixed


class Listener(Observer):
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @override
    def on_event(self, event: Event) -> None:
        self.events.append(event)


def test_only_assessment_lines_and_warnings_have_a_prefix() -> None:
    listener = Listener()
    observer = Prefixed("mask {3}: ", listener)
    observer.assessing("step 1")
    observer.warn("too fast")
    observer.recording("written")
    assert listener.events == [
        AssessmentProgressed("mask {3}: step 1"),
        WarningRaised("mask {3}: too fast"),
        RecordingProgressed("written"),
    ]


def test_every_event_reaches_the_method_of_its_name_in_all_observers() -> None:
    for event_class in get_args(Event):
        name = "on" + re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", event_class.__name__)
        event = Mock(spec=event_class)
        handlers = [Mock(), Mock()]
        observers = []
        for handler in handlers:
            observer = Observer()
            setattr(observer, name, handler)
            observers.append(observer)
        Observers(*observers).on_event(event)
        for handler in handlers:
            handler.assert_called_once_with(event)


def test_an_event_can_be_given_by_keywords_and_a_warning_is_one_of_python() -> None:
    assert SearchEnded(result=None, failure="x") == SearchEnded(None, "x", False)
    with pytest.warns(UserWarning, match="^too fast$") as caught:
        Observer().warn("too fast")
    assert caught[0].filename == __file__, "it names the caller"
