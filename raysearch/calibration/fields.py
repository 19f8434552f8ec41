"""The fields of a row, by the keys of the configuration that name them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from raysearch.errors import UserError, did_you_mean

_PLACEHOLDER = re.compile(r"\{([\w.]+(?:[ -]+[\w.]+)*)(\|\w+)?\}")  # columns of a table are often named in words
_FILTERS: dict[str, Callable[[str], str]] = {"capitalize": str.capitalize, "strip": str.strip}


def take(row: Mapping[str, Any], key: str, field: str, where: str) -> Any:
    """Return the value of a field, named by a key of the configuration; `where` names the row.

    ``question.stem`` is ``stem`` in ``question``. A field that is not there is refused.
    """
    found = _find(row, field)
    if found is None:
        raise UserError(f"{where} has no data.{key}={field}; {did_you_mean(field, map(str, row))}")
    return found[0]


def take_text(row: Mapping[str, Any], key: str, field: str, where: str) -> str:
    """Return the value of a field, as `take`, and refuse what is no text."""
    value = take(row, key, field, where)
    if not isinstance(value, str):
        remedy = remedy_for(value, "name a field that holds text")
        raise UserError(f"{where} holds {kind_of(value)} in data.{key}={field}; {remedy}")
    return value


def take_answer(row: Mapping[str, Any], key: str, field: str, where: str) -> str:
    """Return the text or number in a field, as `take`, as text; refuse what is empty or neither."""
    value = take(row, key, field, where)
    text = as_text(value)
    if text is None:
        remedy = remedy_for(value, "name a field of text or numbers")
        raise UserError(f"{where} holds {kind_of(value)} in data.{key}={field}; {remedy}")
    if not text.strip():
        raise UserError(f"{where} has an empty data.{key}={field}; fill it in, or leave the row out")
    return text


def as_text(value: Any) -> str | None:
    """Return a text or a number as text; None for anything else."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def remedy_for(value: Any, other_kind: str) -> str:
    """Return what to do about a value of the wrong kind: a null is a gap in a row, another kind is `other_kind`'s."""
    return "fill it in, or leave the row out" if value is None else other_kind


def kind_of(value: Any) -> str:
    """Return the kind of a value in the words of JSON, such as ``null`` or ``a list``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def fill(template: str, row: Mapping[str, Any], where: str, into: str = "prompt", /, **keys: str) -> str:
    """Fill in ``{field}``, ``{field|capitalize}`` and ``{field|strip}`` of a template; other braces stay as they are.

    The template is the value of the key `into`. Placeholders in `keys` are keys themselves, with the names of fields.
    """

    def value(match: re.Match[str]) -> str:
        name, filter_ = match[1], (match[2] or "|")[1:]
        found = (take(row, name, keys[name], where),) if name in keys else _find(row, name)
        if found is None:
            raise UserError(f"{where} has no {name}, which data.{into} uses; {did_you_mean(name, map(str, row))}")
        text = as_text(found[0])
        if text is None:
            remedy = remedy_for(found[0], "use a field of text")
            raise UserError(f"{where} holds {kind_of(found[0])} in {name}, which data.{into} uses; {remedy}")
        if filter_ and filter_ not in _FILTERS:
            raise UserError(f"data.{into} has the unknown filter {match[0]}; {did_you_mean(filter_, _FILTERS)}")
        return _FILTERS[filter_](text) if filter_ else text

    return _PLACEHOLDER.sub(value, template)


def check_prompt(template: str) -> None:
    """Refuse a prompt of words without a ``{field}``, or with an escaped line break."""
    if "\\n" in template:
        raise UserError(
            f"data.prompt={template} has a backslash and an n; for a line break type $'data.prompt=…\\n…' with $ and "
            "quotes, or write the key in a YAML file"
        )
    if template and not _PLACEHOLDER.search(template):
        raise UserError(f"data.prompt={template!r} uses no field; name one in braces, such as {{question}}")


def _find(row: Mapping[str, Any], field: str) -> tuple[Any] | None:
    if field in row:
        return (row[field],)
    first, dot, rest = field.partition(".")
    inner = row.get(first)
    return _find(inner, rest) if dot and isinstance(inner, Mapping) else None
