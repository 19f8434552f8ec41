"""Finds secrets in texts, and redacts them from records and messages.

A secret is recognised by one of four rules: it is part of an address (``https://user:secret@host``); it has a name such
as ``token`` or ``api_key``; it has the form of a token (``hf_…``); or it is the value of an environment variable with
such a name. A configuration with a secret is refused (`raysearch.configuration.secret_values`). So redaction is for
the secrets of the environment, of messages of libraries, of names of files, and of rejected commands.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

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
#: A token in place of a user and a password: a name of 16 characters, or of 8 with a digit.
_ADDRESS_OF_TOKEN = re.compile(r"""(\bhttps?://)([^\s/@:'"]{16,}|(?=[^\s/@:'"]*\d)[^\s/@:'"]{8,})@""", re.IGNORECASE)
_VALUE = r"""(?:'[^']*'|"[^"]*"|\{[^}]*\}|[^\s&;,'"]+(?:[,'"]\w[^\s&;,'"]*)*)"""
_ASSIGNED = re.compile(rf"(?<!\w)({_NAME}=){_VALUE}", re.IGNORECASE)
_IN_QUERY = re.compile(rf"([?&](?:{_QUERY.pattern})=)[^\s&'\"]+", re.IGNORECASE)
_HEADER = re.compile(r"\b(Bearer|Basic(?= [\w+/.~-]*[\d=])) [\w+/=.~-]{8,}")  # a word is no header: Basic arithmetic
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


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is a secret: ``token``, ``api_key``, ``DB_PASSWORD``."""
    return _NAMED.fullmatch(name) is not None and name != "PWD"  # PWD is the shell's folder, not a password


def secret_in(text: str) -> str | None:
    """Return what the secret in a text is, for messages: ``a password or a token``; None if the text has no secret."""
    if redact(text) == text and not secrets_of_address(text):
        return None
    for name, value in os.environ.items():
        if is_secret_name(name) and value and value in text:
            return f"the value of {name}"
    return "a password or a token"


def secrets_of_address(address: str) -> set[str]:
    """Return the secrets of an address, as typed and as decoded: its password and the secret values of its query.

    The password ends at the last ``@``, so it may contain any character. Libraries that end it earlier print the rest
    in their messages, so the parts of the password are returned too. An ODBC connection string in a query is secret as
    a whole.
    """
    scheme, separator, rest = address.strip().partition("://")
    if not separator or not re.fullmatch(r"[a-zA-Z][\w+.-]*", scheme):
        return set()
    userinfo = rest.rpartition("@")[0]
    secrets = {userinfo.partition(":")[2]} if re.match(_USER, address.strip(), re.IGNORECASE) else set()
    if token := _ADDRESS_OF_TOKEN.match(address.strip()):
        secrets = {token[2]}
    for key, value in parse_qsl(rest.partition("?")[2].partition("#")[0].replace("+", "%2B")):
        if _QUERY.fullmatch(key):
            secrets.add(value)
    secrets |= {part for secret in secrets for part in re.split("[/@#?]", secret)}
    return {form for secret in secrets - {"", HIDDEN} for form in _forms(secret)}


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
    values = {value for name, value in variables if is_secret_name(name)}
    texts = [*arguments, *(value for _, value in variables)]
    addresses = (match[0] for text in texts if "://" in text and (match := _ANY_ADDRESS.search(text)))
    values = values.union(*map(secrets_of_address, addresses))
    secrets = [value for value in values if len(value) >= 16 or (len(value) >= 8 and any(map(str.isdigit, value)))]
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))
