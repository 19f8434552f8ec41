"""The values of the files of conf/data/."""

from __future__ import annotations

from typing import Any

import yaml

from raysearch.configuration.parts import conf_dir


def preset_values(name: str) -> dict[str, Any]:
    """Return the values of a file, which override those of its defaults; the seed is 0."""
    text = (conf_dir() / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    file_values = yaml.safe_load(text.replace("${seed}", "0"))
    values: dict[str, Any] = {}
    for base in file_values.pop("defaults", ()):
        values |= preset_values(base)
    return values | file_values
