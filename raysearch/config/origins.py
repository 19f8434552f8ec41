"""Where each value of a resolved configuration is from: the command line, or a file under ``conf/``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raysearch.config.compose import compose
from raysearch.config.merge import files_of, items_of
from raysearch.config.parts import OBJECTS, conf_dir
from raysearch.core.paths import PathLike, as_path
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
    """Return every value of a configuration with its origin; the arguments are those of `compose`.

    Raises:
        UserError: As `compose`.
    """
    config = compose(job, words, config_dir)
    choices: Mapping[str, str] = config.pop("choices")
    named = {key: value for key, _, value in (word.partition("=") for word in words)}
    whole = {key for key in named.keys() & {*OBJECTS} if named[key] != choices[key]}  # a section, no file's name
    given = (named.keys() - choices.keys()) | whole
    chosen = {key: named[key] for key in (named.keys() & choices.keys()) - whole}
    if choices.get("model") == "custom":  # a hub id or a place in place of a name
        given, chosen = {*given, "model.path"}, {**chosen, "model": "custom"}
    folder = None if config_dir is None else as_path("--config-dir", config_dir)
    files = _files(job, chosen, folder)
    return [
        Setting(key, redacted({"": value})[""], _origin(key, given, files))
        for key, value in items_of(config)
        if value == {} or not isinstance(value, dict)
    ]


def _files(job: str, choices: Mapping[str, str], folder: Path | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each file of a configuration and its values by dotted keys, those that win first."""
    folders = [conf_dir()] if folder is None else [conf_dir(), folder]
    found = []
    for place, section in reversed(files_of(job, choices, folder)):
        name = f"{place}.yaml"
        file = next(one / name for one in folders if (one / name).is_file())
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        values = items_of({key: value for key, value in content.items() if key != "defaults"})
        found.append((name, {f"{section}.{key}".lstrip("."): value for key, value in values}))
    return found


def _origin(key: str, given: set[str], files: Sequence[tuple[str, dict[str, Any]]]) -> str:
    if any(f"{key}.".startswith(f"{word}.") for word in given):
        return "command line"
    for name, values in files:
        if key in values:
            refers = re.search(r"\$\{(.*)\}$", str(values[key]))
            return f"{name}, as {refers[1]}: {_origin(refers[1], given, files)}" if refers else name
    whole = key.rpartition(".")[0]  # words that stand for several values, as those of assess.texts.NAME
    return next((name for name, values in files if isinstance(values.get(whole), str)), "computed")
