"""The command that repeats a search on record: the words that say what differs from the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raysearch.configuration.compose import compose, composed
from raysearch.configuration.merge import items_of
from raysearch.configuration.overrides import as_overrides
from raysearch.core.formatting import as_typed
from raysearch.errors import UserError


def command_of(config: Mapping[str, Any]) -> str | None:
    """Return the command that composes a configuration of a search.

    Args:
        config: The resolved configuration, as it is on record.

    Returns:
        None if no words on the defaults compose it, as where files of ``--config-dir`` or secrets are a part of it.
    """
    try:
        chosen = [*_choices(config)]
        values = dict(_values(config, chosen))
    except UserError:
        return None
    as_people_type = [f"{key}={as_typed(value)}" for key, value in values.items()]
    quoted = [word for key, value in values.items() for word in as_overrides({key: value})]
    for words in (as_people_type, quoted):
        try:
            repeated = compose("search", [*chosen, *words])
        except UserError:
            continue
        if {**repeated, "choices": None} == {**config, "choices": None}:
            return " ".join(["raysearch search", *map(shlex.quote, [*chosen, *words])])
    return None


def _choices(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words that choose other files than the defaults."""
    choices = config["choices"]
    defaults = compose("search", [])["choices"]
    if "calibration" in choices:
        defaults = {**defaults, "objective": choices["objective"], "data": choices["data"]}
    for group, name in choices.items():
        if (group, name) == ("model", "custom"):
            yield f"model={config['model']['path']}"
        elif name != defaults.get(group):
            yield f"{group}={name}"


def _values(config: Mapping[str, Any], chosen: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys whose values are not those of the chosen files, with these values."""
    merged = composed("search", chosen, None)
    own, others = dict(items_of(config)), dict(items_of(merged.config))
    for key, value in own.items():
        if key == "choices" or key.startswith("choices.") or (isinstance(value, dict) and value):
            continue
        written = next((values[key] for values in merged.files.values() if key in values), ...)
        refers = re.fullmatch(r"\$\{(.*)\}", str(written))
        default = own.get(refers[1]) if refers else others.get(key, written)
        if value != default and key != "model.path":
            yield key, value
