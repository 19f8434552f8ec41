"""Parts of sentences: the cause of an error, the name that a user may have meant, enumerations, values as typed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any

_MOST_NAMES = 30


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, for the middle of a sentence.

    If the first line ends in a colon (``Validation error for field 'hidden_size':``), the last line is added. If the
    error has no message, the result is the name of its class.
    """
    lines = _lines(repr(error) if isinstance(error, KeyError) else str(error))
    if not lines:
        return type(error).__name__
    if lines[0].endswith(":") and len(lines) > 1:
        return f"{lines[0]} {lines[-1]}".rstrip(".")
    return lines[0].rstrip(".")


def last_line(error: BaseException) -> str:
    """Return the last line of an error: the cause, if the message is a traceback from another process."""
    lines = _lines(str(error)) or ["no message"]
    # Ray puts advice after the line that reports a lack of memory.
    return next((line for line in lines if "running low on memory" in line), lines[-1])


def what_failed(error: Exception) -> str:
    """Return the message of the operating system, such as ``No space left on device``, or else the error's message."""
    return getattr(error, "strerror", None) or str(error).rstrip(".")


def _lines(message: str) -> list[str]:
    return [" ".join(line.split()) for line in message.strip().splitlines()]


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return the name that is most similar to a text, or all names, as the end of an error message.

    Args:
        text: The user's text.
        names: The existing names. Of more than 30 names, only the sections are listed.

    Returns:
        ``"did you mean 'greedy'?"`` or ``"choose one of: beam, greedy"``.
    """
    choices = sorted(names)
    similar = most_similar(text, choices)
    if similar is not None:
        return f"did you mean {similar!r}?"
    if len(choices) > _MOST_NAMES:
        section = _shared_section(text, choices)
        choices = sorted({name.removeprefix(section).partition(".")[0] for name in choices})
    more = f" … ({len(choices)} in all)" if len(choices) > _MOST_NAMES else ""
    return f"choose one of: {', '.join(choices[:_MOST_NAMES])}{more}" if choices else "none exist"


def most_similar(text: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a text; None if none is similar.

    Args:
        text: The user's text.
        names: The existing names. A section at the beginning of the text and of all names is not compared.

    Returns:
        One of `names`, or None.
    """
    choices = sorted(names)
    section = _shared_section(text, choices)
    by_folded_name = {name.removeprefix(section).casefold(): name for name in choices}
    similar = difflib.get_close_matches(text.removeprefix(section).casefold(), by_folded_name, n=1, cutoff=0.6)
    return by_folded_name[similar[0]] if similar else None


def _shared_section(text: str, names: Iterable[str]) -> str:
    """Return the section at the beginning of a text and of all names, with its dot; empty if they share none."""
    section = text[: text.rfind(".") + 1]
    return section if all(name.startswith(section) for name in names) else ""


def listed(items: Sequence[str], most: int = 6) -> str:
    """Return texts as an enumeration: ``a, b and c``.

    Args:
        items: The texts.
        most: The most items to show; the others are counted: ``a, b and 3 more``.

    Returns:
        The enumeration; empty without texts.
    """
    if len(items) > most:
        return ", ".join(items[: most - 1]) + f" and {len(items) - most + 1} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def capital(text: str) -> str:
    """Return a text with its first letter as a capital; the other letters do not change."""
    return text[:1].upper() + text[1:]


def as_typed(value: Any) -> str:
    """Return a value as the user writes it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
