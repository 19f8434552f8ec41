"""Where each value of a resolved configuration is from: the command line, or a file under ``conf/``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raysearch.config.compose import compose, items_of
from raysearch.config.parts import conf_dir
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
    folders = [conf_dir(), *([] if config_dir is None else [as_path("--config-dir", config_dir)])]
    choices: Mapping[str, str] = config.pop("choices")
    given = {word.partition("=")[0] for word in words} - choices.keys()
    if choices.get("model") == "custom":
        given.add("model.path")
    files = list(_files(job, choices, folders))
    return [
        Setting(key, redacted({"": value})[""], _origin(key, given, files))
        for key, value in items_of(config)
        if value == {} or not isinstance(value, dict)
    ]


def _files(job: str, choices: Mapping[str, str], folders: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of each file of a configuration and its values by dotted keys, those that win first."""
    _, own = _read(conf_dir() / f"{job}.yaml")
    for default in reversed(own["defaults"]):  # a later one wins
        if default == "_self_":
            yield f"{job}.yaml", own
        elif isinstance(default, str):
            yield from _files(default, choices, folders)
        elif (group := next(iter(default))) in choices:
            name = f"{group}/{choices[group]}.yaml"
            for file in (folder / name for folder in folders if (folder / name).is_file()):
                is_global, content = _read(file)
                yield name, content if is_global else {f"{group}.{key}": value for key, value in content.items()}


def _read(file: Path) -> tuple[bool, dict[str, Any]]:
    """Return whether a file is of all groups, and its values by dotted keys."""
    text = file.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return text.startswith("# @package _global_"), dict(items_of(content)) if isinstance(content, dict) else {}


def _origin(key: str, given: set[str], files: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    if any(f"{key}.".startswith(f"{word}.") for word in given):
        return "command line"
    for name, values in files:
        if key in values:
            refers = re.search(r"\$\{(.*)\}$", str(values[key]))
            return f"{name}, as {refers[1]}: {_origin(refers[1], given, files)}" if refers else name
    return "computed"
