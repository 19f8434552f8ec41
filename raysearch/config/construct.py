"""From plain values to the classes they describe: names found, types checked, constructors called.

Types are checked here, with pydantic; what a value means is checked by the class.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raysearch.errors import UserError, did_you_mean


def construct_by_type(packages: Sequence[str], method: str, section: str, values: Mapping[str, Any]) -> Any:
    """Builds the class that `part_by_type` finds."""
    part = part_by_type(packages, method, section, values)
    return construct(part, section, {key: value for key, value in values.items() if key != "type"})


def part_by_type(packages: Sequence[str], method: str, section: str, values: Mapping[str, Any]) -> Any:
    """The one configurable class with `method` in the module of `packages` that the section's `type` names."""
    homes = {
        module.name: f"raysearch.{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(f"raysearch.{package}").__path__)
        if not module.ispkg and module.name != "base"
    }
    kind = _kind(section, values, homes.keys())
    module = importlib.import_module(homes[kind])
    parts = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__ and dataclasses.is_dataclass(member) and hasattr(member, method)
    ]
    if len(parts) != 1:  # a helper among them, such as the bridge that leads the other way
        raise UserError(f"{section}.type={kind} is no {section}; choose one of conf/{section}/")
    return parts[0]


def _kind(section: str, values: Mapping[str, Any], known: Collection[str]) -> str:
    if "type" not in values:
        raise UserError(f"{section}.type has no value; {did_you_mean('', known)}")
    kind = as_typed(values["type"])
    if kind not in known:
        raise UserError(f"{section}.type={kind} is unknown; {did_you_mean(kind, known)}")
    return kind


def construct(part: type, section: str, values: Mapping[str, Any]) -> Any:
    """Calls a dataclass with a section's values, each checked against its field's type."""
    fields = {field.name: field for field in dataclasses.fields(part) if field.init}
    check_names(f"{section}.", values, set(fields))
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"{section}.{name} has no value; give {section}.{name}=…")
    hints = typing.get_type_hints(part)
    return part(**{name: checked(hints[name], f"{section}.{name}", value) for name, value in values.items()})


def check_names(prefix: str, values: Mapping[str, Any], known: set[str]) -> None:
    """Refuses a key that is unknown.

    Raises:
        UserError: With what it may have meant.
    """
    for name in values:
        if name not in known:
            raise UserError(f"{prefix}{name} is no key of this configuration; {did_you_mean(str(name), known)}")


def checked(expected: Any, name: str, value: Any) -> Any:
    """The value, if it is of the expected type.

    Raises:
        UserError: It is not.
    """
    try:
        found = TypeAdapter(expected).validate_python(value, strict=True)
    except ValidationError as error:
        wanted = dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in error.errors())
        quoted = f"; where text reads like something else, quote it twice: {name}=\"'{as_typed(value)}'\""
        remedy = quoted if "a valid string" in wanted else ""
        raise UserError(f"{name}={as_typed(value)} should be {' or '.join(wanted)}{remedy}") from error
    if not _is_usable(found):
        raise UserError(f"{name}={as_typed(value)} cannot be counted with; use finite numbers of 18 digits at most")
    return found


def _is_usable(value: Any) -> bool:
    """Whether the numbers in a value are finite, and whole ones no larger than libraries take."""
    if isinstance(value, Mapping):
        return all(map(_is_usable, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_usable, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) < 10**18


def as_typed(value: Any) -> str:
    """A value as the user writes it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
