"""Writes Python values as ``key=value`` overrides."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raysearch.configuration.merge import groups_of
from raysearch.configuration.parsing import AXES, quoted
from raysearch.configuration.parts import OBJECTS, values_of
from raysearch.errors import UserError


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as ``key=value`` overrides; a mapping holds the keys inside a group.

    ``{"remove": 5, "data": {"path": "a.txt"}}`` becomes ``remove=5`` and ``data.path='a.txt'``. Text stays text, even
    if it looks like a number. A searcher or an objective becomes a whole section: ``searcher={type: beam, …}``.

    Raises:
        UserError: A value is of a type that no key accepts.
    """
    groups = groups_of()
    overrides: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or key in groups):
            overrides += _section_overrides(f"{key}.", value)
        elif key in groups and isinstance(value, str | os.PathLike):
            overrides.append(f"{key}={os.fspath(value)}")
        else:
            overrides.append(_override(key, value))
    return overrides


def _section_overrides(prefix: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and f"{key}." == AXES:
            yield from _section_overrides(AXES, value)
        elif prefix == AXES:  # parsed as YAML, which includes JSON
            if name in OBJECTS and isinstance(value, Mapping):
                value = {label: _axis_value(name, item) for label, item in value.items()}
            yield f"{key}={json.dumps(_plain(key, value), ensure_ascii=False)}"
        else:
            yield _override(key, value)


def _axis_value(name: str, item: Any) -> Any:
    """Return an item of an axis, an object as the override that describes it."""
    return shlex.quote(_override(name, item)) if _is_object(item) else item


def _override(key: str, value: Any) -> str:
    if key in OBJECTS and _is_object(value):
        value = values_of(value)
    return f"{key}={_in_hydras_grammar(_plain(key, value))}"


def _is_object(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _in_hydras_grammar(value: Any) -> str:
    """Return a plain value in Hydra's grammar: keys have no quotes, and special characters in them are escaped."""
    if isinstance(value, dict):
        keys = [re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", key) for key in value]
        texts = map(_in_hydras_grammar, value.values())
        return f"{{{','.join(f'{key}: {text}' for key, text in zip(keys, texts, strict=True))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydras_grammar, value))}]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _plain(key: str, value: Any) -> Any:
    """Convert to JSON's types: a path to text; a mask, a set or an array to a list; a NumPy number to a number."""

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
