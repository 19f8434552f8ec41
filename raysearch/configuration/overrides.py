"""Python values as the ``key=value`` words that they stand for."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raysearch.configuration.merge import AXES, groups_of, quoted
from raysearch.configuration.parts import OBJECTS, values_of
from raysearch.errors import UserError


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as ``key=value`` words; a mapping stands for the keys inside a group.

    ``{"remove": 5, "data": {"path": "a.txt"}}`` becomes ``remove=5`` and ``data.path='a.txt'``. Text stays text, even
    where it reads like a number. A searcher or an objective becomes a whole section: ``searcher={type: beam, …}``.

    Raises:
        UserError: A value is of a kind that no key takes.
    """
    groups = groups_of()
    words: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or key in groups):
            words += _of_section(f"{key}.", value)
        elif key in groups and isinstance(value, str | os.PathLike):
            words.append(f"{key}={os.fspath(value)}")
        else:
            words.append(_word(key, value))
    return words


def _of_section(prefix: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and f"{key}." == AXES:
            yield from _of_section(AXES, value)
        elif prefix == AXES:  # read as YAML, of which JSON is a part
            if name in OBJECTS and isinstance(value, Mapping):
                value = {
                    label: shlex.quote(_word(name, one)) if _is_object(one) else one for label, one in value.items()
                }
            yield f"{key}={json.dumps(_plain(key, value), ensure_ascii=False)}"
        else:
            yield _word(key, value)


def _word(key: str, value: Any) -> str:
    if key in OBJECTS and _is_object(value):
        value = values_of(value)
    return f"{key}={_in_hydras_grammar(_plain(key, value))}"


def _is_object(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _in_hydras_grammar(value: Any) -> str:
    """Return a plain value as Hydra reads it: keys have no quotes, and special characters in them are escaped."""
    if isinstance(value, dict):
        keys = [re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", key) for key in value]
        pairs = zip(keys, map(_in_hydras_grammar, value.values()), strict=True)
        return f"{{{','.join(f'{key}: {written}' for key, written in pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydras_grammar, value))}]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _plain(key: str, value: Any) -> Any:
    """Convert to JSON's types: a path to text, a mask, a set or an array to a list, a NumPy number to a number."""

    def convert(part: Any) -> Any:
        if isinstance(part, os.PathLike):
            return os.fspath(part)
        return part.tolist() if hasattr(part, "tolist") else list(part)

    try:
        return json.loads(json.dumps(value, default=convert))
    except (TypeError, ValueError) as error:
        kinds = "text, a number, a list or a mapping"
        if key in groups_of():
            kinds = f"text, the name of a file in conf/{key}/, or a mapping of its keys"
        if key in OBJECTS:
            kinds += f", or an object of a dataclass, as {key}=Mine()"
        raise UserError(f"{key}={reprlib.repr(value)} cannot be written down ({error}); give {kinds}") from error
