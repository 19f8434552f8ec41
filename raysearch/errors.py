"""Errors that the user can correct, one sentence each.

The command line prints the sentence and exits with code 2. In Python they are ordinary exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from raysearch.text.redaction import redact

P = ParamSpec("P")
T = TypeVar("T")


class _OneSentence(Exception):
    """An error whose message is redacted."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UserError(_OneSentence):
    """Mistakes that the user can correct: each sentence names the argument, its value and the remedy.

    Args:
        sentences: A sentence for each mistake; they are the lines of the message.
    """

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = tuple(map(redact, sentences))


class Mistakes:
    """Collects the mistakes of a command, to report all of them at once.

    mistakes = Mistakes()
    with mistakes:
        rows = read_rows()
    with mistakes:
        draw = read_draw()
    mistakes.raise_if_any()
    """

    def __init__(self) -> None:
        self._errors: list[UserError] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Collect a `UserError`, so that the next step still runs."""
        if isinstance(error, UserError):
            self._errors.append(error)
        return isinstance(error, UserError)

    def add(self, *sentences: str) -> None:
        """Add mistakes.

        Args:
            sentences: See `UserError`.
        """
        self._errors.append(UserError(*sentences))

    @property
    def sentences(self) -> list[str]:
        """The sentences of all mistakes, each once."""
        return [*dict.fromkeys(sentence for error in self._errors for sentence in error.sentences)]

    def raise_if_any(self) -> None:
        """Raise all mistakes as one `UserError`; an error that has all of them is raised as it is."""
        sentences = tuple(self.sentences)
        for error in self._errors:
            raise error if error.sentences == sentences else UserError(*sentences)


def within(where: str, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Call a step, and put the key of its section before each of its mistakes.

    Args:
        where: The key of the section.
        step: The function to call.
        values: Its positional arguments.
        named: Its named arguments.

    Returns:
        The return value of the step.

    Raises:
        UserError: The step has raised a `UserError`.
    """
    try:
        return step(*values, **named)
    except UserError as error:
        raise UserError(*(f"{where}: {sentence}" for sentence in error.sentences)) from error


class UnsupportedModelError(UserError):
    """The model is not a decoder whose layers run one after another."""


class EvaluationError(_OneSentence):
    """An evaluation that the search needs has failed; the message gives the cause."""
