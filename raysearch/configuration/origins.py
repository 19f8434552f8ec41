"""Where each value of a resolved configuration is from: the command line, or a file under ``conf/``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.configuration.compose import composed
from raysearch.configuration.merge import Merged, items_of
from raysearch.core.paths import PathLike
from raysearch.errors import redacted


@dataclass(frozen=True)
class Setting:
    """A value of a resolved configuration.

    Args:
        key: Its key: ``data.samples``.
        value: A plain value, without secrets.
        origin: Where it is from: ``command line``, or a file, as ``data/sotu.yaml``, and the key that it refers to.
    """

    key: str
    value: Any
    origin: str


def settings_of(job: str, words: Sequence[str], config_dir: PathLike | None = None) -> list[Setting]:
    """Return every value of a configuration with its origin; arguments and errors are those of `compose`."""
    found = composed(job, words, config_dir)
    found.mistakes.tell()
    del found.config["choices"]
    return [
        Setting(key, redacted({"": value})[""], _origin(key, found))
        for key, value in items_of(found.config)
        if value == {} or not isinstance(value, dict)
    ]


def _origin(key: str, found: Merged) -> str:
    if any(f"{key}.".startswith(f"{word}.") for word in found.given):
        return "command line"
    for name, values in found.files.items():
        if key in values:
            refers = re.search(r"\$\{(.*)\}$", str(values[key]))
            return f"{name}, as {refers[1]}: {_origin(refers[1], found)}" if refers else name
    whole = key.rpartition(".")[0]  # words that stand for several values, as those of assess.texts.NAME
    return next((name for name, values in found.files.items() if isinstance(values.get(whole), str)), "computed")
