"""Errors that the user can correct, one sentence each, and the redaction of secrets from records and messages.

The command line prints the sentence and exits with code 2. In Python they are ordinary exceptions.

A secret is recognised by one of four rules: it is part of an address (``https://user:secret@host``); it has a name such
as ``token`` or ``api_key``; it has the form of a token (``hf_…``); or it is the value of an environment variable with
such a name. It is replaced, not encrypted. So the user must pass it again to each command that needs it.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, unquote

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


_MOST_NAMES = 30


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return the name that is most similar to a text, or all names, as the end of an error message.

    Args:
        text: The user's text.
        names: The existing names. A section at the beginning of the text and of all names is not compared. Of more
            than 30 names, only the sections are listed.

    Returns:
        ``"did you mean 'greedy'?"`` or ``"choose one of: beam, greedy"``.
    """
    choices = sorted(names)
    section = text[: text.rfind(".") + 1]
    if not all(name.startswith(section) for name in choices):
        section = ""
    by_folded_name = {name.removeprefix(section).casefold(): name for name in choices}
    similar = difflib.get_close_matches(text.removeprefix(section).casefold(), by_folded_name, n=1, cutoff=0.6)
    if similar:
        return f"did you mean {by_folded_name[similar[0]]!r}?"
    if len(choices) > _MOST_NAMES:
        choices = sorted({name.removeprefix(section).partition(".")[0] for name in choices})
    more = f" … ({len(choices)} in all)" if len(choices) > _MOST_NAMES else ""
    return f"choose one of: {', '.join(choices[:_MOST_NAMES])}{more}" if choices else "none exist"


HIDDEN = "***"

_NAME = (
    r"(?:\w*(?:password|passwd|passphrase|passcode|secret|signature)|(?:\w*[_.-])?(?:token|credentials?|pwd|"
    r"(?:api|access|private|account)[_-]?key))"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_QUERY = re.compile(
    rf"{_NAME}|sig|sas|key|auth|odbc_connect|x-amz-(?:security-token|credential|signature)", re.IGNORECASE
)
_PORT = r"""(?!\d+(?:[/?#"',;)\]}>]|$))"""  # http://host:5000/path@v2 has a port and no password
_USER = (
    rf"""(?:\b(?:https?|ray)://[^\s/@:'"]*:{_PORT}|\b(?!(?:https?|ray):)[a-z][a-z0-9+.-]*://[^\s/@:'"]*:|"""
    r"""(?<![\w:/])//[^\s/@:'"]+:)"""
)
_ADDRESS = re.compile(rf"""({_USER})[^\s<>]*?@(?![^\s<>,;]*@)""", re.IGNORECASE)
_ANY_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)
_ADDRESS_OF_TOKEN = re.compile(r"(\bhttps?://)[^\s/@:'\"]+@", re.IGNORECASE)
_VALUE = r"""(?:'[^']*'|"[^"]*"|\{[^}]*\}|[^\s&;,'"]+(?:[,'"]\w[^\s&;,'"]*)*)"""
_ASSIGNED = re.compile(rf"(?<!\w)({_NAME}=){_VALUE}", re.IGNORECASE)
_IN_QUERY = re.compile(rf"([?&](?:{_QUERY.pattern})=)[^\s&'\"]+", re.IGNORECASE)
_HEADER = re.compile(r"\b(Bearer|Basic) [\w+/=.~-]{8,}")
_LOOKS = re.compile(
    r"(?:\b|(?<=_))(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"sk-[\w-]{20,}|dapi[0-9a-f]{32}|AKIA[0-9A-Z]{16})"
)


def redact(text: str) -> str:
    """Return the text with every recognised secret replaced by ``***``."""
    return _redact(text, _known_secrets())


def redacted(value: Any) -> Any:
    """Return nested plain values with every recognised secret replaced, in texts, in keys and under secret names."""
    return _redacted(value, _known_secrets())


def hidden_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a configuration whose values were redacted.

    Args:
        config: The configuration, or a section of it.
        prefix: The key of the section and a dot; empty for the whole configuration.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from hidden_keys(value, f"{prefix}{key}.")
        elif HIDDEN in str(value):
            yield f"{prefix}{key}"


def secrets_of_address(address: str) -> set[str]:
    """Return the secrets of an address, as typed and as decoded: its password and the secret values of its query.

    The password ends at the last ``@``, so it may contain any character. Libraries that end it earlier print the rest
    in their messages, so the parts of the password are returned too. An ODBC connection string in a query is secret as
    a whole.
    """
    scheme, separator, rest = address.strip().partition("://")
    if not separator or not re.fullmatch(r"[a-zA-Z][\w+.-]*", scheme):
        return set()
    userinfo, at, _ = rest.rpartition("@")
    secrets = {userinfo.partition(":")[2]} if re.match(_USER, address.strip(), re.IGNORECASE) else set()
    if at and scheme in ("http", "https") and not re.search("[/:]", userinfo):
        secrets = {userinfo}  # a token in place of a user and a password
    for key, value in parse_qsl(rest.partition("?")[2].partition("#")[0].replace("+", "%2B")):
        if _QUERY.fullmatch(key):
            secrets.add(value)
    secrets |= {part for secret in secrets for part in re.split("[/@#?]", secret)}
    return {form for secret in secrets if secret for form in _forms(secret)}


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as typed, decoded, and encoded with and without slashes."""
    decoded = unquote(secret)
    return secret, decoded, quote(decoded, safe=""), quote(decoded)


@functools.lru_cache(maxsize=4096)  # a record of 20,000 trials repeats few texts many times
def _redact(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _ADDRESS.sub(rf"\1{HIDDEN}@", text)
    text = _ADDRESS_OF_TOKEN.sub(rf"\1{HIDDEN}@", text)
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(rf"\1 {HIDDEN}", text)
    return _LOOKS.sub(HIDDEN, text)


def _redacted(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return _redact(value, secrets)
    if isinstance(value, Mapping):
        return {
            _redacted(key, secrets): HIDDEN
            if isinstance(item, str) and item and _NAMED.fullmatch(str(key))
            else _redacted(item, secrets)
            for key, item in value.items()
        }
    return [_redacted(item, secrets) for item in value] if isinstance(value, list | tuple) else value


def _known_secrets() -> tuple[str, ...]:
    """Return the secrets in the command line and in the environment, longest first, without ordinary words."""
    return _secrets_in(tuple(os.environ.items()), tuple(sys.argv[1:]))


@functools.lru_cache(maxsize=4)
def _secrets_in(variables: tuple[tuple[str, str], ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    # PWD is the shell's folder, not a password.
    values = {value for name, value in variables if _NAMED.fullmatch(name) and name != "PWD"}
    texts = [*arguments, *(value for _, value in variables)]
    addresses = (match[0] for text in texts if "://" in text and (match := _ANY_ADDRESS.search(text)))
    values = values.union(*map(secrets_of_address, addresses))
    secrets = [value for value in values if len(value) >= 16 or (len(value) >= 8 and any(map(str.isdigit, value)))]
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))
