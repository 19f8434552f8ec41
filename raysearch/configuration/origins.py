"""Finds the origin of each value of a resolved configuration: the command line, or a file under ``conf/``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.configuration.compose import compose_leniently
from raysearch.configuration.merge import MergedConfig, items_of
from raysearch.configuration.overrides import Override
from raysearch.core.paths import PathLike


@dataclass(frozen=True)
class ConfiguredValue:
    """A value of a resolved configuration.

    Args:
        key: The dotted key: ``data.samples``.
        value: A plain value.
        origin: ``command line``, or the file, such as ``data/sotu.yaml``. If the file refers to another key, that key
            and its origin follow.
    """

    key: str
    value: Any
    origin: str


def settings_of(job: str, overrides: Sequence[Override], config_dir: PathLike | None = None) -> list[ConfiguredValue]:
    """Return every value of a configuration with its origin.

    Args:
        job: See `compose`.
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        Each value with its dotted key and its origin, in the order of the configuration, without secrets.

    Raises:
        UserError: See `compose`.
    """
    merged = compose_leniently(job, overrides, config_dir)
    merged.mistakes.raise_if_any()
    del merged.config["choices"]
    return [
        ConfiguredValue(key, value, _origin(key, merged))
        for key, value in items_of(merged.config)
        if value == {} or not isinstance(value, dict)
    ]


def _origin(key: str, merged: MergedConfig) -> str:
    if any(f"{key}.".startswith(f"{set_key}.") for set_key in merged.set_keys):
        return "command line"
    for name, values in merged.files.items():
        if key in values:
            reference = re.search(r"\$\{(.*)\}$", str(values[key]))
            return f"{name}, as {reference[1]}: {_origin(reference[1], merged)}" if reference else name
    parent = key.rpartition(".")[0]  # a text such as assess.texts.NAME, whose overrides set several values
    return next((name for name, values in merged.files.items() if isinstance(values.get(parent), str)), "computed")
