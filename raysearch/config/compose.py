"""From ``key=value`` words and the YAML files under ``conf/`` to one resolved configuration.

The only place that knows Hydra. Its compose API merges the groups; this module finds the files, reads what the user
wrote, and turns every mistake into one sentence.
"""

from __future__ import annotations

import json
import os
import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raysearch.config.parts import conf_dir
from raysearch.core.paths import PathLike, as_path
from raysearch.errors import HIDDEN, UserError, did_you_mean, first_line

#: Mappings whose keys are the user's own: axes, whose values are YAML, and others, which Hydra reads.
AXES, FREE = "study.grid.", ("assess.texts.",)
#: The sections of which a calibration beside others may say something.
_CALIBRATION = ("calibration", "objective", "data", "seed")
_HYDRAS_OWN = ("+", "~", "hydra.")  # words that Hydra would take, and we do not
#: What Hydra, OmegaConf and PyYAML raise at a file or a value that they do not understand.
_UNREADABLE = (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError)


def compose(job: str, overrides: Sequence[str], config_dir: PathLike | None = None) -> dict[str, Any]:
    """Composes a configuration.

    Args:
        job: A file in ``conf/``: ``search`` or ``score``.
        overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of the user's own YAML files, laid out like ``conf/``.

    Returns:
        The resolved configuration, plain values, with the chosen file of each group under ``choices``.

    Raises:
        UserError: A word, key or value is not understood, or a value is missing.
    """
    config_dir = None if config_dir is None else as_path("--config-dir", config_dir)
    groups = groups_of(config_dir)
    for word in overrides:
        if not isinstance(word, str):
            raise UserError(f"{reprlib.repr(word)} is not understood; give words as text, such as 'remove=5'")
    axes = [override for override in overrides if job == "study" and override.startswith(AXES)]
    last = {override.partition("=")[0]: override for override in overrides}  # of a choice given twice, this one
    given = [one for one in overrides if one not in axes and last.get(one.partition("=")[0], one) == one]
    words = [word for override in given for word in _read(override, groups)]
    if config_dir is not None:
        _check_files(config_dir, words)
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            path = [f"hydra.searchpath=[{quoted(f'file://{config_dir.resolve()}')}]"] if config_dir else []
            if any(override.startswith(_HYDRAS_OWN) for override in overrides):
                _check_keys(job, path, words, groups)
            try:
                config = hydra_compose(job, [*path, *words], return_hydra_config=True)
            except HydraException:
                _check_keys(job, path, words, groups)  # says it better, if a key was the cause
                raise
            choices = {key: name for key, name in config.hydra.runtime.choices.items() if key in groups and name}
            OmegaConf.set_struct(config, False)
            del config["hydra"]
            for missing in sorted(_missing(config), key=len):
                raise UserError(f"{missing} has no value; give {missing}=…")
            resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    except _UNREADABLE as error:
        whose = "" if config_dir is None else f" and the files of --config-dir={config_dir}"
        raise UserError(f"the configuration cannot be composed: {first_line(error)}; check the words{whose}") from error
    resolved["choices"] = dict(sorted(choices.items()))
    for axis in axes:
        _set_axis(resolved, axis)
    if resolved.get("objective", {}).get("parts") is not None:
        _resolve_parts(resolved, overrides, config_dir)
    if isinstance(resolved.get("assess"), dict):
        _resolve_texts(resolved["assess"], config_dir)
    return resolved


def _check_files(config_dir: Path, words: Sequence[str]) -> None:
    """Reads the user's own files among those chosen, of which Hydra says less clearly, or not at all, what is wrong."""
    for word in words:
        group, _, name = word.partition("=")
        file = config_dir / group / f"{name}.yaml"
        if not os.path.lexists(file):
            continue
        try:
            OmegaConf.load(file)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1} of {file}" if mark else str(file)
            raise UserError(f"{where} is not YAML ({getattr(error, 'problem', None) or error}); mend it") from error
        except _UNREADABLE as error:
            raise UserError(f"{file} cannot be read ({first_line(error)}); write keys and values in UTF-8") from error


def _set_axis(resolved: Mapping[str, Any], override: str) -> None:
    """Puts an axis of a study's grid, whose keys are anybody's, in its place; null takes it away."""
    key, equals, value = override.partition("=")
    if not equals:
        raise UserError(f"{override!r} is not understood; write axes as study.grid.searcher=[one_shot,greedy]")
    try:
        values = yaml.safe_load(value)
        json.dumps(values)  # neither dates nor what refers to itself
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{override} is not understood; write a list, such as {key}=[one_shot,greedy]") from error
    grid, axis = resolved["study"].get("grid"), key.removeprefix(AXES)
    if not isinstance(grid, dict):
        raise UserError(f"study.grid={json.dumps(grid)} is no mapping; give axes such as {key}=[one_shot,greedy]")
    if values is None:
        grid.pop(axis, None)
    else:
        grid[axis] = values


def recorded(config: Mapping[str, Any], words: Sequence[str], **here: Any) -> dict[str, Any]:
    """The configuration of a recorded search or study, as it is to be used now.

    Args:
        config: As recorded.
        words: ``tracking=…`` and ``tracking.key=…`` words, which alone change nothing of what is found.
        here: Top-level values that depend on where the command is typed.

    Raises:
        UserError: A word is another, or not understood, or a secret is needed that the record does not keep.
    """
    for word in words:
        if section_of(word) != "tracking":
            raise UserError(f"{word} cannot be changed of what is on record; leave it out, or give tracking.…= words")
    tracking, named = config["tracking"], {word.partition("=")[0] for word in words}
    if words:
        new = compose("search", words)["tracking"]
        kept = {} if "tracking" in named else {key: tracking[key] for key in tracking if f"tracking.{key}" not in named}
        tracking = new | kept
    if HIDDEN in str(tracking["experiment"]):
        raise UserError("tracking.experiment is on record without its secret; give it again with tracking.experiment=…")
    return {**config, **here, "tracking": tracking}


def compose_calibration(words: str, overrides: Sequence[str], config_dir: PathLike | None = None) -> dict[str, Any]:
    """Composes an objective and its data that go beside those of a command.

    Args:
        words: What is different, as typed: ``objective=task_margin data=commonsense170k data.samples=32``.
        overrides: The command's own words, of which those on the data hold here too, unless `words` name other data.
        config_dir: A folder of the user's own YAML files.

    Returns:
        ``objective`` and ``data``, resolved, with the chosen files under ``choices``.

    Raises:
        UserError: As `compose`.
    """
    try:
        own = shlex.split(words)
    except ValueError as error:
        raise UserError(f"{words!r} is not understood ({error}); write key=value words") from error
    other_data = any(word.startswith(("data=", "calibration=")) for word in own)
    kept = ("seed",) if other_data else ("seed", "data")
    inherited = [word for word in overrides if section_of(word) in kept]
    whole = compose("evaluation", [*inherited, *own], config_dir)
    for word in own:
        if section_of(word) not in _CALIBRATION:
            raise UserError(f"{words!r} has {word}, which is no part of a calibration; say that for the whole command")
    if whole["objective"].get("parts") is not None:
        raise UserError(f"{words!r} is weighted itself; name the parts one by one")
    choices = {group: whole["choices"][group] for group in ("objective", "data")}
    return {"objective": whole["objective"], "data": whole["data"], "choices": choices}


def _resolve_parts(config: dict[str, Any], overrides: Sequence[str], config_dir: PathLike | None) -> None:
    """Puts in place of each part's words what they stand for, and names all their data as that of the whole."""
    parts = config["objective"]["parts"]
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, dict) or set(part) != {"weight", "of"} or not isinstance(part["of"], str):
            raise UserError(
                f"objective.parts has {json.dumps(part)}; write each part as {{weight: 1.0, of: 'objective=… data=…'}}"
            )
        part |= compose_calibration(part["of"], overrides, config_dir)
    config["choices"]["data"] = "+".join(dict.fromkeys(part["choices"]["data"] for part in parts))


def _resolve_texts(assess: dict[str, Any], config_dir: PathLike | None) -> None:
    """Puts in place of each text's words the data that they name; a text without words is left out."""
    given = assess.get("texts")
    if not isinstance(given, dict) or not all(isinstance(words, str | None) for words in given.values()):
        raise UserError(
            "assess.texts names each text by its words, as in assess.texts.mine='data=file data.path=my.txt …'"
        )
    composed = {name: compose_calibration(words, (), config_dir) for name, words in given.items() if words}
    assess["texts"] = {name: one["data"] for name, one in composed.items()}


def groups_of(config_dir: Path | None) -> dict[str, list[str]]:
    """The YAML names of each group, ours and the user's."""
    groups = {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in conf_dir().iterdir()
        if folder.is_dir()
    }
    if config_dir is None:
        return groups
    if not config_dir.is_dir():
        raise UserError(f"--config-dir={config_dir} is not a folder; give one laid out like conf/")
    for file in sorted(config_dir.glob("*/*.yaml")):
        if file.stem in groups.get(file.parent.name, []):
            raise UserError(f"--config-dir has {file.parent.name}/{file.name}, a name raysearch uses; rename the file")
        groups.setdefault(file.parent.name, []).append(file.stem)
    return groups


def section_of(word: str) -> str:
    """The first part of a word's key: ``data`` of ``data.samples=8``."""
    return word.partition("=")[0].partition(".")[0]


def _read(override: str, groups: Mapping[str, list[str]]) -> Iterator[str]:
    """One word of the user's as words that Hydra understands."""
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override!r} is not understood; write options as key=value, such as remove=5")
    if "${" in value:
        raise UserError(f"{override} refers to another key; give the value itself")
    if key in groups:
        yield from _choose(key, value, groups[key])
    else:
        new = "++" if key.startswith(FREE) else ""  # Hydra's word for a key that may be a new one
        yield f"{new}{key}={_quoted_if_needed(key, value)}"


def _choose(group: str, value: str, names: list[str]) -> Iterator[str]:
    """A group's choice; a model may also be a hub id, a folder or a GGUF file."""
    if value in names:
        yield f"{group}={value}"
    elif group == "model" and ("/" in value or value.endswith(".gguf") or os.path.exists(value)):
        yield "model=custom"
        yield f"model.path={quoted(value)}"
    else:
        also = "; or give a hub id (owner/name), a folder or a .gguf file" if group == "model" else ""
        raise UserError(f"{group}={value} is unknown; {did_you_mean(value, names)}{also}")


def _quoted_if_needed(key: str, value: str) -> str:
    """The value as it is if Hydra's grammar takes it for a number, a list or such, else quoted: names hold anything."""
    try:
        parsed = OverridesParser.create().parse_override(f"{key}={value}")
    except (HydraException, ValueError, RecursionError):  # such as a number of thousands of digits
        return quoted(value)
    if parsed.is_sweep_override():
        return quoted(value) if os.path.exists(value) else _refuse_sweep(key, value)
    return quoted(value) if isinstance(parsed.value(), str) and value[:1] not in ("'", '"') else value


def _refuse_sweep(key: str, value: str) -> str:
    raise UserError(
        f"{key}={value} holds several values; give one, a list as {key}=[{value}], or text as {key}=\"'{value}'\""
    )


def quoted(value: str) -> str:
    """Text as Hydra reads it, whatever it holds."""
    written: str = QuotedString(value, Quote.single).with_quotes()
    return written


def _check_keys(job: str, path: list[str], words: list[str], groups: Mapping[str, list[str]]) -> None:
    """Names the nearest key for one that does not exist."""
    taken = set(hydra_compose(job, path, return_hydra_config=True).hydra.runtime.choices) & set(groups)
    chosen = [word for word in words if word.partition("=")[0] in taken]
    known = set(_flatten(hydra_compose(job, [*path, *chosen]))) | taken
    for word in words:
        key = word.partition("=")[0]
        if key not in known and not key.startswith("++"):
            raise UserError(f"{key} is no key of this configuration; {did_you_mean(key, known)}")


def _missing(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key that still has to be given; what refers to one of them is none."""
    for key in config:
        node = config._get_node(key)
        if OmegaConf.is_dict(node):
            yield from _missing(node, prefix + str(key) + ".")  # type: ignore[arg-type]
        elif node._value() == "???":  # type: ignore[union-attr]
            yield prefix + str(key)


def _flatten(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        yield prefix + str(key)
        if not OmegaConf.is_missing(config, key) and OmegaConf.is_dict(config._get_node(key)):
            yield from _flatten(config._get_node(key), prefix + str(key) + ".")  # type: ignore[arg-type]
