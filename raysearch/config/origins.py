"""Where each value of a resolved configuration is from: the command line, or a file under ``conf/``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raysearch.config.compose import compose, items_of
from raysearch.config.parts import conf_dir
from raysearch.core.paths import PathLike, as_path
from raysearch.errors import redacted

_ABSENT = object()


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
    given = {word.partition("=")[0] for word in words}
    files = list(_files(job, choices, folders))
    return [
        Setting(key, redacted({"": value})[""], _origin(key, given, files))
        for key, value in items_of(config)
        if value == {} or not isinstance(value, dict)
    ]


def _files(job: str, choices: Mapping[str, str], folders: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files that a configuration is made of by their names, from those that win to those that lose."""
    own, _ = _read(conf_dir() / f"{job}.yaml")
    for default in reversed(own["defaults"]):  # a later one wins
        if default == "_self_":
            yield f"{job}.yaml", own
        elif isinstance(default, str):
            yield from _files(default, choices, folders)
        elif (group := next(iter(default))) in choices:
            name = f"{group}/{choices[group]}.yaml"
            file = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if file is not None:  # the data of a weighted objective are no one file
                content, is_global = _read(file)
                yield name, content if is_global else {group: content}


def _read(file: Path) -> tuple[Mapping[str, Any], bool]:
    """Return what a file says, and whether that is of all groups."""
    text = file.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return content if isinstance(content, dict) else {}, text.startswith("# @package _global_")


def _origin(key: str, given: set[str], files: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    parts = key.split(".")
    own = {".".join(parts[: end + 1]) for end in range(1, len(parts))} | ({key} if len(parts) == 1 else set())
    if given & own or (key == "model.path" and "model" in given and ("model/custom.yaml" in dict(files))):
        return "command line"
    for name, content in files:
        found: Any = content
        for part in parts:
            found = found.get(part, _ABSENT) if isinstance(found, Mapping) else _ABSENT
        if isinstance(found, str) and "${" in found and found.endswith("}"):
            referred = found[found.index("${") + 2 : -1]
            return f"{name}, as {referred}: {_origin(referred, given, files)}"
        if found is not _ABSENT:
            return name
    return "computed"
