"""Overrides of a command: texts ``key=value``, as on the command line, and values that Python code gives for keys."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hydra.core.override_parser.types import Quote, QuotedString

from raysearch.configuration.parts import OBJECTS, groups_of, values_of
from raysearch.errors import UserError

AXES = "study.grid."  #: the prefix of the axes of a study, whose names the user chooses


@dataclass(frozen=True)
class PythonOverride:
    """A value that Python code gives for a key. Its text is for messages, and for commands that people see.

    Args:
        key: The dotted key.
        value: The value, of JSON's types.
    """

    key: str
    value: Any

    def __str__(self) -> str:
        """Return the text ``key=value`` that sets the same value on the command line."""
        if self.key.startswith(AXES):  # parsed as YAML, which includes JSON
            return f"{self.key}={json.dumps(self.value, ensure_ascii=False)}"
        return f"{self.key}={_in_hydras_grammar(self.value)}"


Override: TypeAlias = str | PythonOverride


def key_of(override: Override) -> str:
    """Return the key of an override: ``data.samples`` of ``data.samples=8``."""
    return override.key if isinstance(override, PythonOverride) else override.partition("=")[0]


def section_of(override: Override) -> str:
    """Return the first part of an override's key: ``data`` of ``data.samples=8``."""
    return key_of(override).partition(".")[0]


def quoted(value: str) -> str:
    """Return any text quoted for Hydra's grammar."""
    text: str = QuotedString(value, Quote.single).with_quotes()
    return text


def as_overrides(values: Mapping[str, Any]) -> list[Override]:
    """Return keyword arguments as overrides; a mapping holds the keys inside a group.

    ``{"remove": 5, "data": {"path": "a.txt"}}`` becomes overrides of ``remove`` and ``data.path``. A searcher or an
    objective becomes a whole section: ``searcher={type: beam, …}``. The name of a file of a group stays text.

    Raises:
        UserError: A value is of a type that no key accepts.
    """
    groups = groups_of()
    overrides: list[Override] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or key in groups):
            overrides += _section_overrides(f"{key}.", value)
        elif key in groups and isinstance(value, str | os.PathLike):
            overrides.append(f"{key}={os.fspath(value)}")
        else:
            overrides.append(_override(key, value))
    return overrides


def _section_overrides(prefix: str, values: Mapping[str, Any]) -> Iterator[PythonOverride]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and f"{key}." == AXES:
            yield from _section_overrides(AXES, value)
        elif prefix == AXES and name in OBJECTS and isinstance(value, Mapping):
            yield _override(key, {label: _axis_value(name, item) for label, item in value.items()})
        else:
            yield _override(key, value)


def _axis_value(name: str, item: Any) -> Any:
    """Return an item of an axis, an object as the text of the override that describes it."""
    return shlex.quote(str(_override(name, item))) if _is_object(item) else item


def _override(key: str, value: Any) -> PythonOverride:
    if key in OBJECTS and _is_object(value):
        value = values_of(value)
    return PythonOverride(key, _plain(key, value))


def _is_object(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


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


def _in_hydras_grammar(value: Any) -> str:
    """Return a plain value in Hydra's grammar: keys have no quotes, and special characters in them are escaped."""
    if isinstance(value, dict):
        keys = [re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", key) for key in value]
        texts = map(_in_hydras_grammar, value.values())
        return f"{{{','.join(f'{key}: {text}' for key, text in zip(keys, texts, strict=True))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydras_grammar, value))}]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)
