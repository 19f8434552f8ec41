"""Many cheap cases in one test, which then lists those that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

_Case = TypeVar("_Case")


def assert_each(cases: Iterable[_Case], check: Callable[[_Case], object]) -> None:
    """Assert that a check passes for each case, and list all for which it does not."""
    wrong = []
    for case in cases:
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{case}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
