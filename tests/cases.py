"""Many cheap cases in one test, which then lists those that fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from raysearch.errors import UserError

_Case = TypeVar("_Case")


def assert_each(cases: Iterable[_Case], check: Callable[[_Case], object]) -> None:
    """Assert that a check passes for each case, and list all for which it does not."""
    wrong = []
    for case in cases:
        try:
            check(case)
        except Exception as error:
            wrong.append(f"{case}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def assert_refused(call: Callable[..., object], cases: Iterable[tuple[Any, str]]) -> None:
    """Assert that a call refuses each case with the right message.

    Args:
        call: What is called.
        cases: Keyword arguments (or one positional argument) and how the message begins, or a regular expression that
            it matches.
    """

    def check(case: tuple[Any, str]) -> None:
        argument, message = case
        try:
            call(**argument) if isinstance(argument, dict) else call(argument)
        except UserError as error:
            sentence = str(error)
            assert sentence.startswith(message) or re.search(message, sentence), sentence
        else:
            raise AssertionError("it was accepted")

    assert_each(cases, check)
