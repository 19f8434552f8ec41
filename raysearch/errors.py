"""What goes wrong on the user's side, said in one sentence each.

The command line prints the sentence and exits with code 2; from Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from raysearch.redaction import redact


class _OneSentence(Exception):
    """A message for people, without the secrets of whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UserError(_OneSentence):
    """A mistake the user can mend: the message names the argument, its value and the remedy."""


class UnsupportedModelError(UserError):
    """The model is not a decoder whose layers run one after another."""


class EvaluationError(_OneSentence):
    """Something could not be evaluated and the search cannot go on without it: the message carries the cause."""


def first_line(error: BaseException) -> str:
    """What a library's error begins with, for the middle of a sentence; its last line too, where the first says only
    what kind of error it is (``Validation error for field 'hidden_size':``); its name, where it says nothing.
    """
    said = _lines(repr(error) if isinstance(error, KeyError) else str(error))
    if not said:
        return type(error).__name__
    return " ".join(said[:1] + said[-1:] if said[0].endswith(":") and said[1:] else said[:1]).rstrip(".")


def last_line(error: BaseException) -> str:
    """What an error ends with: of one from another process, whose message is a traceback, the cause."""
    said = _lines(str(error))
    return said[-1] if said else "no message"


def what_failed(error: Exception) -> str:
    """What the operating system says, ``No space left on device``; of another error, all that it says."""
    return getattr(error, "strerror", None) or str(error).rstrip(".")


def _lines(said: str) -> list[str]:
    return [" ".join(line.split()) for line in said.strip().splitlines()]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Ends an error message with the nearest known name, or with all of them.

    Args:
        given: What the user wrote.
        known: The names that exist.

    Returns:
        ``"did you mean 'greedy'?"`` or ``"choose one of: beam, greedy"``.
    """
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(given.casefold(), folded, n=1, cutoff=0.6)
    if near:
        return f"did you mean {folded[near[0]]!r}?"
    return f"choose one of: {', '.join(names)}" if names else "none exist"
