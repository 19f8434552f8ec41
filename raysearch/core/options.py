"""Options: dataclasses that refuse values which do not fit the types of their fields."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from raysearch.errors import UserError
from raysearch.text.sentences import as_typed, did_you_mean

#: Texts that replace pydantic's description of the expected value where it uses terms of Python, by the type of error.
_EXPECTED = {
    **dict.fromkeys(("sequence_str", "is_instance_of"), "a valid list"),
    **dict.fromkeys(("dataclass_type", "dataclass_exact_type"), "a valid dictionary"),
}

#: A seed of random numbers.
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Options:
    """A dataclass of options, which refuses values beyond the limits of their types: a `Literal`, a `PositiveInt`.

    Attributes:
        section: The section of the configuration that holds the options, for messages.
    """

    section: ClassVar[str]

    def __post_init__(self) -> None:
        options_class: Any = type(self)
        for name, kind in _limited(options_class).items():
            checked(kind, f"{self.section}.{name}", getattr(self, name))


@cache
def _limited(options_class: Any) -> dict[str, Any]:
    """Return the fields whose types have limits, with their types."""
    hints = get_type_hints(options_class, include_extras=True)
    names = [field.name for field in dataclasses.fields(options_class)]
    return {name: hints[name] for name in names if _is_limited(hints[name])}


def _is_limited(kind: Any) -> bool:
    return get_origin(kind) in (Annotated, Literal) or any(map(_is_limited, get_args(kind)))


def checked(expected: Any, name: str, value: Any) -> Any:
    """Return a value if it has the expected type.

    Args:
        expected: The type.
        name: The dotted key of the value, for messages.
        value: The value.

    Raises:
        UserError: The value has another type, or is beyond the limits of the type.
    """
    try:
        return _adapter(expected).validate_python(value, strict=True)
    except ValidationError as error:
        expectations = dict.fromkeys(
            _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be "))
            for problem in error.errors()
        )
        remedy = _nearest(value, error)
        if "a valid string" in expectations:
            remedy = f"; where text reads like something else, quote it twice: {name}=\"'{as_typed(value)}'\""
        elif isinstance(value, str) and (unquoted := _unquoted(value)) != value:
            with suppress(ValidationError):
                _adapter(expected).validate_python(unquoted, strict=True)
                remedy = f"; drop the quotes around it: write {name}={value}"
        if {"a valid list", "a valid integer"} & {*expectations}:
            listed = _with_lists(value)
            for candidate in ([[listed]], [listed], listed):
                with suppress(ValidationError):
                    _adapter(expected).validate_python(candidate, strict=True)
                    remedy = f"; write {name}={as_typed(candidate)}" if candidate != value else remedy
        raise UserError(f"{name}={as_typed(value)} should be {' or '.join(expectations)}{remedy}") from error


def _with_lists(value: Any) -> Any:
    """Return a value with other notations of layers as lists: ``{3,5}`` as ``[3,5]``, ``[1..3]`` as ``[1,2,3]``."""
    if isinstance(value, str) and re.fullmatch(r"\{[0-9, ]*\}", value):
        return [int(number) for number in re.findall("[0-9]+", value)]
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for item in value:
        ends = re.fullmatch(r"([0-9]{1,3})\.\.([0-9]{1,3})", item) if isinstance(item, str) else None
        items += [_with_lists(item)] if ends is None else range(int(ends[1]), int(ends[2]) + 1)
    return items


def _unquoted(text: str) -> Any:
    """Return the value of a text that is JSON, such as a list or a number; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    return TypeAdapter(expected, config=ConfigDict(allow_inf_nan=False))


def _nearest(value: Any, error: ValidationError) -> str:
    """Return a suggestion of an expected value that is similar, as the end of a sentence; empty if there is none."""
    expected = " ".join(problem.get("ctx", {}).get("expected", "") for problem in error.errors())
    near = did_you_mean(value, re.findall(r"'(.*?)'", expected)) if isinstance(value, str) else ""
    return f"; {near}" if near.startswith("did") else ""
