"""What goes wrong on the user's side, said in one sentence each.

The command line prints the sentence and exits with code 2; from Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: the message names the argument, its value and the remedy."""


class UnsupportedModelError(UserError):
    """The model is not a decoder whose layers run one after another."""


class EvaluationError(Exception):
    """Something could not be evaluated and the search cannot go on without it: the message carries the cause."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Ends an error message with the nearest known name, or with all of them.

    Args:
        given: What the user wrote.
        known: The names that exist.

    Returns:
        ``"did you mean 'greedy'?"`` or ``"choose one of: beam, greedy"``.
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of: {', '.join(names)}" if names else "none exist"
