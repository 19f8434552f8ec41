"""Observers that pass on what they are told."""

from unittest.mock import Mock, call

from raysearch.search.observer import Observer, Prefixed


def test_a_prefix_stands_before_lines_and_warnings_alone() -> None:
    listening = Mock(spec=Observer)
    observer = Prefixed("mask {3}: ", listening)
    observer.assessing("step 1")
    observer.warn("too fast")
    observer.recording("written")
    told = [call.assessing("mask {3}: step 1"), call.warn("mask {3}: too fast"), call.recording("written")]
    assert listening.mock_calls == told
