"""Composes the configuration of a command, with words within words: parts of objectives, texts, recoveries."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.configuration.merge import Merged, merge, section_of
from raysearch.configuration.overrides import as_overrides
from raysearch.configuration.parts import conf_dir
from raysearch.core.formatting import as_typed
from raysearch.core.paths import PathLike
from raysearch.errors import Mistakes, UserError, within


def compose(job: str, words: Sequence[str], config_dir: PathLike | None = None) -> dict[str, Any]:
    """Compose a configuration.

    Args:
        job: A file in ``conf/``: ``search``, ``score``, ``study`` …
        words: ``key=value`` words, as on the command line; of a key given twice, the last value counts.
        config_dir: A folder of the user's own YAML files, laid out like ``conf/``.

    Returns:
        The resolved configuration, plain values, with the chosen file of each group under ``choices``.

    Raises:
        UserError: Words, keys or values are not understood, or values are missing.
    """
    (config,) = composed(job, words, config_dir).read(dict)
    return config


def composed(job: str, words: Sequence[str], config_dir: PathLike | None) -> Merged:
    """Compose a configuration of the words without mistakes, which are to be told with those of what is built of it."""
    found = merge(job, words, config_dir)
    for section, resolve in (("objective", _resolve_parts), ("assess", _resolve_texts), ("refine", _resolve_recovery)):
        value = found.config.get(section)
        if isinstance(value, dict) and found.mistakes.attempt(resolve, found.config, words, config_dir) is None:
            del found.config[section]
    return found


def _resolve_parts(config: dict[str, Any], words: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Put in place of each part's words what they stand for, and name all their data as that of the whole."""
    objective, mistakes = config["objective"], Mistakes()
    parts, how = objective.get("parts"), "write each part as {weight: 1.0, of: 'objective=… data=…'}"
    if parts is None:
        if objective.get("type") == "weighted":
            raise UserError(f"objective.parts has no value; {how}")
        return config
    for part in parts if isinstance(parts, list) else [parts]:
        with mistakes:
            if not isinstance(part, dict) or set(part) != {"weight", "of"} or not isinstance(part["of"], str):
                raise UserError(f"objective.parts has {json.dumps(part)}; {how}")
            part |= within("objective.parts", compose_calibration, part["of"], words, config_dir)
    mistakes.tell()
    config["choices"]["data"] = "+".join(dict.fromkeys(part["choices"]["data"] for part in parts))
    return config


def _resolve_texts(config: dict[str, Any], _: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Put in place of the words of each text and task the data that they name; one without words is left out."""
    assess, mistakes = config["assess"], Mistakes()
    for key, what in (("texts", "text"), ("generation", "task")):
        given, assess[key] = assess.get(key, {}), {}
        with mistakes:
            if not isinstance(given, dict) or not all(isinstance(words, str | None) for words in given.values()):
                raise UserError(
                    f"assess.{key} names each {what} by its words, as in "
                    f"assess.{key}.mine='data=file data.path=my.txt …'"
                )
            for name, words in given.items():
                if words:
                    with mistakes:
                        found = within(f"assess.{key}.{name}", compose_calibration, words, (), config_dir)
                        assess[key][name] = found["data"]
    mistakes.tell()
    return config


def _resolve_recovery(config: dict[str, Any], _: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Put in place of the words of a short recovery what they stand for; nothing where no mask is to be recovered."""
    refine = config["refine"]
    words = refine.get("recover_with")
    if not isinstance(words, str):
        raise UserError(
            f"refine.recover_with={json.dumps(words)} is not a text; write words as after raysearch recover, such as "
            "'data=alpaca recovery.method=full'"
        )
    if refine.get("masks") == 0:
        refine["recover_with"] = None
        return config
    own = words_of(words, "refine.recover_with=")
    for word in own:
        if section_of(word) not in ("data", "recovery", "seed"):
            raise UserError(
                f"refine.recover_with has {word}, and masks are recovered on the search's own cluster and evaluated as "
                "the search does; give words of data and recovery alone"
            )
        if word.startswith("recovery.max_steps="):
            raise UserError(f"refine.recover_with has {word}, which refine.steps says; leave it out")
    refine["recover_with"] = _sections("recover", ("data", "recovery"), own, config_dir)
    return config


def words_of(text: str, name: str = "") -> list[str]:
    """Return the words of a text, split as a shell does; the name is for messages."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}{text!r} is not understood ({error}); write key=value words") from error


def compose_calibration(words: str, others: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Compose an objective and its data, with their files under ``choices``, that go beside those of a command.

    The words say what is different, as typed. Those of the command on the data hold here too, unless there are others.
    """
    own = words_of(words)
    other_data = any(word.startswith(("data=", "calibration=")) for word in own)
    kept = [word for word in others if section_of(word) in (("seed",) if other_data else ("seed", "data"))]
    whole = _sections("evaluation", ("objective", "data"), [*kept, *own], config_dir)
    for word in own:
        if section_of(word) not in ("calibration", "objective", "data", "seed"):
            raise UserError(
                f"{words!r} has {word}, which is not a part of a calibration; say that for the whole command"
            )
    if whole["objective"].get("type") == "weighted":
        raise UserError(f"{words!r} is weighted itself; name the parts one by one")
    return whole


def _sections(job: str, names: Sequence[str], words: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Return some sections of what words within words stand for, with their files under ``choices``."""
    found = merge(job, words, config_dir)
    found.mistakes.tell()
    choices = {name: found.config["choices"][name] for name in names}
    return {**{name: as_section(name, found.config[name]) for name in names}, "choices": choices}


def as_section(name: str, value: Any) -> Mapping[str, Any]:
    """Refuse what is no section, as where a file of the user's own puts its keys elsewhere."""
    if not isinstance(value, Mapping):
        choose = f"choose one of conf/{name}/, or " if (conf_dir() / name).is_dir() else ""
        raise UserError(f"{name}={as_typed(value)} is not a section; {choose}set {name}.key=value")
    return value


def after(section: str, config: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """Return words, before them those of a section of a configuration, unless they choose another file of it."""
    chooses = any(word.startswith(f"{section}=") for word in words)
    return [*words] if chooses else [*as_overrides({section: config[section]}), *words]


def recorded(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a search or study on record, changed by words on ``tracking`` alone."""
    for word in words:
        if section_of(word) != "tracking":
            raise UserError(f"{word} cannot be changed of what is on record; leave it out, or give tracking.…= words")
    tracking = compose("search", after("tracking", config, words))["tracking"] if words else config["tracking"]
    return {**config, "tracking": tracking}
