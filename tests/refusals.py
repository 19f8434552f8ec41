"""Many cases of one refusal, checked in one test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from raysearch.errors import UserError


def assert_refused(call: Callable[..., object], cases: Iterable[tuple[Any, str]]) -> None:
    """Assert that a call refuses each case in one line.

    Args:
        call: What is called.
        cases: Keyword arguments (or one positional argument) and how the message begins, or a regular expression that
            it matches.
    """
    wrong = []
    for argument, message in cases:
        try:
            call(**argument) if isinstance(argument, dict) else call(argument)
        except UserError as error:
            said = str(error)
            if not (said.startswith(message) or re.search(message, said)) or "\n" in said:
                wrong.append(f"{argument}: {said}")
        else:
            wrong.append(f"{argument} was accepted")
    assert not wrong, "\n".join(wrong)
