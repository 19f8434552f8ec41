"""Who watches what is started from Python."""

from __future__ import annotations

import reprlib
from typing import TypeVar

from raysearch.errors import UserError

_Observer = TypeVar("_Observer")


def observer_or(given: _Observer | None, silent: _Observer) -> _Observer:
    """Whoever watches, if it has ears for all that is told."""
    for name in () if given is None else dir(silent):
        if not name.startswith("_") and not hasattr(given, name):
            raise UserError(f"observer={reprlib.repr(given)} has no {name}; give a {type(silent).__name__} of your own")
    return given or silent
