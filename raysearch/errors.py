"""Errors that the user can correct, one sentence each, and the redaction of secrets from records and messages.

The command line prints the sentence and exits with code 2; from Python they are ordinary exceptions.

A secret is recognised in one of four ways: it is part of an address (``https://user:secret@host``), it has a name such
as ``token`` or ``api_key``, it looks like one (``hf_…``), or it is the value of an environment variable with such a
name. It is replaced, not encrypted, so it must be given again where it is needed again.
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
        sentences: One for each mistake; they are the lines of the message.
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
        """Take a `UserError`, so that the next step is tried all the same."""
        if isinstance(error, UserError):
            self.errors.append(error)
        return isinstance(error, UserError)

    def attempt(self, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T | None:
        """Return what a step gives; None where it has a mistake."""
        with self:
            return step(*values, **named)
        return None

    def tell(self) -> None:
        """Raise what was collected as one `UserError`, if there is anything.

        A value that another key repeats is reported once: ``seed=-1 …``, not ``data.seed=-1 …`` as well.
        """
        sentences = dict.fromkeys(sentence for error in self.errors for sentence in error.sentences)
        kept = [one for one in sentences if not any(one.endswith(f".{other}") for other in sentences)]
        if self.errors:
            raise next((error for error in self.errors if error.sentences == tuple(kept)), UserError(*kept))


def within(where: str, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Call a step, and put the key of its section before each of its mistakes."""
    try:
        return step(*values, **named)
    except UserError as error:
        raise UserError(*(f"{where}: {sentence}" for sentence in error.sentences)) from error


def together(*checks: Callable[[], object], **steps: Callable[[], Any]) -> dict[str, Any]:
    """Call all checks and steps and return the steps' results by name; all their mistakes are reported at once."""
    mistakes = Mistakes()
    for check in checks:
        mistakes.attempt(check)
    found = {name: mistakes.attempt(step) for name, step in steps.items()}
    mistakes.tell()
    return found


class UnsupportedModelError(UserError):
    """The model is not a decoder whose layers run one after another."""


class EvaluationError(_OneSentence):
    """An evaluation that the search needs has failed; the message gives the cause."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, for the middle of a sentence.

    The last line is added where the first ends in a colon (``Validation error for field 'hidden_size':``); an error
    without a message gives its name.
    """
    said = _lines(repr(error) if isinstance(error, KeyError) else str(error))
    if not said:
        return type(error).__name__
    return " ".join(said[:1] + said[-1:] if said[0].endswith(":") and said[1:] else said[:1]).rstrip(".")


def last_line(error: BaseException) -> str:
    """Return the last line of an error: the cause, where the message is a traceback from another process."""
    said = _lines(str(error)) or ["no message"]
    return next((line for line in said if "running low on memory" in line), said[-1])  # which Ray's advice follows


def what_failed(error: Exception) -> str:
    """Return the message of the operating system, ``No space left on device``; the whole message of other errors."""
    return getattr(error, "strerror", None) or str(error).rstrip(".")


def _lines(said: str) -> list[str]:
    return [" ".join(line.split()) for line in said.strip().splitlines()]


_MOST_NAMES = 30


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or all of them, as the end of an error message; of many keys, the sections.

    Args:
        given: The user's text.
        known: The names that exist. A section that it shares with all of them is not compared.

    Returns:
        ``"did you mean 'greedy'?"`` or ``"choose one of: beam, greedy"``.
    """
    names, section = sorted(known), given[: given.rfind(".") + 1]
    section = section if all(name.startswith(section) for name in names) else ""
    folded = {name.removeprefix(section).casefold(): name for name in names}
    near = difflib.get_close_matches(given.removeprefix(section).casefold(), folded, n=1, cutoff=0.6)
    if near:
        return f"did you mean {folded[near[0]]!r}?"
    if len(names) > _MOST_NAMES:
        names = sorted({name.removeprefix(section).partition(".")[0] for name in names})
    more = f" … ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
    return f"choose one of: {', '.join(names[:_MOST_NAMES])}{more}" if names else "none exist"


HIDDEN = "***"

_NAME = (
    r"(?:\w*(?:password|passwd|passphrase|passcode|secret|signature)|(?:\w*[_.-])?(?:token|credentials?|pwd|"
    r"(?:api|access|private|account)[_-]?key))"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_QUERY = re.compile(
    rf"{_NAME}|sig|sas|key|auth|odbc_connect|x-amz-(?:security-token|credential|signature)", re.IGNORECASE
)
_PORT = r"""(?!\d+(?:[/?#"',;)\]}>]|$))"""  # http://host:5000/path@v2 has none
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
    return _redact(text, _known())


def redacted(value: Any) -> Any:
    """Return nested plain values with all secrets in texts and keys replaced, and all texts under names of secrets."""
    return _redacted(value, _known())


def hidden_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a configuration whose values were redacted."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from hidden_keys(value, f"{prefix}{key}.")
        elif HIDDEN in str(value):
            yield f"{prefix}{key}"


def secrets_of_address(address: str) -> set[str]:
    """Return the password of an address and the values of its query that are secret, as typed and as decoded.

    User and password end at the last ``@``, so a password may hold any character; libraries that end it earlier name
    what follows, so its parts are returned too. An ODBC connection string in a query is secret as a whole.
    """
    scheme, separator, rest = address.strip().partition("://")
    if not separator or not re.fullmatch(r"[a-zA-Z][\w+.-]*", scheme):
        return set()
    userinfo, at, _ = rest.rpartition("@")
    found = {userinfo.partition(":")[2]} if re.match(_USER, address.strip(), re.IGNORECASE) else set()
    if at and scheme in ("http", "https") and not re.search("[/:]", userinfo):
        found = {userinfo}  # a token
    for key, value in parse_qsl(rest.partition("?")[2].partition("#")[0].replace("+", "%2B")):
        found |= {value} if _QUERY.fullmatch(key) else set()
    found |= {part for one in found for part in re.split("[/@#?]", one)}
    return {form for one in found if one for form in _forms(one)}


def _forms(secret: str) -> tuple[str, ...]:
    plain = unquote(secret)
    return secret, plain, quote(plain, safe=""), quote(plain)


@functools.lru_cache(maxsize=4096)  # a record of 20,000 trials has few texts, but has each many times
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


def _known() -> tuple[str, ...]:
    """Return the secrets that the command's words and environment name, longest first, without ordinary words."""
    return _known_in(tuple(os.environ.items()), tuple(sys.argv[1:]))


@functools.lru_cache(maxsize=4)
def _known_in(variables: tuple[tuple[str, str], ...], words: tuple[str, ...]) -> tuple[str, ...]:
    values = {value for name, value in variables if _NAMED.fullmatch(name) and name != "PWD"}  # the shell's folder
    texts = [*words, *(value for _, value in variables)]
    addresses = (match[0] for text in texts if "://" in text and (match := _ANY_ADDRESS.search(text)))
    values = values.union(*map(secrets_of_address, addresses))
    secrets = [one for one in values if len(one) >= 16 or (len(one) >= 8 and any(map(str.isdigit, one)))]
    return tuple(sorted(secrets, key=lambda one: (-len(one), one)))
