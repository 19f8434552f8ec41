"""Builds specifications, such as a `SearchSpec`, from overrides or from a resolved configuration.

The keys of each section are the fields of one class, see `raysearch.configuration.parts`. All mistakes of a command are
reported at once, as one `UserError`. `compose` documents the arguments `overrides` and `config_dir` of all functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic import NonNegativeInt

from raysearch.assessment.spec import AssessSpec, SearchSpeedOptions
from raysearch.calibration.data import Data
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.compose import (
    as_section,
    compose,
    compose_calibration,
    compose_leniently,
    split_overrides,
    with_section,
)
from raysearch.configuration.parsing import section_of
from raysearch.configuration.parts import Part, build_data, build_objective, build_searcher, check_names, construct
from raysearch.core.mask import Mask
from raysearch.core.options import checked
from raysearch.core.paths import PathLike, as_path
from raysearch.core.problem import AUTO, sizes_of
from raysearch.errors import UserError, together, within
from raysearch.evaluation.screening import Screening
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.file_cache import user_cache
from raysearch.models.source import with_dtype
from raysearch.models.spec import ModelSpec, label_of
from raysearch.recovery.refine import RecoveryRefiner
from raysearch.recovery.spec import RecoverSpec, RecoveryOptions
from raysearch.searching.recommendation import Budget
from raysearch.searching.spec import SearchSpec
from raysearch.studies.grid import Combination, combinations_of
from raysearch.studies.spec import Cell, StudyOptions, StudySpec, drawn_once, one_seed_each
from raysearch.text.redaction import hidden_keys, redact, redacted
from raysearch.text.sentences import as_typed
from raysearch.tracking.options import TrackingOptions

OWN = "own"  #: the choice ``data=own`` of a recovery: the data of the recorded search
_SEED_RANGE = 1_000_000  # each set of samples of a study adds a number below this to the searcher's seed
#: The top-level keys of the configuration of an evaluation, and those of a search.
_EVALUATION_KEYS = {"model", "data", "objective", "cluster", "store", "ledger", "seed", "choices"}
_SEARCH_KEYS = _EVALUATION_KEYS | {
    "searcher",
    "screening",
    "refine",
    "tracking",
    "remove",
    "protect",
    "budget",
    "speed",
}
#: The keys of a study's section that are not fields of `StudyOptions`: its searches, and its recoveries.
_GRID_KEYS = {"grid", "include", "exclude", "recover", "recover_with"}
#: The sections added since the ledger's format 7; a recorded search without them has their defaults.
_ADDED_SECTIONS = {"budget", "speed", "refine"}


def search_spec(overrides: Sequence[str], config_dir: PathLike | None = None) -> SearchSpec:
    """Build a search from the overrides of ``raysearch search``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.
    """
    return tracked_search(overrides, config_dir)[0]


def tracked_search(overrides: Sequence[str], config_dir: PathLike | None = None) -> tuple[SearchSpec, TrackingOptions]:
    """Build a search and its tracking options from the overrides of ``raysearch search``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.
    """
    spec, tracking = compose_leniently("search", overrides, config_dir).read(_search_spec, tracking_options)
    return spec, tracking


def recorded_search(config: Mapping[str, Any], *, goes_on: bool = False) -> SearchSpec:
    """Build a search from its recorded configuration.

    Args:
        config: The recorded configuration.
        goes_on: Whether the search is to be resumed. Only then is its refiner built, because that imports peft and trl.

    Raises:
        UserError: Another version of raysearch recorded the search, or the model's path has a secret, which is not
            recorded.
    """
    if added := _ADDED_SECTIONS - config.keys():
        config = {**config, **{name: value for name, value in compose("search", []).items() if name in added}}
    if missing := sorted(_SEARCH_KEYS - config.keys()):
        raise UserError(
            f"the search is recorded without {' and '.join(missing)}, as another version of raysearch wrote it; type "
            "the whole search command again, which continues from its evaluations"
        )
    for key in hidden_keys({"model": {**config["model"], "name": ""}}):
        raise UserError(
            f"{key} is recorded without its secret, so the model is not found; search again by a path that has none"
        )
    return _search_spec(config, with_refiner=goes_on)


def _search_spec(config: Mapping[str, Any], *, with_refiner: bool = True) -> SearchSpec:
    parts = together(
        evaluation=lambda: _evaluation_spec(config, _SEARCH_KEYS),
        screening=lambda: _build(Screening, config, "screening"),
        searcher=lambda: build_searcher(_section(config, "searcher")),
        remove=lambda: _remove(_value_of(config, "remove")),
        protect=lambda: checked(list[int], "protect", _value_of(config, "protect")),
        budget=lambda: _budget(config),
        refiner=lambda: _refiner(config) if with_refiner else None,
    )
    if parts["refiner"] is not None:
        parts["refiner"] = parts["refiner"].on_own_data(parts["evaluation"], redacted(config))
    screening = parts.pop("screening")
    if screening.stages:
        parts["evaluation"] = dataclasses.replace(parts["evaluation"], screening=screening)
    # The record holds the dtype that this machine chose for `auto`: the search must resume with it on any machine.
    model = {**config["model"], "dtype": parts["evaluation"].model.dtype}
    recorded_config = redacted({**config, "model": model})
    searcher_name = redact(config["choices"]["searcher"])
    return SearchSpec(searcher_name=searcher_name, seed=config["seed"], config=recorded_config, **parts)


def score_spec(overrides: Sequence[str], config_dir: PathLike | None = None) -> tuple[EvaluationSpec, list[Mask]]:
    """Build an evaluation, and the masks to evaluate, from the overrides of ``raysearch score``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.
    """
    evaluation, masks = compose_leniently("score", overrides, config_dir).read(
        partial(_evaluation_spec, keys={"masks", *_EVALUATION_KEYS}), _masks
    )
    return evaluation, masks


def evaluation_spec(
    overrides: Sequence[str], also: Sequence[str], config_dir: PathLike | None = None
) -> EvaluationSpec:
    """Build an evaluation on several calibrations.

    Args:
        overrides: See `compose`; they name the model and the first calibration.
        also: The other calibrations: for each, the overrides that differ from the first.
        config_dir: See `compose`.

    Raises:
        UserError: See `compose`; or the first calibration is weighted.
    """
    merged = compose_leniently("evaluation", overrides, config_dir)

    def other_calibration(text: str, _: Mapping[str, Any]) -> CalibrationSpec:
        return _calibration_spec(compose_calibration(text, merged.overrides, config_dir))

    def evaluation(config: Mapping[str, Any]) -> EvaluationSpec:
        spec = _evaluation_spec(config)
        if spec.weighting is not None:
            raise UserError("objective=weighted is several calibrations in one; give each of them with --also instead")
        return spec

    spec, *other_calibrations = merged.read(evaluation, *(partial(other_calibration, text) for text in also))
    return dataclasses.replace(spec, calibrations=[*spec.calibrations, *other_calibrations])


def study_spec(overrides: Sequence[str], config_dir: PathLike | None = None) -> StudySpec:
    """Build a study and all of its searches from the overrides of ``raysearch study``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.
    """
    return tracked_study(overrides, config_dir)[0]


def tracked_study(overrides: Sequence[str], config_dir: PathLike | None = None) -> tuple[StudySpec, TrackingOptions]:
    """Build a study and its tracking options from the overrides of ``raysearch study``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.
    """
    merged = compose_leniently("study", overrides, config_dir)
    config = merged.config
    attempt = merged.mistakes.attempt
    options = attempt(_study_options, config)
    tracking = attempt(tracking_options, config)
    assesses = config["choices"]["assess"] != "none" or any(override.startswith("assess.") for override in overrides)
    assess = attempt(assess_spec, config) if assesses else None
    recovery_texts = attempt(_recovery_texts, config) or {}
    combinations = attempt(_combinations, config) or []
    recoveries = {}
    for name, text in recovery_texts.items():
        with merged.mistakes:
            recoveries[name] = _recovery(name, text, config, assess, config_dir)
    cells = []
    for combination in combinations:
        with merged.mistakes:
            cells.append(_cell(combination, merged.overrides, config, tracking, config_dir))
    if options is not None and len(cells) == len(combinations) > 0:
        attempt(options.check_contrasts, (cell.searcher for cell in cells))
    merged.mistakes.tell()
    assert options is not None and tracking is not None, "otherwise their mistakes would have been raised"
    arguments = [*([] if config_dir is None else ["--config-dir", str(config_dir)]), *overrides]
    planned_cells, notes = one_seed_each(_with_short_names(cells))
    notes += drawn_once(planned_cells)
    spec = StudySpec(
        options,
        planned_cells,
        assess,
        _store(config),
        redacted(config),
        [*map(redact, arguments)],
        notes,
        recoveries,
    )
    return spec, tracking


def _study_options(config: Mapping[str, Any]) -> StudyOptions:
    values = {key: value for key, value in _section(config, "study").items() if key not in _GRID_KEYS}
    return construct(StudyOptions, "study", redacted(values))


def _combinations(config: Mapping[str, Any]) -> list[Combination]:
    section = _section(config, "study")
    rules = {key: checked(list[dict[str, Any]], f"study.{key}", section.get(key, [])) for key in ("include", "exclude")}
    return combinations_of(checked(dict[str, Any], "study.grid", section.get("grid", {})), **rules)


def _recovery_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the overrides of each method of recovering a study's masks, as typed."""
    section = _section(config, "study")
    shared = checked(str, "study.recover_with", section.get("recover_with", ""))
    methods = checked(dict[str, str | None], "study.recover", section.get("recover", {}))
    return {name: f"{shared} {text}" for name, text in methods.items() if text is not None}


def _recovery(
    name: str, text: str, study: Mapping[str, Any], assess: AssessSpec | None, config_dir: PathLike | None
) -> RecoverSpec:
    """Build one method of recovering a study's masks; recovered masks are assessed as the study's masks are."""
    overrides = with_section("cluster", study, split_overrides(text, f"study.recover.{name}="))
    spec = within(f"study.recover.{name}", lambda: recover_spec(compose("recover", overrides, config_dir)))
    return spec if assess is None else dataclasses.replace(spec, assess=assess)


def _cell(
    combination: Combination,
    study_overrides: Sequence[str],
    study: Mapping[str, Any],
    tracking: TrackingOptions | None,
    config_dir: PathLike | None,
) -> Cell:
    """Build a search of a study.

    If an axis varies the searcher's seed, the samples stay the same. The searcher's seed depends on the set of samples,
    so that its random numbers are independent between them; unless the overrides of another axis set the seed.
    """
    shared = [override for override in study_overrides if section_of(override) not in ("study", "assess")]
    overrides = [*_study_choices(), *shared, *combination.overrides]
    set_keys = {override.partition("=")[0] for override in overrides}
    if "seed" in combination.labels and "data.seed" not in set_keys:
        overrides.append(f"data.seed={_value_of(study, 'seed')}")
    search, cell_tracking = tracked_search(overrides, config_dir)
    seed_is_set = "seed" not in combination.labels and any(word.startswith("seed=") for word in combination.overrides)
    if search.searcher.stochastic and not seed_is_set:
        seed = search.seed + _seed_offset(combination)  # not an override, which would change the seed of the data too
        search = dataclasses.replace(search, seed=seed, config={**search.config, "seed": seed})
    if search.budget is not None:
        raise UserError("remove=auto is of one search, not of a study's; give study.grid.remove a number or a range")
    if search.refiner is not None:
        raise UserError(
            "refine=recover is of one search, not of a study's; study.recover trains each mask that a study finds"
        )
    if tracking not in (None, cell_tracking):
        raise UserError(
            "study.grid has searches recorded in different places, and a study has one; take store, ledger and "
            "tracking out of its axes, and give them outside the grid"
        )
    calibrations = " and ".join(calibration.name for calibration in search.evaluation.calibrations)
    return Cell(
        model=redact(combination.label("model") or search.evaluation.model.name),
        calibration=redact(combination.label("calibration") or calibrations),
        searcher=redact(combination.label("searcher") or search.searcher_name),
        search=search,
        draw=redact(combination.label("draw") or ""),
    )


def _seed_offset(combination: Combination) -> int:
    """Return a number for the set of samples of a combination; 0 if no axis varies them."""
    labels = [combination.label(axis) or "" for axis in ("model", "calibration", "draw")]
    if not any(labels):
        return 0
    return crc32("\n".join(labels).encode()) % _SEED_RANGE


def _with_short_names(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with their models named without folders, unless two models would have the same name."""
    labels = {cell.model: label_of(cell.model, cell.search.evaluation.model.path) for cell in cells}
    if len({*labels.values()}) < len(labels):
        return [*cells]
    return [dataclasses.replace(cell, model=labels[cell.model]) for cell in cells]


@cache
def _study_choices() -> list[str]:
    """Return the overrides for the choices of ``conf/study.yaml`` that differ from ``conf/search.yaml``."""
    search_choices = compose("search", [])["choices"]
    study_choices = compose("study", [])["choices"]
    return [f"{group}={name}" for group, name in study_choices.items() if search_choices.get(group, name) != name]


def assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    """Build the assessment from the section ``assess`` of a configuration.

    Raises:
        UserError: The section is wrong, or measures nothing.
    """
    spec = _assess_spec(config)
    if not spec.measures:
        raise UserError("assess measures nothing; name texts or tasks, or set assess.speed.enabled=true")
    return spec


def _assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    section = _section(config, "assess")
    texts, tasks = (section.pop(key, {}) for key in ("texts", "generation"))
    parts = together(
        partial(_check_seed, config),
        spec=lambda: construct(AssessSpec, "assess", section, texts={}, generation={}),
        texts=lambda: _texts("texts", texts),
        generation=lambda: _texts("generation", tasks),
    )
    return dataclasses.replace(parts.pop("spec"), **parts)


def _texts(key: str, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Data]:
    """Build the data of texts or tasks. They may come from an evaluation split."""

    def text_data(name: str, section: Mapping[str, Any]) -> Data:
        return within(f"assess.{key}.{name}", build_data, {**section, "allow_evaluation_split": True})

    return together(**{redact(name): partial(text_data, name, section) for name, section in sections.items()})


def recover_spec(config: Mapping[str, Any]) -> RecoverSpec:
    """Build a recovery from a configuration composed from ``conf/recover.yaml``.

    The section ``assess`` names the measures of the recovered model; it may name none.

    Raises:
        UserError: The configuration is wrong, or a library for training is not installed.
    """
    is_own = config["choices"]["data"] == OWN
    recovery = dict(_section(config, "recovery"))
    responses = recovery.pop("responses", None)
    if missing := [name for name in ("peft", "trl") if find_spec(name) is None]:
        raise UserError(f"recover needs {' and '.join(missing)}; install with: pip install {' '.join(missing)}")
    parts = together(
        data=lambda: build_data(_section(config, "data")),
        options=lambda: construct(RecoveryOptions, "recovery", {**recovery, "responses": responses or "self"}),
        assess=lambda: _assess_spec(config) if "assess" in config else AssessSpec(),
        cluster=lambda: _build(ClusterOptions, config, "cluster"),
    )
    if parts["options"].method == "qlora" and find_spec("bitsandbytes") is None:
        raise UserError("recovery.method=qlora needs bitsandbytes; install it with: pip install bitsandbytes")
    if is_own:
        parts["own_data_options"] = dataclasses.replace(parts["options"], responses=responses or "data")
    choices = {"choices.data": "sotu" if is_own else config["choices"]["data"]}
    choices["choices.recovery"] = config["choices"]["recovery"]
    sections = {"data": config["data"], "recovery": {**config["recovery"], "responses": parts["options"].responses}}
    keys = {f"{group}.{key}": value for group, section in sections.items() for key, value in section.items()}
    return RecoverSpec(**parts, settings=redacted({**choices, **keys}))


def tracking_options(config: Mapping[str, Any]) -> TrackingOptions:
    """Build the tracking options from the configuration of a search or a study."""
    parts = together(folder=lambda: _store(config), ledger=lambda: _ledger(config))
    return construct(TrackingOptions, "tracking", _section(config, "tracking", shown="experiment"), **parts)


def speed_options(config: Mapping[str, Any]) -> SearchSpeedOptions:
    """Build the options for measuring the speeds of a search by budget."""
    return _build(SearchSpeedOptions, config, "speed")


def _evaluation_spec(config: Mapping[str, Any], keys: set[str] = _EVALUATION_KEYS) -> EvaluationSpec:
    """Build an evaluation from a configuration; top-level keys that are not in `keys` are refused."""
    parts = together(
        partial(check_names, "", config, keys),
        partial(_check_seed, config),
        model=lambda: _model(config),
        calibrations=lambda: _calibrations(config),
        cluster=lambda: _build(ClusterOptions, config, "cluster"),
        ledger=lambda: _ledger(config),
    )
    calibrations, weighting = parts.pop("calibrations")
    model = with_dtype(parts["cluster"].place(parts.pop("model")))
    return EvaluationSpec(model, calibrations, weighting=weighting, **parts)


def _model(config: Mapping[str, Any]) -> ModelSpec:
    """Build the model; with ``model.cache`` a GGUF file is kept in the user's cache."""
    section = _section(config, "model", shown="name")
    cache = user_cache() if checked(bool, "model.cache", section.pop("cache", True)) else None
    return construct(ModelSpec, "model", section, cache=cache)


def _calibrations(config: Mapping[str, Any]) -> tuple[list[CalibrationSpec], WeightedObjective | None]:
    """Build the calibration; or the calibrations of a weighted objective, and their weighting."""
    objective = _section(config, "objective")
    parts = objective.get("parts")
    if parts is None:
        return [_calibration_spec(config)], None
    steps = {
        str(number): partial(within, "objective.parts", _calibration_spec, part) for number, part in enumerate(parts)
    }
    results = together(weighting=lambda: _weighting(objective), **steps)
    weighting = results.pop("weighting")
    return [*results.values()], weighting


def _calibration_spec(config: Mapping[str, Any]) -> CalibrationSpec:
    if config["choices"]["data"] == OWN:
        raise UserError(f"data={OWN} is a search's own data, for raysearch recover alone; name data such as data=file")
    parts = together(
        objective=lambda: build_objective(_section(config, "objective")),
        data=lambda: build_data(_section(config, "data")),
    )
    choices = config["choices"]
    name = f"{choices['objective']} on {_data_name(choices['data'], config['data'])}"
    return CalibrationSpec(redact(name), **parts)


def _data_name(choice: str, data: Mapping[str, Any]) -> str:
    """Return the choice of data; with the file's or the data set's name if the choice does not imply it."""
    if data.get("path") and not data.get("name"):
        return f"{choice} {Path(data['path']).name}"
    return f"{choice} {data.get('name')}" if choice == "hub" else choice


def _weighting(objective: Mapping[str, Any]) -> WeightedObjective:
    weights = tuple(checked(float, "objective.parts: weight", part["weight"]) for part in objective["parts"])
    # the overrides of the parts refer to the values under `shared`, which are not fields
    fields = {key: value for key, value in objective.items() if key not in ("type", "parts", "shared")}
    return construct(WeightedObjective, "objective", fields, weights=weights)


def _remove(value: Any) -> int | str:
    remove: int | str = value if type(value) is int else as_typed(value)
    if remove != AUTO:
        sizes_of(remove)
    return remove


def _budget(config: Mapping[str, Any]) -> Budget | None:
    """Return the budget of a search; None if no limit is set and ``remove`` is not ``auto``."""
    speed = speed_options(config)
    limits = _section(config, "budget")
    overrides = [f"budget.{limit}={as_typed(value)}" for limit, value in limits.items() if value is not None]
    budget = Budget.parse(overrides) if overrides or _value_of(config, "remove") == AUTO else None
    if budget is not None and budget.gains and not speed.enabled:
        gains = " ".join(budget.word(gain) for gain in budget.gains)
        raise UserError(f"{gains} needs speeds, which speed.enabled=false does not measure; leave that out")
    return budget


def _refiner(config: Mapping[str, Any]) -> RecoveryRefiner | None:
    """Return the refiner, which recovers the best masks of a search; None if no mask is to be recovered."""
    section = _section(config, "refine")
    recovery = section.pop("recover_with", None)
    if recovery is None:
        return None
    spec = within("refine.recover_with", recover_spec, {**recovery, "cluster": config["cluster"]})
    return construct(RecoveryRefiner, "refine", section, recover_with=spec)


def _masks(config: Mapping[str, Any]) -> list[Mask]:
    masks = [Mask.of(*layers) for layers in checked(list[list[int]], "masks", _value_of(config, "masks"))]
    if not masks:
        raise UserError("masks=[] names no mask; give a list of lists, such as masks=[[3],[3,5],[]]")
    return masks


def _ledger(config: Mapping[str, Any]) -> Path:
    ledger = _value_of(config, "ledger")
    return _store(config) / "ledger.db" if ledger is None else as_path("ledger", checked(str, "ledger", ledger))


def _store(config: Mapping[str, Any]) -> Path:
    return as_path("store", checked(str, "store", _value_of(config, "store")))


def _check_seed(config: Mapping[str, Any]) -> None:
    checked(NonNegativeInt, "seed", _value_of(config, "seed"))


def _build(part: type[Part], config: Mapping[str, Any], name: str) -> Part:
    """Build a class from its section."""
    return construct(part, name, _section(config, name))


def _section(config: Mapping[str, Any], name: str, shown: str = "") -> dict[str, Any]:
    """Return a section's keys and values; secrets are redacted in the value of the key `shown`, which others see."""
    section = as_section(name, _value_of(config, name))
    return {**section, **redacted({key: value for key, value in section.items() if key == shown})}


def _value_of(config: Mapping[str, Any], key: str) -> Any:
    """Return a top-level value. It is missing only after a mistake that is reported already: the error has no text."""
    if key not in config:
        raise UserError()
    return config[key]
