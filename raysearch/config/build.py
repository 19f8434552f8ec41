"""From a resolved configuration to the objects it describes: the configuration is the constructor.

Every section's keys are the fields of one class of ours; `type` names the module that holds it. Nothing else can be
imported from a configuration. `raysearch.config.construct` does the calling, and checks the types.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysearch.assessment.spec import AssessSpec, SpeedOptions
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.cluster.options import ClusterOptions, ReplicaRange
from raysearch.config.compose import compose, section_of
from raysearch.config.parts import build_data, build_objective, build_searcher, check_names, checked, construct
from raysearch.core.formatting import as_typed
from raysearch.core.mask import Mask
from raysearch.core.paths import PathLike, as_path
from raysearch.core.problem import sizes_of
from raysearch.errors import UserError, redact, redacted
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.spec import ModelSpec
from raysearch.search.spec import ScoreSpec, SearchSpec
from raysearch.study.grid import Choice, choices_of
from raysearch.study.spec import Budget, Cell, StudyOptions, StudySpec
from raysearch.tracking.options import TrackingOptions

_EVALUATION_KEYS = {"model", "data", "objective", "cluster", "store", "ledger", "seed", "choices"}


def search_spec(config: Mapping[str, Any]) -> SearchSpec:
    """Builds a search from the configuration composed from ``conf/search.yaml``.

    Raises:
        UserError: A key is unknown or missing, or a value is of the wrong type or out of range.
    """
    check_names("", config, _EVALUATION_KEYS | {"searcher", "tracking", "remove", "protect"})
    seed = _seed("seed", config["seed"])  # before data.seed, which repeats it
    tracking_options(config)  # refused with all else that is wrong
    return SearchSpec(
        evaluation=_evaluation_spec(config),
        searcher=build_searcher(_section(config, "searcher")),
        searcher_name=config["choices"]["searcher"],
        remove=_remove(config["remove"]),
        protect=checked(list[int], "protect", config["protect"]),
        seed=seed,
        config=redacted(config),
    )


def score_spec(config: Mapping[str, Any]) -> ScoreSpec:
    """Builds what ``raysearch score`` needs from the configuration composed from ``conf/score.yaml``.

    Raises:
        UserError: As `search_spec`.
    """
    check_names("", config, _EVALUATION_KEYS | {"masks"})
    masks = checked(list[list[int]], "masks", config["masks"])
    if not masks:
        raise UserError("masks=[] names no mask; give a list of lists, such as masks=[[3],[3,5],[]]")
    for layers in masks:
        if min(layers, default=0) < 0 or len(set(layers)) < len(layers):
            raise UserError(
                f"masks={as_typed(masks)} has {layers}, which holds a negative or a repeated layer; "
                "name each layer once, from 0"
            )
    _seed("seed", config["seed"])
    return ScoreSpec(evaluation=_evaluation_spec(config), masks=[Mask.of(*layers) for layers in masks])


def study_spec(overrides: Sequence[str], config_dir: PathLike | None = None) -> StudySpec:
    """Builds a study from the words of ``raysearch study``.

    Args:
        overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of the user's own YAML files, laid out like ``conf/``.

    Raises:
        UserError: As `search_spec`, of any of its searches.
    """
    config = compose("study", overrides, config_dir)
    section = dict(_section(config, "study"))
    rules = {key: checked(list[dict[str, Any]], f"study.{key}", section.pop(key, [])) for key in ("include", "exclude")}
    choices = choices_of(checked(dict[str, Any], "study.grid", section.pop("grid", {})), **rules)
    stop = construct(Budget, "study.stop", checked(dict[str, Any], "study.stop", section.pop("stop", {})))
    options = construct(StudyOptions, "study", {**section, "stop": stop})
    shared = [word for word in overrides if section_of(word) not in ("study", "assess")]
    cells = []
    for choice in choices:
        words = [*choice.words, *_fixed_samples(choice, overrides, config)]
        keys = {word.partition("=")[0] for word in words}
        kept = [word for word in shared if word.partition("=")[0] not in keys]
        composed = compose("search", [*kept, *words], config_dir)
        search = search_spec(composed)
        if tracking_options(composed) != tracking_options(config):
            raise UserError(
                "study.grid has searches recorded in different places, and a study has one; take store, ledger and "
                "tracking out of its axes, and say them beside it"
            )
        cells.append(
            Cell(
                model=choice.label("model") or search.evaluation.model.name,
                calibration=choice.label("calibration")
                or " and ".join(one.name for one in search.evaluation.calibrations),
                searcher=choice.label("searcher") or search.searcher_name,
                search=search,
            )
        )
    nothing = config["choices"]["assess"] == "none" and not any(word.startswith("assess.") for word in overrides)
    assess = None if nothing else assess_spec(config)
    return StudySpec(options, cells, assess, _store(config), redacted(config), [*map(redact, overrides)])


def assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    """Builds what to assess masks by from the section ``assess`` of a configuration.

    Raises:
        UserError: As `search_spec`.
    """
    _seed("seed", config["seed"])
    section = _section(config, "assess")
    hints = typing.get_type_hints(AssessSpec)
    given = {"texts": dict[str, dict[str, Any]], "tasks": list[str], "speed": dict[str, Any]}
    given |= {"data_dir": str | None, "task_dir": str | None}  # type: ignore[dict-item]  # unions are no classes
    check_names("assess.", section, set(hints))
    values = {key: checked(given.get(key, hints[key]), f"assess.{key}", value) for key, value in section.items()}
    texts = values.get("texts", {})
    values["texts"] = {name: build_data({**data, "allow_evaluation_split": True}) for name, data in texts.items()}
    values["speed"] = construct(SpeedOptions, "assess.speed", values.get("speed", {}))
    folders = {key: values[key] for key in ("data_dir", "task_dir") if values.get(key) is not None}
    values |= {key: as_path(f"assess.{key}", folder) for key, folder in folders.items()}
    return AssessSpec(**values)


def evaluation_spec(config: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> EvaluationSpec:
    """Builds how masks are judged from the configuration composed from ``conf/evaluation.yaml``.

    Args:
        config: The composed configuration.
        others: Calibrations to lay beside its own, by `raysearch.config.compose.compose_calibration`.

    Raises:
        UserError: As `search_spec`.
    """
    check_names("", config, _EVALUATION_KEYS)
    _seed("seed", config["seed"])
    spec = _evaluation_spec(config)
    if spec.weighting is not None:
        raise UserError("objective=weighted is several calibrations in one; lay them side by side with --also instead")
    return dataclasses.replace(spec, calibrations=[*spec.calibrations, *map(_calibration_spec, others)])


def tracking_options(config: Mapping[str, Any]) -> TrackingOptions:
    """Builds where searches are recorded for people to look at, from the configuration of a search or a study.

    Raises:
        UserError: As `search_spec`.
    """
    values = {**_section(config, "tracking"), "folder": _store(config), "ledger": _ledger(config)}
    options: TrackingOptions = construct(TrackingOptions, "tracking", values)
    return options


def _fixed_samples(choice: Choice, overrides: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The words that keep samples the same where an axis varies the searcher's seed."""
    given = any(word.startswith("data.seed=") for word in (*choice.words, *overrides))
    return [] if given or "seed" not in choice.labels else [f"data.seed={config['seed']}"]


def _evaluation_spec(config: Mapping[str, Any]) -> EvaluationSpec:
    objective = _section(config, "objective")
    parts = objective.get("parts")
    cluster = _cluster(_section(config, "cluster"))
    return EvaluationSpec(
        model=cluster.place(construct(ModelSpec, "model", _section(config, "model"))),
        calibrations=[_calibration_spec(part) for part in ([config] if parts is None else parts)],
        cluster=cluster,
        ledger=_ledger(config),
        weighting=None if parts is None else _weighting(objective),
    )


def _cluster(values: Mapping[str, Any]) -> ClusterOptions:
    """Who computes, of which there may be more or fewer."""
    replicas = values.get("replicas")
    if isinstance(replicas, Mapping):
        values = {**values, "replicas": construct(ReplicaRange, "cluster.replicas", replicas)}
    options: ClusterOptions = construct(ClusterOptions, "cluster", values)
    return options


def _calibration_spec(config: Mapping[str, Any]) -> CalibrationSpec:
    """An objective and its data, from a configuration or from a part of one."""
    return CalibrationSpec(
        objective=build_objective(_section(config, "objective")),
        data=build_data(_section(config, "data")),  # before its name, which takes its types for granted
        name=f"{config['choices']['objective']} on {_data_name(config['choices']['data'], config['data'])}",
    )


def _data_name(choice: str, data: Mapping[str, Any]) -> str:
    """What a calibration's data are called: the choice, and which rows where that may be any."""
    if data.get("path") and not data.get("name"):
        return f"{choice} {Path(data['path']).name}"
    return f"{choice} {data.get('name')}" if choice == "hub" else choice


def _weighting(values: Mapping[str, Any]) -> WeightedObjective:
    """A weighted objective, whose parts are calibrations of their own."""
    weights = [checked(float, "objective.parts: weight", part["weight"]) for part in values["parts"]]
    own = {key: value for key, value in values.items() if key not in ("type", "parts")}
    weighting: WeightedObjective = construct(WeightedObjective, "objective", {**own, "weights": tuple(weights)})
    return weighting


def _store(config: Mapping[str, Any]) -> Path:
    return as_path("store", checked(str, "store", config["store"]))


def _ledger(config: Mapping[str, Any]) -> Path:
    given = config["ledger"]
    return _store(config) / "ledger.db" if given is None else as_path("ledger", checked(str, "ledger", given))


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise UserError(
            f"{name}={as_typed(section)} is not a section; choose one of conf/{name}/, or set {name}.key=value"
        )
    return section


def _remove(value: Any) -> int | str:
    """How many layers go, if it is a whole number or a range."""
    remove: int | str = value if type(value) is int else as_typed(value)
    sizes_of(remove)
    return remove


def _seed(name: str, value: Any) -> int:
    seed: int = checked(int, name, value)
    if seed < 0:
        raise UserError(f"{name}={seed} is negative; use 0 or more")
    return seed
