"""Composes the configuration of a command.

Some values hold overrides themselves: the parts of a weighted objective, the texts of an assessment, the recovery of a
search. They are composed here, too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.configuration.merge import MergedConfig, merge
from raysearch.configuration.overrides import Override, as_overrides, key_of, section_of
from raysearch.core.paths import PathLike
from raysearch.errors import Mistakes, UserError, within


def compose(job: str, overrides: Sequence[Override], config_dir: PathLike | None = None) -> dict[str, Any]:
    """Compose a configuration.

    Args:
        job: A file in ``conf/``: ``search``, ``score``, ``study`` …
        overrides: ``key=value`` texts, as on the command line, or Python values; of a key given twice, the last counts.
        config_dir: A folder of the user's own YAML files, laid out like ``conf/``.

    Returns:
        The resolved configuration as plain values, with the chosen file of each group under ``choices``.

    Raises:
        UserError: Overrides, keys or values are not understood, or values are missing.
    """
    merged = compose_leniently(job, overrides, config_dir)
    merged.mistakes.raise_if_any()
    return merged.config


def compose_leniently(job: str, overrides: Sequence[Override], config_dir: PathLike | None) -> MergedConfig:
    """Compose a configuration from the correct overrides; its mistakes are not raised yet.

    The caller adds the mistakes of what it builds from the configuration, and raises all of them together.

    Args:
        job: See `compose`.
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The configuration of the correct overrides, and the sentences of the mistakes.
    """
    merged = merge(job, overrides, config_dir)
    for section, resolve in _RESOLVERS.items():
        if section in merged.config:
            try:
                resolve(merged.config, merged.overrides, config_dir)
            except UserError as error:
                merged.mistakes.add(*error.sentences)
                merged.remove(section)
    return merged


def _resolve_parts(config: dict[str, Any], overrides: Sequence[Override], config_dir: PathLike | None) -> None:
    """Compose the overrides of each part of a weighted objective, and join the names of their data."""
    objective = config["objective"]
    mistakes = Mistakes()
    parts = objective.get("parts")
    remedy = "write each part as {weight: 1.0, of: 'objective=… data=…'}"
    if parts is None:
        if objective.get("type") == "weighted":
            raise UserError(f"objective.parts has no value; {remedy}")
        return
    for part in parts if isinstance(parts, list) else [parts]:
        with mistakes:
            if not isinstance(part, dict) or set(part) != {"weight", "of"} or not isinstance(part["of"], str):
                raise UserError(f"objective.parts has {json.dumps(part)}; {remedy}")
            part |= within("objective.parts", compose_calibration, part["of"], overrides, config_dir)
    mistakes.raise_if_any()
    config["choices"]["data"] = "+".join(dict.fromkeys(part["choices"]["data"] for part in parts))


def _resolve_texts(config: dict[str, Any], _: Sequence[Override], config_dir: PathLike | None) -> None:
    """Compose the overrides of each text and task to its data; an entry without overrides is left out."""
    assess = config["assess"]
    mistakes = Mistakes()
    for key, singular in (("texts", "text"), ("generation", "task")):
        entries = assess.get(key, {})
        assess[key] = {}
        with mistakes:
            if not isinstance(entries, dict) or not all(isinstance(entry, str | None) for entry in entries.values()):
                raise UserError(
                    f"assess.{key} names each {singular} by its overrides, as in "
                    f"assess.{key}.mine='data=file data.path=my.txt …'"
                )
            for name, overrides in entries.items():
                if overrides:
                    with mistakes:
                        calibration = within(f"assess.{key}.{name}", compose_calibration, overrides, (), config_dir)
                        assess[key][name] = calibration["data"]
    mistakes.raise_if_any()


def _resolve_healing(config: dict[str, Any], _: Sequence[Override], config_dir: PathLike | None) -> None:
    """Compose the overrides of the recovery after each stage; None if there is no recovery."""
    heal = config["heal"]
    text = heal.get("recover_with")
    if text is None:
        return
    if config["choices"]["heal"] == "none":
        raise UserError("heal.recover_with has overrides, and heal=none recovers nothing; add heal=recover")
    overrides = split_overrides(_recovery_text(text, "heal"), "heal.recover_with=")
    sections = ("data", "recovery", "assess")
    for override in overrides:
        if section_of(override) not in (*sections, "seed"):
            raise UserError(
                f"heal.recover_with has {override}, and models are recovered on the search's own cluster; give only "
                "overrides of data, recovery and assess"
            )
        if key_of(override) == "recovery.teacher":
            raise UserError(f"heal.recover_with has {override}, and the original model is the teacher; leave it out")
    composed = within("heal.recover_with", compose, "recover", overrides, config_dir)
    heal["recover_with"] = {name: composed[name] for name in (*sections, "choices")}


def _recovery_text(text: Any, section: str) -> str:
    """Return the overrides of a section's recovery, after checking that they are a text."""
    if not isinstance(text, str):
        raise UserError(
            f"{section}.recover_with={json.dumps(text)} is not a text; write overrides as after raysearch recover, "
            "such as 'data=alpaca recovery.method=full'"
        )
    return text


def _resolve_recovery(config: dict[str, Any], _: Sequence[Override], config_dir: PathLike | None) -> None:
    """Compose the overrides of a short recovery; None if no mask is to be recovered."""
    refine = config["refine"]
    text = _recovery_text(refine.get("recover_with"), "refine")
    if refine.get("masks") == 0:
        refine["recover_with"] = None
        return
    overrides = split_overrides(text, "refine.recover_with=")
    for override in overrides:
        if section_of(override) not in ("data", "recovery", "seed"):
            raise UserError(
                f"refine.recover_with has {override}, and masks are recovered on the search's own cluster and "
                "evaluated as the search does; give only overrides of data and recovery"
            )
        if key_of(override) == "recovery.max_steps":
            raise UserError(f"refine.recover_with has {override}, which refine.steps sets; leave it out")
    refine["recover_with"] = _compose_sections("recover", ("data", "recovery"), overrides, config_dir)


#: By section, the function that composes the overrides which it has as text.
_RESOLVERS = {
    "objective": _resolve_parts,
    "assess": _resolve_texts,
    "refine": _resolve_recovery,
    "heal": _resolve_healing,
}


def split_overrides(text: str, name: str = "") -> list[str]:
    """Return the overrides of a text, split as a shell splits it.

    Args:
        text: Such as ``data=file data.path='my text.txt'``.
        name: What the message puts before the text.

    Returns:
        The overrides, without their quotation marks.

    Raises:
        UserError: A quotation does not end.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}{text!r} is not understood ({error}); write key=value overrides") from error


def compose_calibration(
    text: str, command_overrides: Sequence[Override], config_dir: PathLike | None
) -> dict[str, Any]:
    """Compose another calibration of a command: an objective and its data.

    Args:
        text: The overrides that differ from the command's, as typed.
        command_overrides: Those of the command. Its ``seed`` holds for this calibration too; and so do its overrides of
            ``data``, unless the text chooses other data.
        config_dir: See `compose`.

    Returns:
        The sections ``objective`` and ``data``, and their chosen files under ``choices``.

    Raises:
        UserError: Overrides are not understood, or are not part of a calibration.
    """
    overrides = split_overrides(text)
    chooses_data = any(key_of(override) in ("data", "calibration") for override in overrides)
    shared_sections = ("seed",) if chooses_data else ("seed", "data")
    shared = [override for override in command_overrides if section_of(override) in shared_sections]
    calibration = _compose_sections("evaluation", ("objective", "data"), [*shared, *overrides], config_dir)
    for override in overrides:
        if section_of(override) not in ("calibration", "objective", "data", "seed"):
            raise UserError(
                f"{text!r} has {override}, which is not a part of a calibration; give it for the whole command"
            )
    if calibration["objective"].get("type") == "weighted":
        raise UserError(f"{text!r} is weighted itself; name the parts one by one")
    return calibration


def _compose_sections(
    job: str, names: Sequence[str], overrides: Sequence[Override], config_dir: PathLike | None
) -> dict[str, Any]:
    """Compose some sections of a job, with their chosen files under ``choices``."""
    merged = merge(job, overrides, config_dir)
    merged.mistakes.raise_if_any()
    choices = {name: merged.config["choices"][name] for name in names}
    return {**{name: merged.config[name] for name in names}, "choices": choices}


def with_section(section: str, config: Mapping[str, Any], overrides: Sequence[Override]) -> list[Override]:
    """Return overrides that take a section from another configuration, unless they choose another file for it.

    Args:
        section: The section's name.
        config: The configuration that has it.
        overrides: The overrides, which win.

    Returns:
        Overrides that set each key of the section, followed by `overrides`; or `overrides` alone.
    """
    if any(key_of(override) == section for override in overrides):
        return [*overrides]
    return [*as_overrides({section: config[section]}), *overrides]


def with_tracking(config: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return the configuration of a recorded search or study with another section ``tracking``.

    Args:
        config: The recorded configuration.
        overrides: Overrides of ``tracking``; none to change nothing.

    Returns:
        A copy of the configuration.

    Raises:
        UserError: An override is of another section.
    """
    for override in overrides:
        if section_of(override) != "tracking":
            raise UserError(
                f"{override} cannot be changed in a recorded search or study; leave it out, or give tracking.…="
            )
    # Earlier versions had a limit of the number of child runs.
    tracking = {key: value for key, value in config["tracking"].items() if key != "max_child_runs"}
    if overrides:
        tracking = compose("search", with_section("tracking", {"tracking": tracking}, overrides))["tracking"]
    return {**config, "tracking": tracking}
