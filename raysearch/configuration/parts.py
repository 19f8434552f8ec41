"""From the keys of a section to the class of ours that they describe.

The configuration is the constructor: `type` names the class, and the other keys are its fields. A class is named by its
module of ours, by the entry point that an installed package has for it, or, as ``my_module.MyClass``, by its place in a
module that this process has imported already: a configuration imports nothing else. Types are checked here, with
pydantic; what a value means is checked by the class. What needs torch is imported where it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from raysearch.core.formatting import as_typed
from raysearch.core.options import checked
from raysearch.core.paths import as_path
from raysearch.errors import Mistakes, UserError, did_you_mean, together
from raysearch.searchers.base import Searcher

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from raysearch.calibration.data import Data
    from raysearch.calibration.objectives.base import Objective

Part = TypeVar("Part", bound="DataclassInstance")
_PACKAGE = Path(__file__).resolve().parents[1]
_SEARCHERS, _OBJECTIVES = ("searchers", "bridges"), ("calibration.objectives",)
_PACKAGES = (*_SEARCHERS, *_OBJECTIVES)
#: The sections that an object can stand for, in Python.
OBJECTS = ("searcher", "objective")


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside the package when installed, beside it in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def build_searcher(values: Mapping[str, Any]) -> Searcher:
    """Build a searcher from the keys of a file in ``conf/searcher/``.

    Raises:
        UserError: All that is wrong: keys that are unknown or missing, values of the wrong type or out of range.
    """
    return _build(_SEARCHERS, Searcher, "searcher", values)


def build_objective(values: Mapping[str, Any]) -> Objective:
    """Build an objective from the keys of a file in ``conf/objective/``; errors are those of `build_searcher`."""
    from raysearch.calibration.objectives.base import Objective

    return _build(_OBJECTIVES, Objective, "objective", values)


def build_data(values: Mapping[str, Any]) -> Data:
    """Build data from the keys of a file in ``conf/data/``: where rows come from, how they are read, how drawn."""
    from raysearch.calibration.data import Data
    from raysearch.calibration.formats.base import Format
    from raysearch.calibration.rows import Rows

    kind = _class_of(("calibration.formats",), Format, "data", values)
    given = {key: value for key, value in values.items() if key != "type"}
    steps, known = {}, set()
    for part, its in {"rows": Rows, "format": kind, "draw": kind.draws}.items():
        names = {field.name for field in dataclasses.fields(its)}
        steps[part] = partial(construct, its, "data", {key: given[key] for key in given if key in names})
        known |= names
    return Data(**together(partial(check_names, "data.", given, known), **steps))


def values_of(part: DataclassInstance) -> dict[str, Any]:
    """Return a searcher or an objective as the keys of a section, of which an equal one is built."""
    kind = type(part)
    package, _, module = kind.__module__.rpartition(".")
    name = module if package in {f"raysearch.{one}" for one in _PACKAGES} else f"{kind.__module__}.{kind.__qualname__}"
    if name != module and _loaded(name) is not kind:
        raise UserError(f"{kind.__qualname__} is a class inside a function; define it at the top of a module")
    values = dataclasses.asdict(part)
    return {"type": name, **{field.name: values[field.name] for field in dataclasses.fields(part) if field.init}}


def _build(packages: Sequence[str], base: type, section: str, values: Mapping[str, Any]) -> Any:
    part = _class_of(packages, base, section, values)
    return construct(part, section, {key: value for key, value in values.items() if key != "type"})


def _class_of(packages: Sequence[str], base: type, section: str, values: Mapping[str, Any]) -> Any:
    """Return the one dataclass that does all that a base asks for, where the section's `type` says."""
    modules = {
        module.name: f"raysearch.{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(f"raysearch.{package}").__path__)
        if not module.ispkg and module.name != "base"
    }
    if "type" not in values:
        raise UserError(f"{section}.type has no value; {did_you_mean('', modules)}")
    kind = as_typed(values["type"])
    word = f"{section}.type={kind}"
    place = importlib.import_module(modules[kind]) if kind in modules else _foreign(packages[0], kind, word, modules)
    members = [place] if isinstance(place, type) else [one for _, one in inspect.getmembers(place, inspect.isclass)]
    classes = [one for one in members if place is one or one.__module__ == place.__name__]
    faults = {one: _fault(one) for one in classes if issubclass(one, base)}
    usable = [one for one, fault in faults.items() if not fault]
    if len(usable) != 1:
        why = f" ({', '.join(said)})" if (said := [*filter(None, faults.values())]) else ""
        raise UserError(
            f"{word} cannot be used: {place.__name__} has {len(usable)} dataclasses that are a {base.__name__} with "
            f"all its methods{why}; let it have one, or choose one of conf/{section}/"
        )
    return usable[0]


def _foreign(package: str, kind: str, word: str, modules: Iterable[str]) -> ModuleType | type:
    """Return what an installed package or a module that has been imported calls so."""
    group = f"raysearch.{package.rpartition('.')[2]}"
    plugins = {plugin.name: plugin for plugin in entry_points(group=group)}
    if kind in plugins:
        try:
            found: ModuleType | type = plugins[kind].load()
            return found
        except Exception as error:  # whatever code of another package raises
            place = plugins[kind].value
            raise UserError(f"{word} is {place}, which cannot be imported ({error}); mend that package") from error
    if (loaded := _loaded(kind)) is not None:
        return loaded
    remedy = did_you_mean(kind, [*modules, *plugins])
    if "." in kind:
        remedy = f"import its module first, in Python, or install a package with an entry point in {group}"
    raise UserError(f"{word} is unknown; {remedy}")


def _loaded(name: str) -> type | None:
    """Return the class of a name such as ``my_module.MyClass``, if its module has been imported."""
    module, _, own = name.rpartition(".")
    found = getattr(sys.modules.get(module), own, None)
    return found if isinstance(found, type) else None


def _fault(part: Any) -> str:
    """Return what keeps a class from being built from a configuration; empty for nothing."""
    attributes = {
        name for kind in part.__mro__ for name, one in inspect.get_annotations(kind).items() if "ClassVar" in str(one)
    }
    if lacking := [*part.__abstractmethods__, *(name for name in attributes if not hasattr(part, name))]:
        return f"{part.__name__} lacks {' and '.join(sorted(lacking))}"
    return "" if dataclasses.is_dataclass(part) else f"{part.__name__} is not a @dataclass"


def construct(part: type[Part], section: str, values: Mapping[str, Any], **built: Any) -> Part:
    """Call a dataclass with a section's values, each checked against its field's type.

    A class names one wrong value at a time; that value is then left out, to hear what else is wrong. What is `built`
    are fields that are not keys of the section.
    """
    fields = {field.name: field for field in dataclasses.fields(part) if field.init and field.name not in built}
    required = {name for name, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING}
    mistakes, found = Mistakes(), {}
    mistakes.attempt(check_names, f"{section}.", values, fields)
    for name in fields:
        with mistakes:
            if name in values:
                found[name] = _field(_hints(part)[name], f"{section}.{name}", values[name])
            elif name in required:
                raise UserError(f"{section}.{name} has no value; give {section}.{name}=…")
    while required <= found.keys():
        try:
            made = part(**found, **built)
            break
        except UserError as error:
            wrong = next((name for name in found if str(error).startswith(f"{section}.{name}=")), None)
            if wrong is not None or not mistakes.errors:  # else it may be about what was left out
                mistakes.errors.append(error)
            if wrong is None:
                break
            del found[wrong]
    mistakes.tell()
    return made


def _field(expected: Any, name: str, value: Any) -> Any:
    """Return a value as its field has it: a dataclass in place of its keys, a path in place of its text."""
    kinds = (expected, *typing.get_args(expected))
    nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
    if nested is not None and isinstance(value, Mapping):
        return construct(nested, name, value)  # type: ignore[arg-type]
    if Path in kinds:
        text = checked(str if expected is Path else str | None, name, value)
        return None if text is None else as_path(name, text)
    return checked(dict[str, Any] if nested is expected else expected, name, value)


def check_names(prefix: str, names: Iterable[object], known: Collection[str]) -> None:
    """Refuse keys that are unknown, with what they may have meant."""
    if unknown := [str(name) for name in names if name not in known]:
        said = [f"{prefix}{one} is not a key of this configuration; {did_you_mean(one, known)}" for one in unknown]
        raise UserError(*said)


_hints = cache(typing.get_type_hints)  # a study builds each class once a search
