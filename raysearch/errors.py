"""Errors that the user can correct, one sentence each.

The command line prints the sentence and exits with code 2. In Python they are ordinary exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
        seed = checked(int, "seed", given["seed"])
    remove = mistakes.attempt(checked, int, "remove", given["remove"])
    mistakes.tell()
    """

    def __init__(self) -> None:
        self.errors: list[UserError] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Collect a `UserError`, so that the next step still runs."""
        if isinstance(error, UserError):
            self.errors.append(error)
        return isinstance(error, UserError)

    def attempt(self, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T | None:
        """Return the result of a step; None if it raises a `UserError`, which is collected.

        Args:
            step: The function to call.
            values: Its positional arguments.
            named: Its named arguments.
        """
        with self:
            return step(*values, **named)
        return None

    def tell(self) -> None:
        """Raise all collected mistakes as one `UserError`, if there are any.

        A value that several keys contain is reported once: ``seed=-1 …``, not also ``data.seed=-1 …``.
        """
        sentences = dict.fromkeys(sentence for error in self.errors for sentence in error.sentences)
        distinct = tuple(
            sentence
            for sentence in sentences
            if not any(sentence.endswith(f".{shorter_sentence}") for shorter_sentence in sentences)
        )
        if self.errors:
            raise next((error for error in self.errors if error.sentences == distinct), UserError(*distinct))


def within(where: str, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Call a step, and put the key of its section before each of its mistakes.

    Args:
        where: The key of the section.
        step: The function to call.
        values: Its positional arguments.
        named: Its named arguments.

    Raises:
        UserError: The step has raised a `UserError`.
    """
    try:
        return step(*values, **named)
    except UserError as error:
        raise UserError(*(f"{where}: {sentence}" for sentence in error.sentences)) from error


def together(*checks: Callable[[], object], **steps: Callable[[], Any]) -> dict[str, Any]:
    """Call all checks and steps, and report all their mistakes at once.

    Args:
        checks: Functions that may raise a `UserError`.
        steps: Functions by name that return a value or raise a `UserError`.

    Returns:
        The results of the steps by name.

    Raises:
        UserError: A check or a step has raised a `UserError`.
    """
    mistakes = Mistakes()
    for check in checks:
        mistakes.attempt(check)
    results = {name: mistakes.attempt(step) for name, step in steps.items()}
    mistakes.tell()
    return results


class UnsupportedModelError(UserError):
    """The model is not a decoder whose layers run one after another."""


class EvaluationError(_OneSentence):
    """An evaluation that the search needs has failed; the message gives the cause."""
