"""Python values as the ``key=value`` words that they stand for."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from raysearch.config.compose import AXES, groups_of, quoted
from raysearch.errors import UserError

_KINDS = "give text, a number, a list or a mapping"


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as ``key=value`` words; a mapping stands for the keys inside a group.

    ``{"remove": 5, "data": {"path": "a.txt"}}`` becomes ``remove=5`` and ``data.path='a.txt'``. Text stays text, even
    where it reads like a number.

    Raises:
        UserError: A value is of a kind that no key takes.
    """
    choices = groups_of(None)
    words: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or key in choices):
            words += _section_words(f"{key}.", value)
        elif key in choices and isinstance(value, str | os.PathLike):
            words.append(f"{key}={os.fspath(value)}")
        else:
            words.append(_key_word(key, value))
    return words


def _in_hydras_grammar(value: Any) -> str:
    """Return a plain value as Hydra reads it: keys have no quotes, and special characters in them are escaped."""
    if isinstance(value, dict):
        keys = [re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", key) for key in value]
        pairs = zip(keys, map(_in_hydras_grammar, value.values()), strict=True)
        return f"{{{','.join(f'{key}: {written}' for key, written in pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydras_grammar, value))}]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _section_words(prefix: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and f"{prefix}{name}." == AXES:
            yield from _section_words(f"{prefix}{name}.", value)
        else:
            yield prefix + _key_word(name, value, json.dumps if prefix == AXES else _in_hydras_grammar)


def _key_word(key: str, value: Any, written: Callable[[Any], str] = _in_hydras_grammar) -> str:
    if isinstance(value, str | os.PathLike):
        return f"{key}={quoted(os.fspath(value))}"
    try:
        return f"{key}={written(json.loads(json.dumps(value, default=partial(_as_json, key))))}"
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{key}={reprlib.repr(value)} cannot be written down ({error}); {_KINDS}") from error


def _as_json(key: str, part: Any) -> Any:
    """Convert to JSON's types: a mask, a set or an array to a list, a NumPy number to a number."""
    if hasattr(part, "tolist"):
        return part.tolist()
    if isinstance(part, Collection) and not isinstance(part, bytes | bytearray):
        return list(part)
    raise UserError(f"{key}={reprlib.repr(part)} is a {type(part).__name__}; {_KINDS}")
