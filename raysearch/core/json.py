"""Values as JSON, and back: a class is written and read as itself, by its fields."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, TypeAdapter

from raysearch.errors import redacted

_T = TypeVar("_T")


def to_json(value: Any, kind: Any = None) -> str:
    """Return a dataclass or plain values as JSON text that `from_json` reads; `kind` is the type, if not the class."""
    return json.dumps(_plain(value, kind, round_trip=True))


def to_record(value: Any, kind: Any = None) -> str:
    """Return what `to_json` does, with all secrets replaced: what the ledger keeps."""
    return json.dumps(redacted(_plain(value, kind, round_trip=True)))


def without_secrets(value: _T) -> _T:
    """Return a dataclass with all secrets in its texts replaced."""
    return from_json(type(value), to_record(value))


def from_json(kind: type[_T], text: str) -> _T:
    """Return the value of a type that `to_json` has written."""
    known: Any = kind
    return _adapter(known).validate_python(json.loads(text))


def plain(value: Any, kind: Any = None) -> Any:
    """Return a value as ``--json`` prints it: with what its class computes, null for what is not finite, no secrets."""
    return redacted(_plain(value, kind, round_trip=False))


def _plain(value: Any, kind: Any, *, round_trip: bool) -> Any:
    known: Any = type(value) if kind is None else kind
    return finite(_adapter(known).dump_python(value, mode="json", round_trip=round_trip, warnings=False))


def finite(value: Any) -> Any:
    """Return nested dicts and lists in which infinite numbers and NaNs are null, as JSON has no word for them."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number_of(value: float | None) -> float:
    """Return a number that `finite` may have made null."""
    return math.nan if value is None else value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _exact(value: float, info: SerializationInfo) -> float | str | None:
    if math.isfinite(value):
        return value
    return str(value) if info.round_trip else None  # JSON has no word for it


#: A number that may be infinite: null in what is printed, a text in what is read again.
Number = Annotated[float, BeforeValidator(number_of), PlainSerializer(_exact, when_used="json")]

#: A number that comes back as NaN if it was not finite.
NumberOrNan = Annotated[float, BeforeValidator(number_of)]
