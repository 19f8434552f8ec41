"""Finds the command that repeats a recorded search: the overrides of what differs from the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raysearch.configuration.compose import compose, compose_leniently
from raysearch.configuration.merge import items_of
from raysearch.configuration.overrides import as_overrides
from raysearch.errors import UserError
from raysearch.text.sentences import as_typed


def command_of(config: Mapping[str, Any]) -> str | None:
    """Return the command that composes a configuration of a search.

    Args:
        config: The resolved configuration, as it is recorded.

    Returns:
        The command; None if no overrides of the defaults compose this configuration, such as when it has values from
        files of ``--config-dir``.
    """
    try:
        choices = [*_choices(config)]
        values = dict(_values(config, choices))
    except UserError:
        return None
    as_people_type = [f"{key}={as_typed(value)}" for key, value in values.items()]
    quoted = [str(override) for key, value in values.items() for override in as_overrides({key: value})]
    for overrides in (as_people_type, quoted):
        try:
            repeated = compose("search", [*choices, *overrides])
        except UserError:
            continue
        if {**repeated, "choices": None} == {**config, "choices": None}:
            return " ".join(["raysearch search", *map(shlex.quote, [*choices, *overrides])])
    return None


def _choices(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the overrides that choose other files than the defaults."""
    choices = config["choices"]
    defaults = compose("search", [])["choices"]
    if "calibration" in choices:
        defaults = {**defaults, "objective": choices["objective"], "data": choices["data"]}
    for group, name in choices.items():
        if (group, name) == ("model", "custom"):
            yield f"model={config['model']['path']}"
        elif name != defaults.get(group):
            yield f"{group}={name}"


def _values(config: Mapping[str, Any], choices: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each key whose value differs from that of the chosen files, with the value."""
    merged = compose_leniently("search", choices, None)
    values_by_key = dict(items_of(config))
    defaults = dict(items_of(merged.config))
    for key, value in values_by_key.items():
        if key == "choices" or key.startswith("choices.") or (isinstance(value, dict) and value):
            continue
        in_file = next((values[key] for values in merged.files.values() if key in values), ...)
        reference = re.fullmatch(r"\$\{(.*)\}", str(in_file))
        default = values_by_key.get(reference[1]) if reference else defaults.get(key, in_file)
        if value != default and key != "model.path":
            yield key, value
