"""Parses overrides: the choice of a file, a whole section, an axis of a study, or a value.

The value of a text ``key=value`` is parsed by Hydra's grammar. A value that Python code gives is used as it is.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from raysearch.calibration.rows import ENDINGS
from raysearch.configuration.overrides import AXES, Override, PythonOverride, key_of, section_of
from raysearch.configuration.parts import OBJECTS
from raysearch.errors import Mistakes, UserError
from raysearch.text.sentences import did_you_mean

#: The file that each group uses when the user gives a path in place of a file's name.
_FILE_FOR_PATHS = {"model": "custom", "data": "file"}


@dataclass
class ParsedOverrides:
    """The overrides of a command by their kind, each by its key.

    Args:
        overrides: All overrides; of a key given twice, the last.
        choices: The chosen file of a group.
        sections: Whole sections: ``searcher={type: beam, width: 3}``.
        axes: The values of a study's axes.
        values: All other values.
    """

    overrides: dict[str, Override]
    choices: dict[str, str] = field(default_factory=dict)
    sections: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def parse_overrides(
    job: str,
    overrides: Sequence[Override],
    groups: Mapping[str, Sequence[str]],
    job_groups: set[str],
    mistakes: Mistakes,
) -> ParsedOverrides:
    """Parse the overrides of a command.

    Args:
        job: The name of a file in ``conf/``, such as ``search``.
        overrides: The overrides; of a key given twice, the last counts.
        groups: The names of the files of each group.
        job_groups: The groups from which the job chooses a file.
        mistakes: Receives the mistakes. An override with a mistake is not in the result; nor are values of a group
            whose choice is a mistake, since the keys of that group are not known.

    Returns:
        The overrides by their kind.
    """
    parsed = ParsedOverrides({key_of(override): override for override in overrides})
    for key, override in parsed.overrides.items():
        with mistakes:
            if job == "study" and key.startswith(AXES):
                parsed.axes[key] = _read_axis(override)
            elif key not in job_groups:
                parsed.values[key] = _read_value(override)
            elif key in OBJECTS and _is_section(override, groups[key]):
                parsed.sections[key] = _read_section(override)
            elif (name := _read_choice(override, groups[key])) is not None:
                parsed.choices[key] = name
            else:
                parsed.choices[key] = _FILE_FOR_PATHS[key]
                parsed.values[f"{key}.path"] = _split(override)[1]
    unknown_groups = (parsed.overrides.keys() & job_groups) - {*parsed.choices, *parsed.sections}
    if "calibration" in unknown_groups:
        unknown_groups |= {"objective", "data"}  # a calibration chooses these
    parsed.values = {key: value for key, value in parsed.values.items() if section_of(key) not in unknown_groups}
    return parsed


def _split(override: Override) -> tuple[str, str]:
    """Return the key and the text of the value, after checks that concern every override."""
    text = str(override)
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r} is not understood; write options as key=value, such as remove=5")
    if "${" in value:
        raise UserError(f"{override} refers to another key; give the value itself")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise UserError(f"{text!r} cannot be used, as it is not text in UTF-8; give another value") from error
    return key, value


def _is_section(override: Override, names: Sequence[str]) -> bool:
    """Return whether an override of a group is a whole section, and not the name of a file such as ``{z}.yaml``."""
    if isinstance(override, PythonOverride):
        return isinstance(override.value, dict)
    value = override.partition("=")[2]
    return value.startswith("{") and value not in names


def _read_choice(override: Override, names: Sequence[str]) -> str | None:
    """Return the file of a group that an override chooses; None for a path, or for a model's hub id."""
    group, name = _split(override)
    if name in names:
        return name
    if name[:1] in ("'", '"') and name[1:].endswith(name[0]):
        raise UserError(f"{override} has quotes inside its quotes; drop them: {group}={name[1:-1]}")
    ending = os.path.splitext(name)[1].lower()
    if group == "model" and ("/" in name or ending == ".gguf" or os.path.exists(name)):
        return None
    if group == "data" and (ending in ENDINGS or os.path.exists(name)):
        return None
    alternatives = {
        "model": "; or give a hub id (owner/name), a folder or a .gguf file",
        "data": f"; or give a file ({', '.join(ENDINGS)}), a folder of texts, or data=hub data.name=OWNER/NAME",
    }.get(group, "")
    raise UserError(f"{override} is unknown; {did_you_mean(name, names)}{alternatives}")


def _read_section(override: Override) -> Mapping[str, Any]:
    """Return the section that an override gives as a whole: ``searcher={type: beam, width: 3}``."""
    section = _read_value(override)
    if not isinstance(section, dict) or not isinstance(section.get("type"), str):
        raise UserError(f"{override} is not a section; write {key_of(override)}={{type: …, and its keys}}")
    return section


def _read_value(override: Override) -> Any:
    """Return a value parsed by Hydra's grammar, such as a number or a list; a value that it rejects is text."""
    key, value = _split(override)
    if isinstance(override, PythonOverride):
        return override.value
    parsed = _parse(value)
    if parsed is None:
        return value
    if parsed.is_sweep_override():
        if os.path.exists(value):
            return value
        text = f"{key}=\"'{value}'\""
        raise UserError(f"{override} holds several values; give one, a list as {key}=[{value}], or text as {text}")
    parsed_value = parsed.value()
    return value if isinstance(parsed_value, str) and value[:1] not in ("'", '"') else parsed_value


@functools.cache  # every search of a study has the study's overrides
def _parse(value: str) -> HydraOverride | None:
    """Parse a value by Hydra's grammar; None if the grammar rejects it."""
    try:
        return OverridesParser.create().parse_override(f"value={value}")
    except (HydraException, ValueError, RecursionError):  # such as a number of thousands of digits
        return None


def _read_axis(override: Override) -> Any:
    """Return the values of an axis, written in YAML."""
    key, value = _split(override)
    if not all(key.split(".")):
        raise UserError(f"{override} names no axis; give one such as study.grid.searcher=[one_shot,greedy]")
    if isinstance(override, PythonOverride):
        return override.value
    try:
        values = yaml.safe_load(value)
        json.dumps(values)  # refuses dates: YAML parses 2024-05-01 as one
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{override} is not understood; write a list, such as {key}=[one_shot,greedy]") from error
    return values
