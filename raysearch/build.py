"""From a resolved configuration to the objects it describes: the configuration is the constructor.

Every section's keys are the fields of one class of ours; `type` names the module that holds it. Nothing else can be
imported from a configuration. Types are checked here, with pydantic; what a value means is checked by the class.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raysearch.assessment.spec import AssessSpec, SpeedOptions
from raysearch.calibration.data import Data
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.calibration.rows import Rows
from raysearch.config import compose
from raysearch.errors import UserError, did_you_mean
from raysearch.evaluation.cluster import ClusterOptions
from raysearch.evaluation.spec import CalibrationSpec, JudgeSpec
from raysearch.mask import Mask
from raysearch.models.loading import ModelSpec
from raysearch.problem import sizes_of
from raysearch.searchers.base import Searcher
from raysearch.studies.grid import Choice, choices_of
from raysearch.studies.spec import Budget, Cell, ScoreSpec, SearchSpec, StudyOptions, StudySpec
from raysearch.tracking.options import TrackingOptions

_JUDGE_KEYS = {"model", "data", "objective", "cluster", "store", "ledger", "seed", "choices"}


def search_spec(config: Mapping[str, Any]) -> SearchSpec:
    """Builds a search from the configuration composed from ``conf/search.yaml``.

    Raises:
        UserError: A key is unknown or missing, or a value is of the wrong type or out of range.
    """
    _check_names("", config, _JUDGE_KEYS | {"searcher", "tracking", "remove", "protect"})
    seed = _seed("seed", config["seed"])  # before data.seed, which repeats it
    return SearchSpec(
        judge=_judge_spec(config),
        searcher=build_searcher(_section(config, "searcher")),
        searcher_name=config["choices"]["searcher"],
        remove=_remove(config["remove"]),
        protect=_check(list[int], "protect", config["protect"]),
        seed=seed,
        tracking=tracking_options(config, _store(config)),
        config=config,
    )


def score_spec(config: Mapping[str, Any]) -> ScoreSpec:
    """Builds what ``raysearch score`` needs from the configuration composed from ``conf/score.yaml``.

    Raises:
        UserError: As `search_spec`.
    """
    _check_names("", config, _JUDGE_KEYS | {"masks"})
    masks = _check(list[list[int]], "masks", config["masks"])
    if not masks:
        raise UserError("masks=[] names no mask; give a list of lists, such as masks=[[3],[3,5],[]]")
    for layers in masks:
        if min(layers, default=0) < 0 or len(set(layers)) < len(layers):
            raise UserError(
                f"masks={_as_typed(masks)} has {layers}, which holds a negative or a repeated layer; "
                "name each layer once, from 0"
            )
    _seed("seed", config["seed"])
    return ScoreSpec(judge=_judge_spec(config), masks=[Mask.of(*layers) for layers in masks])


def study_spec(overrides: Sequence[str], config_dir: Path | None = None) -> StudySpec:
    """Builds a study from the words of ``raysearch study``.

    Args:
        overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of the user's own YAML files, laid out like ``conf/``.

    Raises:
        UserError: As `search_spec`, of any of its searches.
    """
    config = compose("study", overrides, config_dir)
    section = dict(_section(config, "study"))
    rules = {key: _check(list[dict[str, Any]], f"study.{key}", section.pop(key, [])) for key in ("include", "exclude")}
    choices = choices_of(_check(dict[str, Any], "study.grid", section.pop("grid", {})), **rules)
    stop = _build(Budget, "study.stop", _check(dict[str, Any], "study.stop", section.pop("stop", {})))
    options = _build(StudyOptions, "study", {**section, "stop": stop})
    shared = [word for word in overrides if word.partition("=")[0].partition(".")[0] not in ("study", "assess")]
    cells = []
    for choice in choices:
        words = [*choice.words, *_fixed_samples(choice, overrides, config)]
        keys = {word.partition("=")[0] for word in words}
        kept = [word for word in shared if word.partition("=")[0] not in keys]
        search = search_spec(compose("search", [*kept, *words], config_dir))
        cells.append(
            Cell(
                model=choice.label("model") or search.judge.model.name,
                calibration=choice.label("calibration") or " and ".join(one.name for one in search.judge.calibrations),
                searcher=choice.label("searcher") or search.searcher_name,
                search=search,
            )
        )
    nothing = config["choices"]["assess"] == "none" and not any(word.startswith("assess.") for word in overrides)
    return StudySpec(options, cells, None if nothing else assess_spec(config), config, overrides)


def assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    """Builds what to assess masks by from the section ``assess`` of a configuration.

    Raises:
        UserError: As `search_spec`.
    """
    section = _section(config, "assess")
    hints = typing.get_type_hints(AssessSpec)
    given = {"texts": dict[str, dict[str, Any]], "tasks": list[str], "speed": dict[str, Any]}
    given |= {"data_dir": str | None, "task_dir": str | None}  # type: ignore[dict-item]  # unions are no classes
    _check_names("assess.", section, set(hints))
    values = {key: _check(given.get(key, hints[key]), f"assess.{key}", value) for key, value in section.items()}
    texts = values.get("texts", {})
    values["texts"] = {name: build_data({**data, "allow_evaluation_split": True}) for name, data in texts.items()}
    values["speed"] = _build(SpeedOptions, "assess.speed", values.get("speed", {}))
    values |= {key: Path(values[key]) for key in ("data_dir", "task_dir") if values.get(key) is not None}
    return AssessSpec(**values)


def judge_spec(config: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> JudgeSpec:
    """Builds how masks are judged from the configuration composed from ``conf/judge.yaml``.

    Args:
        config: The composed configuration.
        others: Calibrations to lay beside its own, by `raysearch.config.compose_calibration`.

    Raises:
        UserError: As `search_spec`.
    """
    _check_names("", config, _JUDGE_KEYS)
    _seed("seed", config["seed"])
    spec = _judge_spec(config)
    if spec.weighting is not None:
        raise UserError("objective=weighted is several calibrations in one; lay them side by side with --also instead")
    return dataclasses.replace(spec, calibrations=[*spec.calibrations, *map(_calibration_spec, others)])


def tracking_options(config: Mapping[str, Any], store: Path) -> TrackingOptions:
    """Builds where searches are recorded for people to look at.

    Args:
        config: A composed configuration of a search or a study.
        store: The folder of the embedded store and of artifacts.

    Raises:
        UserError: As `search_spec`.
    """
    options: TrackingOptions = _build(TrackingOptions, "tracking", {**_section(config, "tracking"), "folder": store})
    return options


def build_searcher(values: Mapping[str, Any]) -> Searcher:
    """Builds a searcher from the keys of a file in ``conf/searcher/``.

    Raises:
        UserError: As `search_spec`.
    """
    searcher: Searcher = _build_by_type(("searchers", "bridges"), "search", "searcher", values)
    return searcher


def build_objective(values: Mapping[str, Any]) -> Objective:
    """Builds an objective from the keys of a file in ``conf/objective/``.

    Raises:
        UserError: As `search_spec`.
    """
    objective: Objective = _build_by_type(("calibration.objectives",), "measure", "objective", values)
    return objective


def build_data(values: Mapping[str, Any]) -> Data:
    """Builds data from the keys of a file in ``conf/data/``: where rows come from, how they are read, how drawn.

    Raises:
        UserError: As `search_spec`.
    """
    format_type = _part_by_type(("calibration.formats",), "read", "data", values)
    parts = {"rows": Rows, "format": format_type, "draw": format_type.draws}
    names = {part: {field.name for field in dataclasses.fields(parts[part])} for part in parts}
    given = {key: value for key, value in values.items() if key != "type"}
    _check_names("data.", given, set().union(*names.values()))
    taken = {part: {key: value for key, value in given.items() if key in names[part]} for part in parts}
    return Data(**{part: _build(parts[part], "data", taken[part]) for part in parts})


def _fixed_samples(choice: Choice, overrides: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The words that keep samples the same where an axis varies the searcher's seed."""
    given = any(word.startswith("data.seed=") for word in (*choice.words, *overrides))
    return [] if given or "seed" not in choice.labels else [f"data.seed={config['seed']}"]


def _judge_spec(config: Mapping[str, Any]) -> JudgeSpec:
    ledger = config["ledger"]
    objective = _section(config, "objective")
    parts = objective.get("parts")
    return JudgeSpec(
        model=_build(ModelSpec, "model", _section(config, "model")),
        calibrations=[_calibration_spec(part) for part in ([config] if parts is None else parts)],
        cluster=_build(ClusterOptions, "cluster", _section(config, "cluster")),
        ledger=_store(config) / "ledger.db" if ledger is None else Path(_check(str, "ledger", ledger)),
        weighting=None if parts is None else _weighting(objective),
    )


def _calibration_spec(config: Mapping[str, Any]) -> CalibrationSpec:
    """An objective and its data, from a configuration or from a part of one."""
    return CalibrationSpec(
        name=f"{config['choices']['objective']} on {_data_name(config['choices']['data'], config['data'])}",
        objective=build_objective(_section(config, "objective")),
        data=build_data(_section(config, "data")),
    )


def _data_name(choice: str, data: Mapping[str, Any]) -> str:
    """What a calibration's data are called: the choice, and which rows where that may be any."""
    if data.get("path") and not data.get("name"):
        return f"{choice} {Path(data['path']).name}"
    return f"{choice} {data.get('name')}" if choice == "hub" else choice


def _weighting(values: Mapping[str, Any]) -> WeightedObjective:
    """A weighted objective, whose parts are calibrations of their own."""
    weights = [_check(float, "objective.parts: weight", part["weight"]) for part in values["parts"]]
    own = {key: value for key, value in values.items() if key not in ("type", "parts")}
    weighting: WeightedObjective = _build(WeightedObjective, "objective", {**own, "weights": tuple(weights)})
    return weighting


def _store(config: Mapping[str, Any]) -> Path:
    return Path(_check(str, "store", config["store"]))


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config[name]
    if not isinstance(section, Mapping):
        raise UserError(
            f"{name}={_as_typed(section)} is not a section; choose one of conf/{name}/, or set {name}.key=value"
        )
    return section


def _remove(value: Any) -> int | str:
    """How many layers go, if it is a whole number or a range."""
    remove: int | str = value if type(value) is int else _as_typed(value)
    sizes_of(remove)
    return remove


def _seed(name: str, value: Any) -> int:
    seed: int = _check(int, name, value)
    if seed < 0:
        raise UserError(f"{name}={seed} is negative; use 0 or more")
    return seed


def _build_by_type(packages: Sequence[str], method: str, section: str, values: Mapping[str, Any]) -> Any:
    """Builds the class that `_part_by_type` finds."""
    part = _part_by_type(packages, method, section, values)
    return _build(part, section, {key: value for key, value in values.items() if key != "type"})


def _part_by_type(packages: Sequence[str], method: str, section: str, values: Mapping[str, Any]) -> Any:
    """The one configurable class with `method` in the module of `packages` that the section's `type` names."""
    homes = {
        module.name: f"raysearch.{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(f"raysearch.{package}").__path__)
        if not module.ispkg and module.name != "base"
    }
    kind = _kind(section, values, homes.keys())
    module = importlib.import_module(homes[kind])
    parts = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__ and dataclasses.is_dataclass(member) and hasattr(member, method)
    ]
    if len(parts) != 1:  # a helper among them, such as the bridge that leads the other way
        raise UserError(f"{section}.type={kind} is no {section}; choose one of conf/{section}/")
    return parts[0]


def _kind(section: str, values: Mapping[str, Any], known: Collection[str]) -> str:
    if "type" not in values:
        raise UserError(f"{section}.type has no value; {did_you_mean('', known)}")
    kind = _as_typed(values["type"])
    if kind not in known:
        raise UserError(f"{section}.type={kind} is unknown; {did_you_mean(kind, known)}")
    return kind


def _build(part: type, section: str, values: Mapping[str, Any]) -> Any:
    """Calls a dataclass with a section's values, each checked against its field's type."""
    fields = {field.name: field for field in dataclasses.fields(part) if field.init}
    _check_names(f"{section}.", values, set(fields))
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"{section}.{name} has no value; give {section}.{name}=…")
    hints = typing.get_type_hints(part)
    return part(**{name: _check(hints[name], f"{section}.{name}", value) for name, value in values.items()})


def _check_names(prefix: str, values: Mapping[str, Any], known: set[str]) -> None:
    for name in values:
        if name not in known:
            raise UserError(f"{prefix}{name} is no key of this configuration; {did_you_mean(name, known)}")


def _check(expected: Any, name: str, value: Any) -> Any:
    """The value, if it is of the expected type."""
    try:
        return TypeAdapter(expected).validate_python(value, strict=True)
    except ValidationError as error:
        wanted = dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in error.errors())
        quoted = f"; where text reads like something else, quote it twice: {name}=\"'{_as_typed(value)}'\""
        remedy = quoted if "a valid string" in wanted else ""
        raise UserError(f"{name}={_as_typed(value)} should be {' or '.join(wanted)}{remedy}") from error


def _as_typed(value: Any) -> str:
    """A value as the user writes it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_as_typed, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
