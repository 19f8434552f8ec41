"""Observers that pass on what they are told."""

from __future__ import annotations

from typing_extensions import override

from raysearch.search.observer import Observer, Prefixed


def test_a_prefix_stands_before_lines_and_warnings_alone() -> None:
    told: list[str] = []

    class Listening(Observer):
        @override
        def assessing(self, line: str) -> None:
            told.append(line)

        @override
        def warn(self, message: str) -> None:
            told.append(message)

        @override
        def recording(self, line: str) -> None:
            told.append(line)

    observer = Prefixed("mask {3}: ", Listening())
    observer.assessing("step 1")
    observer.warn("too fast")
    observer.recording("written")
    assert told == ["mask {3}: step 1", "mask {3}: too fast", "written"]
