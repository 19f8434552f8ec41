"""Validates values by types, and describes each mistake in a sentence with its key, its value and the remedy.

A section of the configuration is a dataclass whose fields are its keys. pydantic validates all of them at once and
lists the mistakes. It converts nothing: text that looks like a number is not a number.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError, WrapValidator
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticKnownError

from raysearch.core.paths import as_path
from raysearch.errors import UserError
from raysearch.text.sentences import as_typed, did_you_mean

T = TypeVar("T")

_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
#: Characters that stand in JSON for bytes of a file name that are not text in UTF-8. Python has surrogates for these
#: bytes, but JSON does not accept them. The characters are the last ones of Unicode for private use.
_STAND_INS = {0xDC80 + byte: 0x10FF80 + byte for byte in range(128)}
_SURROGATES = {stand_in: surrogate for surrogate, stand_in in _STAND_INS.items()}
#: Texts that replace pydantic's description of the expected value where it uses terms of Python or JSON, by the type of
#: the error.
_EXPECTED = {
    **dict.fromkeys(("list_type", "sequence_str", "is_instance_of"), "a valid list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "dataclass_exact_type"), "a valid dictionary"),
}


def validated(
    kind: type[T],
    section: str,
    values: Mapping[str, Any],
    mistakes: Sequence[str] = (),
    absent: Collection[str] = (),
) -> T:
    """Build a dataclass from the keys and values of a section.

    Args:
        kind: The dataclass.
        section: The dotted key of the section, for messages; empty for the whole configuration.
        values: The section's keys with JSON values.
        mistakes: The sentences of earlier mistakes, which are reported together with the new ones.
        absent: The keys that are missing because of these mistakes.

    Returns:
        The instance of the dataclass.

    Raises:
        UserError: All mistakes: unknown and missing keys, values of other types or beyond their limits, and what the
            dataclasses refuse.
    """
    try:
        instances: list[T] = _adapter(cast(Hashable, kind)).validate_json(_as_json([values]))
    except ValidationError as error:
        raise UserError(*mistakes, *_sentences_of(error, kind, section, values, absent)) from error
    except UserError as error:  # the values contradict each other
        raise UserError(*mistakes, *error.sentences) from error
    if mistakes:
        raise UserError(*mistakes)
    return instances[0]


def checked(expected: Any, key: str, value: Any) -> Any:
    """Return a value if it has the expected type.

    Args:
        expected: The type.
        key: The dotted key of the value, for messages.
        value: The value.

    Returns:
        The value as an instance of the type.

    Raises:
        UserError: The value has another type, or is beyond the limits of the type.
    """
    try:
        return _adapter(expected).validate_python([value])[0]
    except ValidationError as error:
        raise UserError(_sentence_of(expected, key, value, error.errors(include_url=False))) from error


def unknown_key(key: str, known_keys: Collection[str]) -> str:
    """Return the sentence for a key that does not exist.

    Args:
        key: The dotted key.
        known_keys: The last parts of the keys that exist in its section.

    Returns:
        The sentence, with a similar key if there is one.
    """
    return f"{key} is not a key of this configuration; {did_you_mean(key.rpartition('.')[2], known_keys)}"


def no_value(key: str) -> str:
    """Return the sentence for a key that needs a value and has none."""
    return f"{key} has no value; give {key}=…"


def _collected(value: Any, build: Callable[[Any], Any]) -> Any:
    """Build a part of the configuration, so that its `UserError` is one of the mistakes that pydantic lists."""
    try:
        return build(_with_surrogates(value))
    except UserError as error:
        raise PydanticCustomError("refused", "refused", {"sentences": error.sentences}) from error


#: Annotates a field with a dataclass that raises a `UserError` for values that contradict each other.
SECTION = WrapValidator(_collected)


def built_by(build: Callable[[Any], Any]) -> PlainValidator:
    """Return the annotation of a field that a function builds from the field's value.

    Args:
        build: The function; it may raise a `UserError`.
    """
    return PlainValidator(partial(_collected, build=build), json_schema_input_type=Any)


def _usable_path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise PydanticKnownError("string_type")
    try:
        return as_path("", _with_surrogates(value))
    except UserError as error:
        raise PydanticCustomError("unusable_path", "unusable", {"sentence": str(error)}) from error


#: The type of a field with the path of a file or a folder, with the user's home in place of ``~``.
UserPath = Annotated[Path, PlainValidator(_usable_path, json_schema_input_type=Any)]


def _as_json(values: Sequence[Any]) -> str:
    return json.dumps(values, ensure_ascii=False).translate(_STAND_INS)


def _with_surrogates(value: Any) -> Any:
    """Return a value that was read by pydantic from the text of `_as_json`, with its surrogates."""
    if isinstance(value, str):
        return value.translate(_SURROGATES)
    if isinstance(value, list):
        return [_with_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_with_surrogates(key): _with_surrogates(item) for key, item in value.items()}
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter for a list with one value of this type; an adapter for a dataclass takes no configuration."""
    return TypeAdapter(list[kind], config=_CONFIG)


@dataclass(frozen=True)
class _Place:
    """A key of the configuration.

    Args:
        key: The dotted key.
        expected: The type of its value.
        value: Its value.
        known_keys: The keys of its section.
    """

    key: str
    expected: Any
    value: Any
    known_keys: Collection[str] = ()


def _sentences_of(
    error: ValidationError, kind: type, section: str, values: Mapping[str, Any], absent: Collection[str]
) -> list[str]:
    """Return a sentence for each mistake; several errors of one value, such as of a union, are one mistake."""
    sentences: list[str] = []
    unfit: dict[str, tuple[_Place, list[ErrorDetails]]] = {}
    for problem in error.errors(include_url=False):
        place = _place_of(problem, _Place(section, kind, values))
        if place is None or (problem["type"] == "missing" and place.key in absent):
            continue
        match problem["type"]:
            case "refused":
                sentences += problem["ctx"]["sentences"]
            case "unusable_path":
                sentences.append(f"{place.key}{problem['ctx']['sentence']}")  # this begins with the value: ``= is …``
            case "missing":
                sentences.append(no_value(place.key))
            case "unexpected_keyword_argument":
                sentences.append(unknown_key(place.key, place.known_keys))
            case _:
                unfit.setdefault(place.key, (place, []))[1].append(problem)
    return sentences + [
        _sentence_of(place.expected, place.key, place.value, problems) for place, problems in unfit.values()
    ]


def _place_of(problem: ErrorDetails, place: _Place) -> _Place | None:
    """Return the key that an error belongs to.

    Args:
        problem: pydantic's error. Its location has keys, and the names of the types of a union; what follows is inside
            the value of a key, such as an index.
        place: The dataclass that was validated.

    Returns:
        The key; None for an error of a type of a union that the value is not meant to have.
    """
    for step in problem["loc"][1:]:  # after the index in the list of `_adapter`
        section_class = _dataclass_in(place.expected)
        if section_class is None or not isinstance(place.value, Mapping):
            break
        if step == section_class.__name__:
            continue
        types = _types_of_keys(section_class)
        if step not in types and problem["type"] != "unexpected_keyword_argument":
            return None
        key = f"{place.key}.{step}".removeprefix(".")
        place = _Place(key, types.get(str(step)), place.value.get(step), types)
    return place


def _dataclass_in(expected: Any) -> Any:
    """Return the dataclass that a type is, or that is one of its alternatives; None if there is none."""
    if isinstance(expected, type) and dataclasses.is_dataclass(expected):
        return expected
    alternatives = get_args(expected) if get_origin(expected) in (Annotated, Union, UnionType) else ()
    return next(filter(None, map(_dataclass_in, alternatives)), None)


@cache
def _types_of_keys(section_class: Any) -> dict[str, Any]:
    hints = get_type_hints(section_class, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(section_class) if field.init}


def _sentence_of(expected: Any, key: str, value: Any, problems: Sequence[ErrorDetails]) -> str:
    """Return the sentence for a value that is not of its type."""
    expectations = dict.fromkeys(
        _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be ")) for problem in problems
    )
    remedy = _nearest(value, problems)
    if "a valid string" in expectations:
        remedy = f"; where text reads like something else, quote it twice: {key}=\"'{as_typed(value)}'\""
    elif isinstance(value, str) and (unquoted := _unquoted(value)) != value and _fits(expected, unquoted):
        remedy = f"; drop the quotes around it: write {key}={value}"
    if {"a valid list", "a valid integer"} & {*expectations}:
        listed = _with_lists(value)
        for candidate in ([[listed]], [listed], listed):
            if candidate != value and _fits(expected, candidate):
                remedy = f"; write {key}={as_typed(candidate)}"
    return f"{key}={as_typed(value)} should be {' or '.join(expectations)}{remedy}"


def _fits(expected: Any, value: Any) -> bool:
    """Return whether a JSON value has a type."""
    with suppress(ValidationError):
        _adapter(expected).validate_json(_as_json([value]))
        return True
    return False


def _with_lists(value: Any) -> Any:
    """Return a value with other notations of layers as lists: ``{3,5}`` as ``[3,5]``, ``[1..3]`` as ``[1,2,3]``."""
    if isinstance(value, str) and re.fullmatch(r"\{[0-9, ]*\}", value):
        return [int(number) for number in re.findall("[0-9]+", value)]
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for item in value:
        ends = re.fullmatch(r"([0-9]{1,3})\.\.([0-9]{1,3})", item) if isinstance(item, str) else None
        if ends is None:
            items.append(_with_lists(item))
        else:
            items += range(int(ends[1]), int(ends[2]) + 1)
    return items


def _unquoted(text: str) -> Any:
    """Return the value of a text that is JSON, such as a list or a number; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nearest(value: Any, problems: Sequence[ErrorDetails]) -> str:
    """Return a suggestion of an expected value that is similar, as the end of a sentence; empty if there is none."""
    expected = " ".join(problem.get("ctx", {}).get("expected", "") for problem in problems)
    near = did_you_mean(value, re.findall(r"'(.*?)'", expected)) if isinstance(value, str) else ""
    return f"; {near}" if near.startswith("did") else ""
