"""Options: the types of their fields say which values they take, and a value that is none of these is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from raysearch.core.formatting import as_typed
from raysearch.errors import UserError, did_you_mean

#: What is expected, where pydantic says it in the words of Python.
_EXPECTED = {
    **dict.fromkeys(("sequence_str", "is_instance_of"), "a valid list"),
    **dict.fromkeys(("dataclass_type", "dataclass_exact_type"), "a valid dictionary"),
}

#: Of random numbers.
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Options:
    """A dataclass of options, which refuses values beyond the limits of their types: a `Literal`, a `PositiveInt`."""

    section: ClassVar[str]  #: of the configuration that they stand in, for messages

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, kind in _limited(own).items():
            checked(kind, f"{self.section}.{name}", getattr(self, name))


@cache
def _limited(options: Any) -> dict[str, Any]:
    hints = get_type_hints(options, include_extras=True)
    return {one.name: hints[one.name] for one in dataclasses.fields(options) if _is_limited(hints[one.name])}


def _is_limited(kind: Any) -> bool:
    return get_origin(kind) in (Annotated, Literal) or any(map(_is_limited, get_args(kind)))


def checked(expected: Any, name: str, value: Any) -> Any:
    """Return a value of the expected type; refuse any other with a `UserError`."""
    try:
        return _adapter(expected).validate_python(value, strict=True)
    except ValidationError as error:
        wanted = dict.fromkeys(
            _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be "))
            for problem in error.errors()
        )
        remedy = _nearest(value, error)
        if "a valid string" in wanted:
            remedy = f"; where text reads like something else, quote it twice: {name}=\"'{as_typed(value)}'\""
        elif isinstance(value, str) and (unquoted := _read(value)) != value:
            with suppress(ValidationError):
                _adapter(expected).validate_python(unquoted, strict=True)
                remedy = f"; drop the quotes around it: write {name}={value}"
        if {"a valid list", "a valid integer"} & {*wanted}:
            listed = _listed(value)
            for meant in ([[listed]], [listed], listed):
                with suppress(ValidationError):
                    _adapter(expected).validate_python(meant, strict=True)
                    remedy = f"; write {name}={as_typed(meant)}" if meant != value else remedy
        raise UserError(f"{name}={as_typed(value)} should be {' or '.join(wanted)}{remedy}") from error


def _listed(value: Any) -> Any:
    """Return a value with what people write for layers as lists: ``{3,5}`` as ``[3,5]``, ``[1..3]`` as ``[1,2,3]``."""
    if isinstance(value, str) and re.fullmatch(r"\{[0-9, ]*\}", value):
        return [int(number) for number in re.findall("[0-9]+", value)]
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for item in value:
        ends = re.fullmatch(r"([0-9]{1,3})\.\.([0-9]{1,3})", item) if isinstance(item, str) else None
        items += [_listed(item)] if ends is None else range(int(ends[1]), int(ends[2]) + 1)
    return items


def _read(text: str) -> Any:
    """Return what a text is without its quotes: a list, a number or such; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    return TypeAdapter(expected, config=ConfigDict(allow_inf_nan=False))


def _nearest(value: Any, error: ValidationError) -> str:
    """Return which of the words that are expected is near, to follow a sentence."""
    expected = " ".join(problem.get("ctx", {}).get("expected", "") for problem in error.errors())
    near = did_you_mean(value, re.findall(r"'(.*?)'", expected)) if isinstance(value, str) else ""
    return f"; {near}" if near.startswith("did") else ""
