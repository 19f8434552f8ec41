"""From ``key=value`` words and the YAML files under ``conf/`` to one resolved configuration.

The only place that knows Hydra. Its compose API merges the groups; this module finds the files, reads what the user
wrote, and turns every mistake into one sentence.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
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

from raysearch.errors import UserError, did_you_mean

_PACKAGE = Path(__file__).resolve().parent
_AXES = "study.grid."
_HYDRAS_OWN = ("+", "~", "hydra.")  # words that Hydra would take, and we do not
_FREE = ("assess.texts.",)  # mappings whose keys are the user's own


def conf_dir() -> Path:
    """The folder of the YAML files: inside the package when installed, beside it in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def compose(job: str, overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
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
    groups = _groups(config_dir)
    axes = [override for override in overrides if override.startswith(_AXES)]
    words = [word for override in overrides if override not in axes for word in _read(override, groups)]
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            path = [f"hydra.searchpath=[{_quote(f'file://{config_dir.resolve()}')}]"] if config_dir else []
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
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"the configuration cannot be composed: {str(error).splitlines()[0]}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1} of {mark.name}" if mark else f"a file of --config-dir={config_dir}"
        raise UserError(f"{where} is not YAML ({getattr(error, 'problem', None) or error}); mend it") from error
    resolved["choices"] = dict(sorted(choices.items()))
    for axis in axes:
        _set_axis(resolved, axis)
    if resolved.get("objective", {}).get("parts") is not None:
        _resolve_parts(resolved, overrides, config_dir)
    if isinstance(resolved.get("assess"), dict):
        _resolve_texts(resolved["assess"], config_dir)
    return resolved


def _set_axis(resolved: Mapping[str, Any], override: str) -> None:
    """Puts an axis of a study's grid, whose keys are anybody's, in its place; null takes it away."""
    key, equals, value = override.partition("=")
    if not equals or "study" not in resolved:
        raise UserError(f"{override!r} is not understood; write axes as study.grid.searcher=[one_shot,greedy]")
    try:
        values = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"{override} is not understood; write a list, such as {key}=[one_shot,greedy]") from error
    grid, axis = resolved["study"]["grid"], key.removeprefix(_AXES)
    if values is None:
        grid.pop(axis, None)
    else:
        grid[axis] = values


def compose_calibration(words: str, overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
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
    inherited = [word for word in overrides if word.split("=")[0].split(".")[0] in kept]
    whole = compose("judge", [*inherited, *own], config_dir)
    if whole["objective"].get("parts") is not None:
        raise UserError(f"{words!r} is weighted itself; name the parts one by one")
    choices = {group: whole["choices"][group] for group in ("objective", "data")}
    return {"objective": whole["objective"], "data": whole["data"], "choices": choices}


def _resolve_parts(config: dict[str, Any], overrides: Sequence[str], config_dir: Path | None) -> None:
    """Puts in place of each part's words what they stand for, and names all their data as that of the whole."""
    parts = config["objective"]["parts"]
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, dict) or set(part) != {"weight", "of"} or not isinstance(part["of"], str):
            raise UserError(
                f"objective.parts has {json.dumps(part)}; write each part as {{weight: 1.0, of: 'objective=… data=…'}}"
            )
        part |= compose_calibration(part["of"], overrides, config_dir)
    config["choices"]["data"] = "+".join(dict.fromkeys(part["choices"]["data"] for part in parts))


def _resolve_texts(assess: dict[str, Any], config_dir: Path | None) -> None:
    """Puts in place of each text's words the data that they name; a text without words is left out."""
    given = assess.get("texts")
    if not isinstance(given, dict) or not all(isinstance(words, str | None) for words in given.values()):
        raise UserError(
            "assess.texts names each text by its words, as in assess.texts.mine='data=file data.path=my.txt …'"
        )
    composed = {name: compose_calibration(words, (), config_dir) for name, words in given.items() if words}
    assess["texts"] = {name: one["data"] for name, one in composed.items()}


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as ``key=value`` words; a mapping stands for the keys inside a group.

    ``{"remove": 5, "data": {"path": "a.txt"}}`` becomes ``remove=5`` and ``data.path='a.txt'``. Text stays text, even
    where it reads like a number.

    Raises:
        UserError: A value is of a kind that no key takes.
    """
    choices = _groups(None)
    words = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            words += [f"{key}.{word}" for word in _key_words(value)]
        elif key in choices and isinstance(value, str | os.PathLike):
            words.append(f"{key}={os.fspath(value)}")
        else:
            words += _key_words({key: value})
    return words


def _key_words(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, str | os.PathLike):
            yield f"{key}={_quote(os.fspath(value))}"
        else:
            yield f"{key}={json.dumps(value, default=partial(_as_list, key))}"


def _as_list(key: str, part: object) -> list[Any]:
    """What JSON does not know as a list of what it may know: a mask, a set, an array."""
    if isinstance(part, Iterable):
        return [item.item() if hasattr(item, "item") else item for item in part]  # NumPy's numbers
    raise UserError(f"{key}={part!r} is a {type(part).__name__}; give text, a number, a list or a mapping")


def _groups(config_dir: Path | None) -> dict[str, list[str]]:
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
        new = "++" if key.startswith(_FREE) else ""  # Hydra's word for a key that may be a new one
        yield f"{new}{key}={_quoted_if_needed(key, value)}"


def _choose(group: str, value: str, names: list[str]) -> Iterator[str]:
    """A group's choice; a model may also be a hub id, a folder or a GGUF file."""
    if value in names:
        yield f"{group}={value}"
    elif group == "model" and ("/" in value or value.endswith(".gguf") or Path(value).exists()):
        yield "model=custom"
        yield f"model.path={_quote(value)}"
    else:
        also = "; or give a hub id (owner/name), a folder or a .gguf file" if group == "model" else ""
        raise UserError(f"{group}={value} is unknown; {did_you_mean(value, names)}{also}")


def _quoted_if_needed(key: str, value: str) -> str:
    """The value as it is if Hydra's grammar takes it for a number, a list or such, else quoted: names hold anything."""
    try:
        parsed = OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return _quote(value)
    if parsed.is_sweep_override():
        return _quote(value) if Path(value).exists() else _refuse_sweep(key, value)
    return _quote(value) if isinstance(parsed.value(), str) and value[:1] not in ("'", '"') else value


def _refuse_sweep(key: str, value: str) -> str:
    raise UserError(
        f"{key}={value} holds several values; give one, a list as {key}=[{value}], or text as {key}=\"'{value}'\""
    )


def _quote(value: str) -> str:
    quoted: str = QuotedString(value, Quote.single).with_quotes()
    return quoted


def _check_keys(job: str, path: list[str], words: list[str], groups: Mapping[str, list[str]]) -> None:
    """Names the nearest key for one that does not exist."""
    chosen = [word for word in words if word.partition("=")[0] in groups]
    known = set(_flatten(hydra_compose(job, [*path, *chosen])))
    for word in words:
        key = word.partition("=")[0]
        if key not in known and key not in groups and not key.startswith("++"):
            raise UserError(f"{key} is no key of this configuration; {did_you_mean(key, known | set(groups))}")


def _missing(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key that still has to be given; what refers to one of them is none."""
    for key in map(str, config):
        node = config._get_node(key)
        if OmegaConf.is_dict(node):
            yield from _missing(node, f"{prefix}{key}.")  # type: ignore[arg-type]
        elif node._value() == "???":  # type: ignore[union-attr]
            yield f"{prefix}{key}"


def _flatten(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, config):
        yield f"{prefix}{key}"
        if not OmegaConf.is_missing(config, key) and OmegaConf.is_dict(config._get_node(key)):
            yield from _flatten(config._get_node(key), f"{prefix}{key}.")  # type: ignore[arg-type]
