"""Reads the fields of a row that keys of the configuration name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from raysearch.errors import UserError
from raysearch.text.sentences import did_you_mean

_PLACEHOLDER = re.compile(r"\{([\w.]+(?:[ -]+[\w.]+)*)(\|\w+)?\}")  # columns of a table are often named in words
_FILTERS: dict[str, Callable[[str], str]] = {"capitalize": str.capitalize, "strip": str.strip}
_MISSING = object()  # in place of a value, which may be None


def take(row: Mapping[str, Any], key: str, field: str, where: str) -> Any:
    """Return the value of a field of a row.

    Args:
        row: The row's fields.
        key: The key of the configuration that names the field, for messages: ``question``.
        field: The name of the field; ``question.stem`` is ``stem`` in ``question``.
        where: The name of the row in messages.

    Returns:
        The value, which may be None: the field is there, but null.

    Raises:
        UserError: The row has no such field.
    """
    value = _find(row, field)
    if value is _MISSING:
        raise UserError(f"{where} has no data.{key}={field}; {did_you_mean(field, map(str, row))}")
    return value


def take_text(row: Mapping[str, Any], key: str, field: str, where: str) -> str:
    """Return the text in a field of a row.

    Args:
        row: See `take`, also for the other arguments.
        key: The key of the configuration that names the field.
        field: The name of the field.
        where: The name of the row in messages.

    Returns:
        The text, unchanged.

    Raises:
        UserError: The row has no such field, or the value is not a text.
    """
    value = take(row, key, field, where)
    if not isinstance(value, str):
        remedy = remedy_for(value, "name a field that holds text")
        raise UserError(f"{where} holds {kind_of(value)} in data.{key}={field}; {remedy}")
    return value


def take_answer(row: Mapping[str, Any], key: str, field: str, where: str) -> str:
    """Return the text or number in a field of a row, as text.

    Args:
        row: See `take`, also for the other arguments.
        key: The key of the configuration that names the field.
        field: The name of the field.
        where: The name of the row in messages.

    Returns:
        The text, which is never blank.

    Raises:
        UserError: The row has no such field, or the value is empty, or neither a text nor a number.
    """
    value = take(row, key, field, where)
    text = as_text(value)
    if text is None:
        remedy = remedy_for(value, "name a field of text or numbers")
        raise UserError(f"{where} holds {kind_of(value)} in data.{key}={field}; {remedy}")
    if not text.strip():
        raise UserError(f"{where} has an empty data.{key}={field}; fill it in, or leave the row out")
    return text


def as_text(value: Any) -> str | None:
    """Return a text or a number as text; None for any other value."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def remedy_for(value: Any, other_kind: str) -> str:
    """Return the remedy for a value of the wrong kind, to end an error message.

    Args:
        value: The value; null is a gap that the user can fill.
        other_kind: The remedy for all values but null.

    Returns:
        The last part of an error's sentence.
    """
    return "fill it in, or leave the row out" if value is None else other_kind


def kind_of(value: Any) -> str:
    """Return the kind of a value in the terms of JSON, such as ``null`` or ``a list``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def fill(template: str, row: Mapping[str, Any], where: str, into: str = "prompt", /, **keys: str) -> str:
    """Fill in the placeholders of a template: ``{field}``, ``{field|capitalize}`` and ``{field|strip}``.

    Other braces stay as they are.

    Args:
        template: The text with placeholders.
        row: The row's fields.
        where: The name of the row in messages.
        into: The key of the configuration that holds the template, for messages.
        keys: Placeholders that are keys of the configuration, with the field that each key names.

    Returns:
        The template with the text of each field in place of its placeholder.

    Raises:
        UserError: The row lacks a field, a value is neither a text nor a number, or a filter is unknown.
    """

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        filter_name = (match[2] or "").removeprefix("|")
        value = take(row, name, keys[name], where) if name in keys else _find(row, name)
        if value is _MISSING:
            raise UserError(f"{where} has no {name}, which data.{into} uses; {did_you_mean(name, map(str, row))}")
        text = as_text(value)
        if text is None:
            remedy = remedy_for(value, "use a field of text")
            raise UserError(f"{where} holds {kind_of(value)} in {name}, which data.{into} uses; {remedy}")
        if filter_name and filter_name not in _FILTERS:
            raise UserError(f"data.{into} has the unknown filter {match[0]}; {did_you_mean(filter_name, _FILTERS)}")
        return _FILTERS[filter_name](text) if filter_name else text

    return _PLACEHOLDER.sub(replacement, template)


def check_prompt(template: str) -> None:
    """Refuse a prompt that has text but no ``{field}``, or that has an escaped line break."""
    if "\\n" in template:
        raise UserError(
            f"data.prompt={template} has a backslash and an n; for a line break type $'data.prompt=…\\n…' with $ and "
            "quotes, or write the key in a YAML file"
        )
    if template and not _PLACEHOLDER.search(template):
        raise UserError(f"data.prompt={template!r} uses no field; name one in braces, such as {{question}}")


def _find(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, which may be in a field of objects; `_MISSING` if there is none."""
    if field in row:
        return row[field]
    key, dot, inner_field = field.partition(".")
    inner = row.get(key)
    return _find(inner, inner_field) if dot and isinstance(inner, Mapping) else _MISSING
