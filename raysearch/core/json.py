"""Converts dataclasses and plain values to JSON and back, by the fields of their classes."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, TypeAdapter

from raysearch.text.redaction import redacted

_T = TypeVar("_T")


def to_json(value: Any, kind: Any = None) -> str:
    """Return a dataclass or a plain value as JSON text that `from_json` reads.

    Args:
        value: The value.
        kind: The type of the value; None for its class.

    Returns:
        The JSON text.
    """
    return json.dumps(_plain(value, kind, round_trip=True))


def to_record(value: Any, kind: Any = None) -> str:
    """Return the JSON text of a value for the ledger: that of `to_json`, with all secrets replaced.

    Args:
        value: The value.
        kind: The type of the value; None for its class.

    Returns:
        The JSON text.
    """
    return json.dumps(redacted(_plain(value, kind, round_trip=True)))


def without_secrets(value: _T) -> _T:
    """Return a dataclass with all secrets in its texts replaced."""
    return from_json(type(value), to_record(value))


def from_json(kind: type[_T], text: str) -> _T:
    """Return the value that `to_json` has written.

    Args:
        kind: The type of the value.
        text: The JSON text.

    Returns:
        An instance of the type.
    """
    value_type: Any = kind  # a cached function needs a hashable argument, which mypy does not see in type[_T]
    return _adapter(value_type).validate_python(json.loads(text))


def plain(value: Any, kind: Any = None) -> Any:
    """Return a value as ``--json`` prints it: computed fields included, null for non-finite numbers, no secrets.

    Args:
        value: The value.
        kind: The type of the value; None for its class.

    Returns:
        Mappings, lists, texts, numbers, booleans and None.
    """
    return redacted(_plain(value, kind, round_trip=False))


def _plain(value: Any, kind: Any, *, round_trip: bool) -> Any:
    value_type: Any = type(value) if kind is None else kind
    return finite(_adapter(value_type).dump_python(value, mode="json", round_trip=round_trip, warnings=False))


def finite(value: Any) -> Any:
    """Return nested dicts and lists with null in place of infinite numbers and NaNs, which JSON does not support."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number_of(value: float | None) -> float:
    """Return a number, NaN if `finite` has replaced it by null."""
    return math.nan if value is None else value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _exact(value: float, info: SerializationInfo) -> float | str | None:
    if math.isfinite(value):
        return value
    return str(value) if info.round_trip else None  # JSON does not support such numbers


#: A number that may be infinite: printed as null, and written as a text that can be read again.
Number = Annotated[float, BeforeValidator(number_of), PlainSerializer(_exact, when_used="json")]

#: A number that is read as NaN if it was not finite.
NumberOrNan = Annotated[float, BeforeValidator(number_of)]
