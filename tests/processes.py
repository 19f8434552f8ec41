"""Processes seen from outside: what they have started, and whether they have come so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil
import pytest

T = TypeVar("T")

#: In the environment of a process and of all that it starts.
MARK = "RAYSEARCH_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """The living processes that inherited a mark, such as Ray's, with their command lines."""
    living = psutil.process_iter(["cmdline", "environ"])
    return {process.pid: _line(process) for process in living if (process.info["environ"] or {}).get(MARK) == mark}


def descendants(ancestor: int) -> dict[int, str]:
    """The processes that a process has started, and those that they have, with their command lines."""
    family = psutil.Process(ancestor).children(recursive=True)
    return {process.pid: _line(process) for process in psutil.process_iter(["cmdline"]) if process in family}


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())  # none where it has ended meanwhile, or is somebody else's


def wait_for(
    what: Callable[[], T], within_s: float, why: Callable[[], object] = lambda: "", every_s: float = 0.05
) -> T:
    """Returns what something gives as soon as that is true."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s; {why()}")
        time.sleep(every_s)
    return value
