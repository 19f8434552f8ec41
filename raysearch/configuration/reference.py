"""Writes the page of all keys of the configuration, from the classes that validate them and the files of ``conf/``."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from raysearch.assessment.spec import AnswerOptions, AssessSpec, ProbeOptions
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import WindowOptions
from raysearch.cluster.options import ClusterOptions
from raysearch.cluster.sizing import ReplicaRange
from raysearch.configuration.merge import items_of
from raysearch.configuration.parts import classes_of, conf_dir
from raysearch.configuration.tree import (
    HealSection,
    RefineSection,
    ScoreConfig,
    SearchConfig,
    StudyGrid,
    TrackingSection,
)
from raysearch.evaluation.screening import Screening
from raysearch.models.spec import ModelSpec
from raysearch.recovery.spec import RecoveryOptions
from raysearch.searching.recommendation import Budget
from raysearch.searching.serve_options import ServeOptions
from raysearch.searching.speed_options import SearchSpeedOptions, SpeedOptions
from raysearch.studies.spec import Margin, StopCriteria, StudyOptions
from raysearch.text.sentences import as_typed, listed

_HEAD = """# Configuration keys

All keys of the configuration, generated from the classes that validate them and from the files under `conf/`. A key is
given as `key=value` on the command line, as in `raysearch search searcher=beam searcher.width=3`, and as a keyword
argument in Python. `raysearch config` shows the values of a command, each with the file that sets it.

The default is that of the class; "—" means that there is none. Files under `conf/` that set the key take precedence;
*set in* names them.
"""
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # the limits of numbers as pydantic annotates them
_TYPES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
    Any: "any",
    type(None): "null",
}
_MOST_FILES = 4
#: The types of keys whose values are not those of their fields.
_TYPES_OF_KEYS = {
    "masks": "list of lists of layers, and of halves such as `17a`",
    "protect": "list of layers, and of halves such as `17a`",
    "space": "a name",
    "model.cache": "true or false",
    "target": "a name, or a list of names, or null",
    **dict.fromkeys(("budget.loss", "budget.speedup", "budget.latency_ms"), "number or null"),
    **dict.fromkeys(
        ("budget.readout", "budget.memory", "budget.kv_memory"), "number, or text with a unit such as `10%`, or null"
    ),
}


@dataclass(frozen=True)
class _Section:
    """Keys that belong together.

    Args:
        title: The title of their table.
        prefix: The dotted key of the section; empty for keys of no section.
        kind: The dataclass whose fields are the keys.
        left_out: The names of fields that are not keys, or that have their own sections.
    """

    title: str
    prefix: str
    kind: Any
    left_out: Sequence[str] = ()


def reference_page() -> str:
    """Return the page of all keys, in Markdown."""
    values_by_file = {
        file.relative_to(conf_dir()).as_posix(): dict(values_of_file(file))
        for file in sorted(conf_dir().rglob("*.yaml"))
    }
    return "\n".join([_HEAD, *(_table(section, values_by_file) for section in _sections())])


def _sections() -> Iterator[_Section]:
    """Yield the sections in the order of the page; the keys of no section come first."""
    sections = [*_sections_with_prefix()]
    prefixes = [section.prefix for section in sections]
    yield _Section("Search", "", SearchConfig, ["choices", *prefixes])
    yield _Section("Score", "", ScoreConfig, [field.name for field in dataclasses.fields(SearchConfig)])
    yield from sections


def _sections_with_prefix() -> Iterator[_Section]:
    """Yield the sections whose keys have a prefix, in the order of the page."""
    yield _Section("model", "model", ModelSpec)
    yield _Section("data: the rows", "data", Rows)
    yield _Section("data: the draw of windows of text", "data", WindowOptions)
    yield _Section("data: the draw of items", "data", ItemOptions)
    for name, kind in classes_of("data").items():
        yield _Section(f"data.type={name}", "data", kind)
    for name, kind in classes_of("objective").items():
        yield _Section(f"objective.type={name}", "objective", kind)
    yield _Section("objective.type=weighted", "objective", WeightedObjective, ["weights"])
    for name, kind in classes_of("searcher").items():
        yield _Section(f"searcher.type={name}", "searcher", kind)
    yield _Section("screening", "screening", Screening)
    yield _Section("budget", "budget", Budget)
    yield _Section("speed", "speed", SearchSpeedOptions)
    yield _Section("refine", "refine", RefineSection)
    yield _Section("heal", "heal", HealSection)
    yield _Section("cluster", "cluster", ClusterOptions)
    yield _Section("cluster.replicas as a range", "cluster.replicas", ReplicaRange)
    yield _Section("tracking", "tracking", TrackingSection)
    yield _Section("assess", "assess", AssessSpec, ["answers", "probe", "speed"])
    yield _Section("assess.answers", "assess.answers", AnswerOptions)
    yield _Section("assess.probe", "assess.probe", ProbeOptions)
    yield _Section("assess.speed", "assess.speed", SpeedOptions)
    yield _Section("serve", "serve", ServeOptions)
    yield _Section("recovery", "recovery", RecoveryOptions)
    yield _Section("study", "study", StudyOptions, ["stop", "margin"])
    yield _Section("study: searches and recoveries", "study", StudyGrid)
    yield _Section("study.stop", "study.stop", StopCriteria)
    yield _Section("study.margin", "study.margin", Margin)


def values_of_file(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that a file under ``conf/`` sets, with their values."""
    text = file.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    is_global = file.parent == conf_dir() or text.startswith("# @package _global_")
    return items_of(content if is_global else {file.parent.name: content})


def _table(section: _Section, values_by_file: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a section's heading and table; a section without keys is a sentence."""
    kind = section.kind
    fields = [field for field in dataclasses.fields(kind) if field.init and field.name not in section.left_out]
    lines = [f"## {section.title}", ""]
    if not fields:
        return "\n".join([*lines, "It has no keys.", ""])
    hints = get_type_hints(kind, include_extras=True)
    meanings = meanings_of(kind)
    lines += ["| key | type | default | meaning | set in |", "|---|---|---|---|---|"]
    for field in fields:
        key = f"{section.prefix}.{field.name}".removeprefix(".")
        files = [file for file, values in values_by_file.items() if key in values]
        cells = [
            f"`{key}`",
            _TYPES_OF_KEYS.get(key) or type_text(hints[field.name]),
            _default_text(field),
            meanings[field.name],
            listed([f"`{file}`" for file in files], _MOST_FILES),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field as typed; a dash if it has none."""
    if field.default is not dataclasses.MISSING:
        return f"`{as_typed(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{as_typed(field.default_factory())}`"
    return "—"


def type_text(kind: Any) -> str:
    """Return a type as text for people: ``integer > 0 or `auto` ``.

    Args:
        kind: The annotation of a field.
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if kind in _TYPES:
        return _TYPES[kind]
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_text, arguments))
    if origin is Annotated:
        base, *metadata = arguments
        limits = [limit for annotation in metadata for limit in _limits_of(annotation)]
        return " ".join([type_text(base), *limits])
    if origin is not None and issubclass(origin, Mapping):
        return "mapping"
    if origin is not None and issubclass(origin, Sequence):
        return f"list ({type_text(arguments[0])})"
    return "mapping" if dataclasses.is_dataclass(kind) else getattr(kind, "__name__", str(kind))


def _limits_of(annotation: Any) -> Iterator[str]:
    """Yield the limits of an annotation, such as ``> 0``."""
    for limit in getattr(annotation, "metadata", [annotation]):
        for name, sign in _SIGNS.items():
            if (bound := getattr(limit, name, None)) is not None:
                yield f"{sign} {bound}"


def meanings_of(kind: type) -> dict[str, str]:
    """Return the description of each field in the docstrings of a dataclass and of those that it extends.

    Args:
        kind: The dataclass.
    """
    meanings: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        text = inspect.cleandoc(parent.__doc__ or "")
        arguments = re.search(r"^Args:\n((?:    .*\n?|\n)*)", text, flags=re.MULTILINE)
        for name, meaning in re.findall(
            r"^    (\w+): (.*(?:\n {8}.*)*)", arguments[1] if arguments else "", flags=re.MULTILINE
        ):
            meanings[name] = " ".join(meaning.replace("``", "`").split())
    return meanings
