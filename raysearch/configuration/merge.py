"""Merges overrides and the YAML files under ``conf/`` into one configuration.

Hydra decides which files are merged. This module finds the files, sets the user's values, and turns every mistake into
one sentence. Of this room, only `overrides` and `parsing` use Hydra, too. Overrides inside a value, such as the
parts of a weighted objective, are not resolved here: see `raysearch.configuration.compose`.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import NonNegativeInt

from raysearch.configuration.overrides import AXES, Override, quoted, section_of
from raysearch.configuration.parsing import parse_overrides
from raysearch.configuration.parts import conf_dir, groups_of
from raysearch.configuration.secret_values import refusal, refuse_secrets
from raysearch.core.paths import PathLike, as_path
from raysearch.core.validation import checked, no_value
from raysearch.errors import Mistakes, UserError
from raysearch.models.spec import DTYPE_ALIASES
from raysearch.text.redaction import is_secret_name
from raysearch.text.sentences import as_typed, did_you_mean, first_line, most_similar

#: The prefixes of mappings whose keys the user chooses: texts and tasks of an assessment, recoveries of a study.
FREE = ("assess.texts.", "assess.generation.", "study.recover.")
_OPEN = "???"  # a required value that has not been given, as OmegaConf writes it
#: The types of values that other keys refer to. A wrong one is not set, so that it is reported once.
_SHARED = {"seed": NonNegativeInt}
#: Hydra's internal groups for logs, sweeps and help. They are not needed, and reading them takes a third of its time.
_HYDRA_GROUPS = ("env", "help", "hydra_help", "hydra_logging", "job_logging", "launcher", "output", "sweeper")
#: The exceptions of Hydra, OmegaConf and PyYAML for a file or a value that they cannot parse.
_UNREADABLE = (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class MergedConfig:
    """A configuration merged from all overrides that are correct.

    Args:
        config: Plain values; ``choices`` holds the chosen file of each group. Sections with a mistake are missing.
        mistakes: The mistakes so far; the caller adds its own, and raises all of them.
        absent: The sections that are missing because of a mistake.
        overrides: The overrides that are correct; of a key given twice, the last.
        set_keys: The keys that the overrides set.
        files: The values of each merged file, by dotted key; files of higher priority come first.
    """

    config: dict[str, Any]
    mistakes: Mistakes
    absent: set[str]
    overrides: list[Override]
    set_keys: set[str]
    files: Mapping[str, Mapping[str, Any]]

    def remove(self, section: str) -> None:
        """Remove a section that has a mistake.

        Args:
            section: Its name.
        """
        del self.config[section]
        self.absent.add(section)


class _MergedFiles(NamedTuple):
    """The chosen YAML files, merged.

    Args:
        config: The configuration, with unresolved references.
        choices: The choice of every group.
        files: See `MergedConfig`.
    """

    config: DictConfig
    choices: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]


def merge(job: str, overrides: Sequence[Override], config_dir: PathLike | None) -> MergedConfig:
    """Merge a configuration from all overrides that are correct.

    Args:
        job: The name of a file in ``conf/``, such as ``search``.
        overrides: The overrides; of a key given twice, the last counts.
        config_dir: A folder of the user's YAML files, laid out like ``conf/``.

    Returns:
        The configuration with its mistakes, and where its values come from.

    Raises:
        UserError: No configuration can be merged, such as from a file that is not YAML; or a value has a secret. Other
            mistakes are returned.
    """
    mistakes = Mistakes()
    folder = None if config_dir is None else as_path("--config-dir", config_dir)
    groups = groups_of(folder)
    job_groups = _groups_of_job(job)
    parsed = parse_overrides(job, overrides, groups, job_groups, mistakes)
    refuse_secrets({**parsed.choices, **parsed.sections, **parsed.axes, **parsed.values})
    try:
        files = _merge_chosen_files(job, parsed.choices, folder)
        values = _Values(files, job_groups, mistakes)
        values.set_sections(parsed.sections)
        values.set_all(parsed.values)
        values.remove_open_sections()
        config = values.resolved()
    except _UNREADABLE as error:
        user_files = "" if config_dir is None else f" and the files of --config-dir={config_dir}"
        raise UserError(
            f"the configuration cannot be composed: {first_line(error)}; check the overrides{user_files}"
        ) from error
    refuse_secrets(config)  # those in the user's files
    choices = {**files.choices, **{key: section["type"].rpartition(".")[2] for key, section in parsed.sections.items()}}
    config["choices"] = {group: choices[group] for group in sorted(choices) if group in groups and choices[group]}
    set_keys = {*parsed.sections, *parsed.axes, *values.set_keys}
    correct_overrides = [override for key, override in parsed.overrides.items() if key in set_keys | {*parsed.choices}]
    merged = MergedConfig(config, mistakes, values.open_sections, correct_overrides, set_keys, files.files)
    _check_sections(merged, {*parsed.choices} - {"calibration"})
    if "study" in config:
        try:
            _set_axes(config["study"], parsed.axes)
        except UserError as error:
            mistakes.add(*error.sentences)
            merged.remove("study")
    return merged


class _Values:
    """The values of a configuration while those of the user are set.

    Args:
        files: The merged files.
        job_groups: The groups from which the job chooses a file.
        mistakes: Receives the mistakes.

    Attributes:
        set_keys: The keys of the user's values that exist.
        open_sections: The sections with a required value that nobody has given.
    """

    def __init__(self, files: _MergedFiles, job_groups: set[str], mistakes: Mistakes) -> None:
        self.set_keys: set[str] = set()
        self.open_sections: set[str] = set()
        self._config = copy.deepcopy(files.config)  # takes half the time of creating one from values
        self._known_keys = job_groups.union(*files.files.values())
        self._suggested_keys: set[str] = set()
        self._mistakes = mistakes

    def set_sections(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace whole sections.

        Args:
            sections: The sections by their names.
        """
        for name, section in sections.items():
            self._config[name] = section
        self._known_keys.update(dict(items_of(sections)))

    def set_all(self, values: Mapping[str, Any]) -> None:
        """Set values, and collect the mistakes of those that cannot be set.

        Args:
            values: The values by their dotted keys.
        """
        for key, value in values.items():
            with self._mistakes:
                self._set(key, value)

    def _set(self, key: str, value: Any) -> None:
        is_free = any(f"{key}.".startswith(prefix) and prefix.rstrip(".") in self._known_keys for prefix in FREE)
        if not is_free and key not in self._known_keys:
            self._refuse(key, value)
        if value == _OPEN:
            self.set_keys.add(key)
            raise UserError(no_value(key))
        if key in _SHARED:
            checked(_SHARED[key], key, value)
        self.set_keys.add(key)
        try:
            OmegaConf.update(self._config, key, value, merge=True, force_add=is_free)
        except OmegaConfBaseException as error:
            raise UserError(
                f"{key}={as_typed(value)} cannot be set; give a value of the kind that {key} has"
            ) from error

    def _refuse(self, key: str, value: Any) -> None:
        """Refuse a key that is unknown, and suggest a similar one."""
        if is_secret_name(key.rpartition(".")[2]):
            raise UserError(refusal(key, as_typed(value), "a password or a token"))
        if key == "data.path":
            raise UserError(
                f"{key}={as_typed(value)} needs data that are read from a file; give data=file {key}={as_typed(value)}"
            )
        section = key.rpartition(".")[0]
        section_keys = {name for name in self._known_keys if section and name.rpartition(".")[0] == section}
        known_keys = section_keys or self._known_keys
        head, dot, tail = key.partition(".")
        full_keys = sorted(name for name in known_keys if name.endswith(f".{key}"))
        if not full_keys and dot:
            full_keys = sorted(f"{name}.{tail}" for name in known_keys if name.endswith(f".{head}"))
        if len(full_keys) == 1:
            likely_value = DTYPE_ALIASES.get(str(value), value) if key == "dtype" else value
            suggestion = f"{full_keys[0]}={as_typed(likely_value)}"
            raise UserError(f"{key} is not a key of this configuration; did you mean {suggestion}?")
        self._suggested_keys.update(filter(None, [most_similar(key, known_keys)]))
        raise UserError(f"{key} is not a key of this configuration; {did_you_mean(key, known_keys)}")

    def remove_open_sections(self) -> None:
        """Remove the sections with a required value that nobody has given.

        A value is not reported if the user has probably misspelled its key.
        """
        open_keys = [key for key, value in items_of(OmegaConf.to_container(self._config)) if value == _OPEN]
        self.open_sections = {section_of(key) for key in open_keys}
        with open_dict(self._config):
            for section in self.open_sections:
                del self._config[section]
        for key in open_keys:
            if key not in self._suggested_keys:
                self._mistakes.add(no_value(key))

    def resolved(self) -> dict[str, Any]:
        """Return the configuration as plain values, with the values of other keys in place of references."""
        config: dict[str, Any] = OmegaConf.to_container(self._config, resolve=True)  # type: ignore[assignment]
        return config


def _check_sections(merged: MergedConfig, chosen_groups: set[str]) -> None:
    """Refuse other values in the place of sections, which an override or a user's file may have.

    Args:
        merged: The configuration; a section with a mistake is removed.
        chosen_groups: The groups whose files the user has chosen; such a file may set no key of its group.
    """
    for group in chosen_groups - merged.absent:
        merged.config.setdefault(group, None)
    sections = chosen_groups.union(
        *({key for key, value in values.items() if isinstance(value, dict)} for values in merged.files.values())
    )
    for name, value in [*merged.config.items()]:
        if name in sections and not isinstance(value, dict):
            choose = f"choose one of conf/{name}/, or " if (conf_dir() / name).is_dir() else ""
            merged.mistakes.add(f"{name}={as_typed(value)} is not a section; {choose}set {name}.key=value")
            merged.remove(name)


def _merge_chosen_files(job: str, choices: Mapping[str, str], folder: Path | None) -> _MergedFiles:
    """Merge the chosen files, after the user's own among them have been checked."""
    user_files = [] if folder is None else sorted(folder.glob("*/*.yaml"))
    for file in user_files:
        if choices.get(file.parent.name) == file.stem:
            _load(file)  # reports mistakes more clearly than Hydra, which ignores some
    state = tuple((file, file.stat().st_mtime_ns) for file in user_files)
    return _merge_files(job, tuple(sorted(choices.items())), folder and folder.resolve(), state)


@functools.cache
def _groups_of_job(job: str) -> set[str]:
    """Return the groups from which a job's file, or a file that it includes, chooses a file."""
    defaults = yaml.safe_load((conf_dir() / f"{job}.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {name for default in defaults if isinstance(default, dict) for name in default if " " not in name}
    included = [default for default in defaults if isinstance(default, str) and default != "_self_"]
    return groups.union(*map(_groups_of_job, included))


@functools.cache  # the searches of a study choose the same files, and Hydra takes 0.1 s each time
def _merge_files(job: str, choices: tuple[tuple[str, str], ...], folder: Path | None, state: Hashable) -> _MergedFiles:
    """Merge the chosen files; `state` changes whenever a file in the user's folder changes."""
    overrides = [f"{group}={quoted(name)}" for group, name in choices]
    overrides += [f"~hydra/{group}" for group in _HYDRA_GROUPS]
    if folder is not None:
        overrides.append(f"hydra.searchpath=[{quoted(f'file://{folder}')}]")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        defaults_list = GlobalHydra.instance().config_loader().compute_defaults_list(job, overrides, RunMode.RUN)
    config = OmegaConf.create()
    files: dict[str, dict[str, Any]] = {}
    for default in defaults_list.defaults:
        if not default.config_path.startswith("hydra/"):
            name = f"{default.config_path}.yaml"
            content = _load(_find_file(name, folder))
            if isinstance(content, dict):
                content.pop("defaults", None)
            for section in reversed(default.package.split(".") if default.package else []):
                content = {section: content}
            config.merge_with(content)
            files[name] = dict(items_of(content))
    OmegaConf.set_struct(config, True)
    return _MergedFiles(config, defaults_list.overrides.known_choices, dict(reversed(files.items())))


def _find_file(name: str, folder: Path | None) -> Path:
    """Return the file of this name in ``conf/``, or else in the user's folder."""
    folders = [conf_dir()] if folder is None else [conf_dir(), folder]
    return next(folder / name for folder in folders if (folder / name).is_file())


def _load(file: Path) -> Any:
    """Return the content of a YAML file."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1} of {file}" if mark else str(file)
        raise UserError(f"{where} is not YAML ({getattr(error, 'problem', None) or error}); mend it") from error
    except _UNREADABLE as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); write keys and values in UTF-8") from error


def _set_axes(study: dict[str, Any], axes: Mapping[str, Any]) -> None:
    """Put axes into the grid of a study."""
    grid = study.get("grid")
    if not isinstance(grid, dict):
        if axes:
            raise UserError(f"study.grid={json.dumps(grid)} is not a mapping; give axes such as {next(iter(axes))}=[…]")
        return
    for key, values in axes.items():
        axis = key.removeprefix(AXES)
        if isinstance(values, list) and isinstance(grid.get(axis), dict):
            overrides_by_label = {str(label): overrides for label, overrides in grid[axis].items()}
            if overrides_by_label.keys() >= {*map(str, values)}:
                values = {label: overrides_by_label[label] for label in map(str, values)}
        grid[axis] = values
    for axis in groups_of().keys() & grid.keys():
        if isinstance(grid[axis], list):
            grid[axis] = ["off" if name is False else name for name in grid[axis]]  # YAML parses off as false


def items_of(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of nested mappings, with its value.

    Args:
        values: The mapping.
        prefix: A text to put before each key.

    Yields:
        A dotted key and its value. A mapping comes before its own keys.
    """
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from items_of(value, f"{prefix}{key}.")
