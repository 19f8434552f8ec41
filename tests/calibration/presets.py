"""The values of the files of conf/data/."""

from __future__ import annotations

from typing import Any

import yaml

from raysearch.configuration.parts import conf_dir


def preset_values(name: str) -> dict[str, Any]:
    """What a file holds, over what the files hold that it begins with; its seed is 0."""
    text = (conf_dir() / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    own = yaml.safe_load(text.replace("${seed}", "0"))
    values: dict[str, Any] = {}
    for base in own.pop("defaults", ()):
        values |= preset_values(base)
    return values | own
