"""Builds the object that the keys of a section describe.

The configuration is the constructor: `type` names the class, and the other keys are its fields. A class is named by its
module in raysearch, by the entry point of an installed package, or, as ``my_module.MyClass``, by its place in a module
that this process has imported already. A configuration imports nothing else. Modules that import torch are imported on
first use.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from raysearch.core.validation import unknown_key, validated
from raysearch.errors import Mistakes, UserError
from raysearch.searchers.base import Searcher
from raysearch.text.sentences import as_typed, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from raysearch.calibration.data import Data
    from raysearch.calibration.objectives.base import Objective

_PACKAGE = Path(__file__).resolve().parents[1]
_SEARCHERS = ("searchers", "bridges")
_OBJECTIVES = ("calibration.objectives",)
_FORMATS = ("calibration.formats",)
_PACKAGES = (*_SEARCHERS, *_OBJECTIVES)
#: The sections that accept an object in place of their keys, in Python.
OBJECTS = ("searcher", "objective")


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside the package when installed, next to it in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def groups_of(folder: Path | None = None) -> dict[str, list[str]]:
    """Return the names of the YAML files of each group.

    Args:
        folder: The user's folder, whose files are added to those of ``conf/``.

    Raises:
        UserError: The folder does not exist, or has a file with a name that ``conf/`` uses.
    """
    group_folders = [path for path in conf_dir().iterdir() if path.is_dir()]
    groups = {group.name: sorted(file.stem for file in group.glob("*.yaml")) for group in group_folders}
    if folder is None:
        return groups
    if not folder.is_dir():
        raise UserError(f"--config-dir={folder} is not a folder; give one laid out like conf/")
    for file in sorted(folder.glob("*/*.yaml")):
        if file.stem in groups.get(file.parent.name, []):
            raise UserError(f"--config-dir has {file.parent.name}/{file.name}, a name raysearch uses; rename the file")
        groups.setdefault(file.parent.name, []).append(file.stem)
    return groups


def build_searcher(values: Mapping[str, Any]) -> Searcher:
    """Build a searcher from the keys of a file in ``conf/searcher/``.

    Raises:
        UserError: All mistakes: keys that are unknown or missing, values of the wrong type or out of range.
    """
    searcher: Searcher = _build("searcher", values)
    return searcher


def build_objective(values: Mapping[str, Any]) -> Objective:
    """Build an objective from the keys of a file in ``conf/objective/``; errors are those of `build_searcher`."""
    objective: Objective = _build("objective", values)
    return objective


def build_data(values: Mapping[str, Any]) -> Data:
    """Build data from the keys of a file in ``conf/data/``: the source of rows, their format, the draw of samples.

    Raises:
        UserError: All mistakes, as in `build_searcher`.
    """
    from raysearch.calibration.data import Data
    from raysearch.calibration.rows import Rows

    format_class = _class_of("data", values)
    row_values = _values_for(Rows, values)
    format_values = _values_for(format_class, values)
    draw_values = _values_for(format_class.draws, values)
    known_keys = [field.name for part in (Rows, format_class, format_class.draws) for field in dataclasses.fields(part)]
    mistakes = Mistakes()
    for key in values.keys() - {"type", *known_keys}:
        mistakes.add(unknown_key(f"data.{key}", known_keys))
    with mistakes:
        rows = validated(Rows, "data", row_values)
    with mistakes:
        row_format = validated(format_class, "data", format_values)
    with mistakes:
        draw = validated(format_class.draws, "data", draw_values)
    mistakes.raise_if_any()
    return Data(rows, row_format, draw)


def _values_for(part: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those keys that are fields of a dataclass."""
    return {field.name: values[field.name] for field in dataclasses.fields(part) if field.name in values}


def values_of(part: DataclassInstance) -> dict[str, Any]:
    """Return the keys of a section from which an equal searcher or objective can be built."""
    kind = type(part)
    package, _, module = kind.__module__.rpartition(".")
    is_ours = package in {f"raysearch.{ours}" for ours in _PACKAGES}
    name = module if is_ours else f"{kind.__module__}.{kind.__qualname__}"
    if name != module and _loaded_class(name) is not kind:
        raise UserError(f"{kind.__qualname__} is a class inside a function; define it at the top of a module")
    values = dataclasses.asdict(part)
    return {"type": name, **{field.name: values[field.name] for field in dataclasses.fields(part) if field.init}}


class _Family(NamedTuple):
    """The classes that the key ``type`` of a section can name.

    Args:
        packages: The packages of raysearch with a module for each class.
        base: The class that all of them extend.
    """

    packages: tuple[str, ...]
    base: type

    @property
    def modules(self) -> dict[str, str]:
        """The full name of each module by the name that ``type`` has."""
        return {
            module.name: f"raysearch.{package}.{module.name}"
            for package in self.packages
            for module in pkgutil.iter_modules(importlib.import_module(f"raysearch.{package}").__path__)
            if not module.ispkg and module.name != "base"
        }


def _family_of(section: str) -> _Family:
    """Return the classes that ``type`` can name in a section. Only this function knows the sections with a ``type``."""
    if section == "searcher":
        return _Family(_SEARCHERS, Searcher)
    if section == "objective":
        from raysearch.calibration.objectives.base import Objective

        return _Family(_OBJECTIVES, Objective)
    from raysearch.calibration.formats.base import Format

    return _Family(_FORMATS, Format)


def classes_of(section: str) -> dict[str, Any]:
    """Return the classes of raysearch that ``type`` can name in a section, by that name.

    Args:
        section: ``searcher``, ``objective`` or ``data``.
    """
    family = _family_of(section)
    candidates = {
        name: _candidates(importlib.import_module(module), family.base) for name, module in family.modules.items()
    }
    usable = {name: [kind for kind in kinds if not _fault(kind)] for name, kinds in candidates.items()}
    return {name: kinds[0] for name, kinds in usable.items() if len(kinds) == 1}


def _build(section: str, values: Mapping[str, Any]) -> Any:
    part = _class_of(section, values)
    return validated(part, section, {key: value for key, value in values.items() if key != "type"})


def _class_of(section: str, values: Mapping[str, Any]) -> Any:
    """Return the only complete dataclass at the place that the section's `type` names."""
    family = _family_of(section)
    modules = family.modules
    if "type" not in values:
        raise UserError(f"{section}.type has no value; {did_you_mean('', modules)}")
    kind = as_typed(values["type"])
    setting = f"{section}.type={kind}"
    if kind in modules:
        place: ModuleType | type = importlib.import_module(modules[kind])
    else:
        place = _foreign_place(family.packages[0], kind, setting, modules)
    faults = {candidate: _fault(candidate) for candidate in _candidates(place, family.base)}
    usable = [candidate for candidate, fault in faults.items() if not fault]
    if len(usable) != 1:
        reasons = [*filter(None, faults.values())]
        why = f" ({', '.join(reasons)})" if reasons else ""
        raise UserError(
            f"{setting} cannot be used: {place.__name__} has {len(usable)} dataclasses that are a "
            f"{family.base.__name__} with all its methods{why}; let it have one, or choose one of conf/{section}/"
        )
    return usable[0]


def _candidates(place: ModuleType | type, base: type) -> list[type]:
    """Return the classes that extend `base`: a class itself, or those that a module defines."""
    if isinstance(place, type):
        return [place] if issubclass(place, base) else []
    members = [member for _, member in inspect.getmembers(place, inspect.isclass)]
    return [member for member in members if member.__module__ == place.__name__ and issubclass(member, base)]


def _foreign_place(package: str, kind: str, setting: str, modules: Iterable[str]) -> ModuleType | type:
    """Return the module or class of this name, from an installed package or a module that has been imported."""
    group = f"raysearch.{package.rpartition('.')[2]}"
    plugins = {plugin.name: plugin for plugin in entry_points(group=group)}
    if kind in plugins:
        try:
            plugin_object: ModuleType | type = plugins[kind].load()
        except Exception as error:  # another package may raise anything
            place = plugins[kind].value
            raise UserError(f"{setting} is {place}, which cannot be imported ({error}); mend that package") from error
        return plugin_object
    if (loaded := _loaded_class(kind)) is not None:
        return loaded
    remedy = did_you_mean(kind, [*modules, *plugins])
    if "." in kind:
        remedy = f"import its module first, in Python, or install a package with an entry point in {group}"
    raise UserError(f"{setting} is unknown; {remedy}")


def _loaded_class(name: str) -> type | None:
    """Return the class of a name such as ``my_module.MyClass``, if its module has been imported."""
    module, _, class_name = name.rpartition(".")
    member = getattr(sys.modules.get(module), class_name, None)
    return member if isinstance(member, type) else None


def _fault(part: Any) -> str:
    """Return why a class cannot be built from a configuration; empty if it can."""
    attributes: set[str] = set()
    for kind in part.__mro__:
        annotations = inspect.get_annotations(kind)
        attributes |= {name for name, annotation in annotations.items() if "ClassVar" in str(annotation)}
    if lacking := [*part.__abstractmethods__, *(name for name in attributes if not hasattr(part, name))]:
        return f"{part.__name__} lacks {' and '.join(sorted(lacking))}"
    return "" if dataclasses.is_dataclass(part) else f"{part.__name__} is not a @dataclass"
