"""From ``key=value`` words and the YAML files under ``conf/`` to one configuration.

The only place that knows Hydra: it says which files are merged, and reads values. This module finds the files, sets
what the user wrote, and turns every mistake into one sentence. Words within words stand as they are: see `compose`.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from raysearch.calibration.rows import ENDINGS
from raysearch.configuration.parts import OBJECTS, check_names, conf_dir
from raysearch.core.formatting import as_typed
from raysearch.core.paths import PathLike, as_path
from raysearch.errors import Mistakes, UserError, did_you_mean, first_line
from raysearch.models.spec import DTYPE_ALIASES

#: Mappings whose keys are the user's own: the axes of a study, and the texts and tasks of an assessment.
AXES, FREE = "study.grid.", ("assess.texts.", "assess.generation.", "study.recover.")
#: The file of a group that takes a path in place of its name.
_OF_A_PATH = {"model": "custom", "data": "file"}
_OPEN = "???"  # a value that is yet to be given, as OmegaConf writes it
#: Hydra's own groups, of logs, sweeps and help, which are no use here: to read them takes a third of its time.
_HYDRAS_OWN = ("env", "help", "hydra_help", "hydra_logging", "job_logging", "launcher", "output", "sweeper")
#: What Hydra, OmegaConf and PyYAML raise at a file or a value that they do not understand.
_UNREADABLE = (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class Merged:
    """A configuration as far as it is understood.

    Args:
        config: Plain values, and under ``choices`` the file of each group; without sections that a mistake spoils.
        mistakes: All that is not understood.
        words: Those that are understood.
        given: The keys that words set.
        files: The values of each file by their keys, the files that win first.
    """

    config: dict[str, Any]
    mistakes: Mistakes
    words: list[str]
    given: set[str]
    files: Mapping[str, Mapping[str, Any]]

    def read(self, *steps: Callable[[dict[str, Any]], Any]) -> list[Any]:
        """Return what each step makes of the configuration; all mistakes are told together."""
        made = [self.mistakes.attempt(step, self.config) for step in steps]
        self.mistakes.tell()
        return made


def merge(job: str, words: Sequence[str], config_dir: PathLike | None) -> Merged:
    """Merge a configuration of the words without mistakes; see `compose`."""
    mistakes = Mistakes()
    folder = None if config_dir is None else as_path("--config-dir", config_dir)
    last = {word.partition("=")[0]: word for word in words}
    groups, taken = groups_of(folder), _groups_of_job(job)
    choices: dict[str, str] = {}
    axes, values, sections = {}, {}, {}
    for key, word in last.items():
        with mistakes:
            if job == "study" and key.startswith(AXES):
                axes[key] = _read_axis(word)
            elif key not in taken:
                values[key] = _read_value(word)
            elif key in OBJECTS and word.startswith(f"{key}={{") and word.partition("=")[2] not in groups[key]:
                sections[key] = _read_section(word)
            elif (name := _read_choice(word, groups[key])) is not None:
                choices[key] = name
            else:
                choices[key], values[f"{key}.path"] = _OF_A_PATH[key], word.partition("=")[2]
    unknown = (last.keys() & taken) - {*choices, *sections}
    unknown |= {"objective", "data"} if "calibration" in unknown else set()  # it chooses these
    values = {key: value for key, value in values.items() if section_of(key) not in unknown}
    try:
        own = [] if folder is None else sorted(folder.glob("*/*.yaml"))
        for file in own:
            if choices.get(file.parent.name) == file.stem:
                _load(file)  # Hydra says less clearly, or not at all, what is wrong with it
        state = tuple((file, file.stat().st_mtime_ns) for file in own)
        merged, chosen, files = _merge_files(job, tuple(sorted(choices.items())), folder and folder.resolve(), state)
        config = copy.deepcopy(merged)  # in half the time that it takes to make one of values
        for key, whole in sections.items():
            config[key], chosen = whole, {**chosen, key: whole["type"].rpartition(".")[2]}
        known = taken.union(*files.values(), dict(items_of(sections)))
        values = _set_values(config, values, known, mistakes)
        missing = [key for key, value in items_of(OmegaConf.to_container(config)) if value == _OPEN]
        with open_dict(config):
            for section in {section_of(key) for key in missing}:
                del config[section]
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    except _UNREADABLE as error:
        whose = "" if config_dir is None else f" and the files of --config-dir={config_dir}"
        raise UserError(f"the configuration cannot be composed: {first_line(error)}; check the words{whose}") from error
    meant = " ".join(map(str, mistakes.errors))
    mistakes.errors += [
        UserError(f"{key} has no value; give {key}=…") for key in missing if f"did you mean {key!r}?" not in meant
    ]
    for group in {*choices} - {*resolved, "calibration", *map(section_of, missing)}:
        resolved[group] = None  # its file has put its keys elsewhere, which is refused where the section is read
    resolved["choices"] = dict(sorted((group, name) for group, name in chosen.items() if group in groups and name))
    if isinstance(study := resolved.get("study"), dict) and mistakes.attempt(_set_axes, study, axes) is None:
        del resolved["study"]
    given = {*sections, *values, *axes}
    return Merged(resolved, mistakes, [word for key, word in last.items() if key in given | {*choices}], given, files)


def _set_values(config: DictConfig, values: Mapping[str, Any], known: set[str], mistakes: Mistakes) -> dict[str, Any]:
    """Set values in a configuration, and return those whose keys are known."""
    found = {}
    for key, value in values.items():
        free = any(f"{key}.".startswith(one) and one.rstrip(".") in known for one in FREE)
        with mistakes:
            if not free:
                section = key.rpartition(".")[0]
                beside = {one for one in known if section and one.rpartition(".")[0] == section}
                _check_key(key, value, beside or known)
            found[key] = value
            if value == _OPEN:
                raise UserError(f"{key} has no value; give {key}=…")
            try:
                OmegaConf.update(config, key, value, merge=True, force_add=free)
            except OmegaConfBaseException as error:
                raise UserError(
                    f"{key}={as_typed(value)} cannot be set; give a value of the kind that {key} has"
                ) from error
    return found


def _check_key(key: str, value: Any, known: set[str]) -> None:
    """Refuse a key that is unknown, with what it may have meant."""
    if key == "data.path" and key not in known:
        raise UserError(
            f"{key}={as_typed(value)} needs data that are read from a file; give data=file {key}={as_typed(value)}"
        )
    head, dot, rest = key.partition(".")
    inner = sorted(name for name in known if name.endswith(f".{key}"))
    inner = inner or sorted(f"{name}{dot}{rest}" for name in known if dot and name.endswith(f".{head}"))
    if key not in known and len(inner) == 1:
        meant = DTYPE_ALIASES.get(str(value), value) if key == "dtype" else value
        raise UserError(f"{key} is not a key of this configuration; did you mean {inner[0]}={as_typed(meant)}?")
    check_names("", [key], known)


@functools.cache
def _groups_of_job(job: str) -> set[str]:
    """Return the groups that a job's file, or one that it builds on, takes a choice of."""
    defaults = yaml.safe_load((conf_dir() / f"{job}.yaml").read_text(encoding="utf-8"))["defaults"]
    own = {group for one in defaults if isinstance(one, dict) for group in one if " " not in group}  # override …
    return own.union(*(_groups_of_job(one) for one in defaults if isinstance(one, str) and one != "_self_"))


@functools.cache  # the searches of a study choose the same files again and again, and Hydra needs 0.1 s for each
def _merge_files(
    job: str, choices: tuple[tuple[str, str], ...], folder: Path | None, state: Hashable
) -> tuple[DictConfig, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    """Merge the chosen files; the state changes whenever one of those in the user's folder does.

    Returns:
        The configuration, whose references stand as they are; the choice of every group; and `Merged.files`.
    """
    words = [f"{group}={quoted(name)}" for group, name in choices] + [f"~hydra/{group}" for group in _HYDRAS_OWN]
    if folder is not None:
        words.append(f"hydra.searchpath=[{quoted(f'file://{folder}')}]")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        found = GlobalHydra.instance().config_loader().compute_defaults_list(job, words, RunMode.RUN)
    config, files = OmegaConf.create(), {}
    for one in found.defaults:
        if not one.config_path.startswith("hydra/"):
            name = f"{one.config_path}.yaml"
            content = _load(next(file for at in (conf_dir(), folder) if at and (file := at / name).is_file()))
            if isinstance(content, dict):
                content.pop("defaults", None)
            for section in reversed(one.package.split(".") if one.package else []):
                content = {section: content}
            config.merge_with(content)
            files[name] = dict(items_of(content))
    OmegaConf.set_struct(config, True)
    return config, found.overrides.known_choices, dict(reversed(files.items()))


def _load(file: Path) -> Any:
    """Return what a YAML file holds."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1} of {file}" if mark else str(file)
        raise UserError(f"{where} is not YAML ({getattr(error, 'problem', None) or error}); mend it") from error
    except _UNREADABLE as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); write keys and values in UTF-8") from error


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UserError(f"{word!r} is not understood; write options as key=value, such as remove=5")
    if "${" in value:
        raise UserError(f"{word} refers to another key; give the value itself")
    return key, value


def _read_choice(word: str, names: Sequence[str]) -> str | None:
    """Return the file of a group that a word chooses; None for a path of the user's own, or for a model's hub id."""
    group, name = _split(word)
    if name in names:
        return name
    if name[:1] in ("'", '"') and name[1:].endswith(name[0]):
        raise UserError(f"{word} has quotes inside its quotes; drop them: {group}={name[1:-1]}")
    ending = os.path.splitext(name)[1].lower()
    if group == "model" and ("/" in name or ending == ".gguf" or os.path.exists(name)):
        return None
    if group == "data" and (ending in ENDINGS or os.path.exists(name)):
        return None
    also = {
        "model": "; or give a hub id (owner/name), a folder or a .gguf file",
        "data": f"; or give a file ({', '.join(ENDINGS)}), a folder of texts, or data=hub data.name=OWNER/NAME",
    }.get(group, "")
    raise UserError(f"{word} is unknown; {did_you_mean(name, names)}{also}")


def _read_section(word: str) -> Mapping[str, Any]:
    """Return a section that a word holds whole: ``searcher={type: beam, width: 3}``."""
    section = _read_value(word)
    if not isinstance(section, dict) or not isinstance(section.get("type"), str):
        raise UserError(f"{word} is not a section; write {word.partition('=')[0]}={{type: …, and its keys}}")
    return section


def _read_value(word: str) -> Any:
    """Return a value as Hydra's grammar reads it, as a number, a list or such; anything else is text as it stands."""
    key, value = _split(word)
    parsed = _parse(value)
    if parsed is None:
        return value
    if parsed.is_sweep_override():
        if os.path.exists(value):
            return value
        text = f"{key}=\"'{value}'\""
        raise UserError(f"{word} holds several values; give one, a list as {key}=[{value}], or text as {text}")
    found = parsed.value()
    return value if isinstance(found, str) and value[:1] not in ("'", '"') else found


@functools.cache  # every search of a study has the study's words
def _parse(value: str) -> Override | None:
    """Return what Hydra's grammar makes of a value; None if nothing."""
    try:
        return OverridesParser.create().parse_override(f"value={value}")
    except (HydraException, ValueError, RecursionError):  # such as a number of thousands of digits
        return None


def _read_axis(word: str) -> Any:
    """Return the values of an axis, written in YAML."""
    key, value = _split(word)
    if not all(key.split(".")):
        raise UserError(f"{word} names no axis; give one such as study.grid.searcher=[one_shot,greedy]")
    try:
        values = yaml.safe_load(value)
        json.dumps(values)  # refuses dates, which YAML makes of 2024-05-01
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{word} is not understood; write a list, such as {key}=[one_shot,greedy]") from error
    return values


def _set_axes(study: dict[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Put axes, whose keys are anybody's, into the grid of a study, and return that."""
    grid = study.get("grid")
    if not isinstance(grid, dict):
        if axes:
            raise UserError(f"study.grid={json.dumps(grid)} is not a mapping; give axes such as {next(iter(axes))}=[…]")
        return study
    for key, values in axes.items():
        axis = key.removeprefix(AXES)
        if isinstance(values, list) and isinstance(grid.get(axis), dict):
            named = {str(label): words for label, words in grid[axis].items()}
            if named.keys() >= {*map(str, values)}:
                values = {label: named[label] for label in map(str, values)}
        grid[axis] = values
    for axis in groups_of().keys() & grid.keys():
        if isinstance(grid[axis], list):
            grid[axis] = ["off" if name is False else name for name in grid[axis]]  # YAML reads off as false
    return study


def groups_of(folder: Path | None = None) -> dict[str, list[str]]:
    """Return the names of the YAML files of each group, ours and those in the user's folder."""
    ours = [one for one in conf_dir().iterdir() if one.is_dir()]
    groups = {group.name: sorted(file.stem for file in group.glob("*.yaml")) for group in ours}
    if folder is None:
        return groups
    if not folder.is_dir():
        raise UserError(f"--config-dir={folder} is not a folder; give one laid out like conf/")
    for file in sorted(folder.glob("*/*.yaml")):
        if file.stem in groups.get(file.parent.name, []):
            raise UserError(f"--config-dir has {file.parent.name}/{file.name}, a name raysearch uses; rename the file")
        groups.setdefault(file.parent.name, []).append(file.stem)
    return groups


def section_of(word: str) -> str:
    """Return the first part of a word's key: ``data`` of ``data.samples=8``."""
    return word.partition("=")[0].partition(".")[0]


def quoted(value: str) -> str:
    """Return text as Hydra reads it, whatever it holds."""
    written: str = QuotedString(value, Quote.single).with_quotes()
    return written


def items_of(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of nested values, dotted, and what stands there."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from items_of(value, f"{prefix}{key}.")
