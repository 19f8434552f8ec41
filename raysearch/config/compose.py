"""Composes the configuration of a command, with words within words: parts of objectives, texts, recoveries."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raysearch.config.merge import merge, section_of
from raysearch.config.parts import conf_dir
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
    with composed(job, words, config_dir) as (config, _):
        return config


@contextmanager
def composed(job: str, words: Sequence[str], config_dir: PathLike | None) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """A configuration of the words without mistakes, which are told with those of what is built of it; see `compose`.

    Yields:
        The configuration, without the sections that a mistake leaves unusable; and the words that are understood.
    """
    mistakes = Mistakes()
    config, understood = merge(job, words, config_dir, mistakes)
    for section, resolve in (
        ("objective", lambda: _resolve_parts(config, words, config_dir)),
        ("assess", lambda: _resolve_texts(config["assess"], config_dir)),
        ("refine", lambda: _resolve_recovery(config["refine"], config_dir)),
    ):
        if isinstance(config.get(section), dict):
            try:
                resolve()
            except UserError as error:
                mistakes.errors.append(error)
                del config[section]
    with mistakes:
        yield config, understood
    mistakes.tell()


def _resolve_parts(resolved: dict[str, Any], words: Sequence[str], config_dir: PathLike | None) -> None:
    """Put in place of each part's words what they stand for, and name all their data as that of the whole."""
    objective, mistakes = resolved["objective"], Mistakes()
    parts, how = objective.get("parts"), "write each part as {weight: 1.0, of: 'objective=… data=…'}"
    if parts is None:
        if objective.get("type") == "weighted":
            raise UserError(f"objective.parts has no value; {how}")
        return
    for part in parts if isinstance(parts, list) else [parts]:
        with mistakes:
            if not isinstance(part, dict) or set(part) != {"weight", "of"} or not isinstance(part["of"], str):
                raise UserError(f"objective.parts has {json.dumps(part)}; {how}")
            part |= within("objective.parts", functools.partial(compose_calibration, part["of"], words, config_dir))
    mistakes.tell()
    resolved["choices"]["data"] = "+".join(dict.fromkeys(part["choices"]["data"] for part in parts))


def _resolve_texts(assess: dict[str, Any], config_dir: PathLike | None) -> None:
    """Put in place of the words of each text and task the data that they name; one without words is left out."""
    mistakes = Mistakes()
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
                        step = functools.partial(compose_calibration, words, (), config_dir)
                        assess[key][name] = within(f"assess.{key}.{name}", step)["data"]
    mistakes.tell()


def _resolve_recovery(refine: dict[str, Any], config_dir: PathLike | None) -> None:
    """Put in place of the words of a short recovery what they stand for; nothing where no mask is to be recovered."""
    words = refine.get("recover_with")
    if not isinstance(words, str):
        raise UserError(
            f"refine.recover_with={json.dumps(words)} is not a text; write words as after raysearch recover, such as "
            "'data=alpaca recovery.method=full'"
        )
    if refine.get("masks") == 0:
        refine["recover_with"] = None
        return
    own = words_of(words, "refine.recover_with=")
    for word in own:
        if section_of(word) not in ("data", "recovery", "seed"):
            raise UserError(
                f"refine.recover_with has {word}, and masks are recovered on the search's own cluster and evaluated as "
                "the search does; give words of data and recovery alone"
            )
        if word.startswith("recovery.max_steps="):
            raise UserError(f"refine.recover_with has {word}, which refine.steps says; leave it out")
    refine["recover_with"] = _only(("data", "recovery"), "recover", own, config_dir)


def words_of(text: str, name: str = "") -> list[str]:
    """Return the words of a text, split as a shell does; the name is for messages."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}{text!r} is not understood ({error}); write key=value words") from error


def compose_calibration(words: str, others: Sequence[str], config_dir: PathLike | None = None) -> dict[str, Any]:
    """Compose an objective and its data that go beside those of a command.

    Args:
        words: What is different, as typed: ``objective=task_margin data=commonsense170k data.samples=32``.
        others: The command's own words; those on the data hold here too, unless `words` name other data.
        config_dir: A folder of the user's own YAML files.

    Returns:
        ``objective`` and ``data``, resolved, with the chosen files under ``choices``.

    Raises:
        UserError: As `compose`.
    """
    own = words_of(words)
    other_data = any(word.startswith(("data=", "calibration=")) for word in own)
    kept = ("seed",) if other_data else ("seed", "data")
    kept_words = [word for word in others if section_of(word) in kept]
    whole = _only(("objective", "data"), "evaluation", [*kept_words, *own], config_dir)
    for word in own:
        if section_of(word) not in ("calibration", "objective", "data", "seed"):
            raise UserError(
                f"{words!r} has {word}, which is not a part of a calibration; say that for the whole command"
            )
    if whole["objective"].get("type") == "weighted":
        raise UserError(f"{words!r} is weighted itself; name the parts one by one")
    return whole


def _only(groups: Sequence[str], job: str, words: Sequence[str], config_dir: PathLike | None) -> dict[str, Any]:
    """Compose a job from words within words, and return some of its sections, with their files under ``choices``."""
    mistakes = Mistakes()
    config, _ = merge(job, words, config_dir, mistakes)
    mistakes.tell()
    choices = {group: config["choices"][group] for group in groups}
    return {group: as_section(group, config[group]) for group in groups} | {"choices": choices}


def as_section(name: str, value: Any) -> Mapping[str, Any]:
    """Return a section of a configuration.

    Raises:
        UserError: It is something else, as where a file of the user's own puts its keys elsewhere.
    """
    if not isinstance(value, Mapping):
        choose = f"choose one of conf/{name}/, or " if (conf_dir() / name).is_dir() else ""
        raise UserError(f"{name}={as_typed(value)} is not a section; {choose}set {name}.key=value")
    return value


def recorded(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a recorded search or study, as it is to be used now.

    Args:
        config: As recorded.
        words: ``tracking=…`` and ``tracking.key=…`` words, which alone change nothing of what is found.

    Raises:
        UserError: A word is another, or not understood.
    """
    named = {word.partition("=")[0] for word in words}
    for word in words:
        if section_of(word) != "tracking":
            raise UserError(f"{word} cannot be changed of what is on record; leave it out, or give tracking.…= words")
    tracking = config["tracking"]
    if words:
        kept = {} if "tracking" in named else {key: tracking[key] for key in tracking if f"tracking.{key}" not in named}
        tracking = compose("search", words)["tracking"] | kept
    return {**config, "tracking": tracking}
