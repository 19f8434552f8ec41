"""Builds specifications, such as a `SearchSpec`, from overrides or from a recorded configuration.

The overrides and the YAML files are merged, a class of `raysearch.configuration.tree` validates the result, and the
functions here make the specification. All mistakes of a command are reported at once, as one `UserError`. `compose`
documents the arguments `overrides` and `config_dir` of all functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from raysearch.assessment.spec import AssessSpec
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.compose import (
    compose,
    compose_calibration,
    compose_leniently,
    split_overrides,
    with_section,
)
from raysearch.configuration.merge import MergedConfig
from raysearch.configuration.overrides import Override, as_overrides, key_of, section_of
from raysearch.configuration.tree import (
    OWN,
    AssessConfig,
    CalibrationConfig,
    EvaluationConfig,
    RecordedSearchConfig,
    RecoverConfig,
    RecoveryConfig,
    ScoreConfig,
    SearchConfig,
    StudyConfig,
    StudyGrid,
    TrackingConfig,
    WeightedCalibrations,
    calibration_spec,
)
from raysearch.core.mask import Mask
from raysearch.core.paths import PathLike
from raysearch.core.problem import AUTO
from raysearch.core.space import LAYERS
from raysearch.core.validation import no_value, validated
from raysearch.errors import Mistakes, UserError, within
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.source import with_dtype
from raysearch.models.spec import ModelSpec, label_of
from raysearch.recovery.healer import RecoveryHealer
from raysearch.recovery.refine import RecoveryRefiner
from raysearch.recovery.spec import RecoverySpec
from raysearch.searching.recommendation import Budget
from raysearch.searching.spec import SearchSpec
from raysearch.studies.grid import Combination, combinations_of
from raysearch.studies.spec import Cell, StudySpec, counted_differently, drawn_once, one_seed_each, with_shared_models
from raysearch.text.sentences import as_typed
from raysearch.tracking.options import TrackingOptions

Config = TypeVar("Config")

_SEED_RANGE = 1_000_000  # each set of samples of a study adds a number below this to the searcher's seed
#: The keys added since the ledger's format 7; a recorded search without them has their defaults.
_ADDED_KEYS = {"budget", "speed", "serve", "refine", "schedule", "heal"}
#: The keys of a search that only a search which is resumed needs.
_KEYS_TO_RESUME = ("refine", "schedule", "heal", "tracking")


def search_spec(overrides: Sequence[Override], config_dir: PathLike | None = None) -> SearchSpec:
    """Build a search from the overrides of ``raysearch search``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The specification of the search.
    """
    return tracked_search(overrides, config_dir)[0]


def tracked_search(
    overrides: Sequence[Override], config_dir: PathLike | None = None
) -> tuple[SearchSpec, TrackingOptions]:
    """Build a search and its tracking options from the overrides of ``raysearch search``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The specification of the search, and the options of its tracker.
    """
    merged = compose_leniently("search", overrides, config_dir)
    config = _read(SearchConfig, merged)
    return _trained_search_spec(config, merged.config), config.tracking_options


def recorded_search(config: Mapping[str, Any], *, goes_on: bool = False) -> SearchSpec:
    """Build a search from its recorded configuration.

    Args:
        config: The recorded configuration.
        goes_on: Whether the search is to be resumed. Only then are its recoveries and its section ``tracking`` read:
            recoveries need peft and trl.

    Returns:
        The specification of the search. It has no refiner and no healer unless `goes_on` is set.

    Raises:
        UserError: Another version of raysearch recorded the search.
    """
    if added := _ADDED_KEYS - config.keys():
        config = {**config, **{name: value for name, value in compose("search", []).items() if name in added}}
    required = {field.name for field in dataclasses.fields(SearchConfig) if field.default is dataclasses.MISSING}
    if missing := sorted(required - config.keys()):
        raise UserError(
            f"the search is recorded without {' and '.join(missing)}, as another version of raysearch wrote it; type "
            "the whole search command again, which continues from its evaluations"
        )
    if goes_on:
        return _trained_search_spec(validated(SearchConfig, "", _evaluation_values(config)), config)
    values = {key: value for key, value in _evaluation_values(config).items() if key not in _KEYS_TO_RESUME}
    return _search_spec(validated(RecordedSearchConfig, "", values), config)


def _read(config_class: type[Config], merged: MergedConfig) -> Config:
    """Validate a merged configuration, and raise all mistakes of merging and of validation together."""
    values = _evaluation_values(merged.config)
    return validated(config_class, "", values, merged.mistakes.sentences, merged.absent)


def _evaluation_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration; those of a weighted objective have no data, since its parts have."""
    is_weighted = config.get("objective", {}).get("parts") is not None
    return {key: value for key, value in config.items() if not (is_weighted and key == "data")}


def _values_of(config_class: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are keys of a class, from a configuration that has others, too."""
    names = {field.name for field in dataclasses.fields(config_class)}
    return {key: value for key, value in config.items() if key in names}


def _evaluation_spec(config: EvaluationConfig) -> EvaluationSpec:
    model = with_dtype(config.cluster.place(config.model))
    if isinstance(config.objective, WeightedCalibrations):
        calibrations = config.objective.calibrations
        weighting = config.objective.weighting
        return EvaluationSpec(model, calibrations, config.cluster, config.ledger_file, weighting)
    if config.data is None:
        raise UserError(no_value("data"))
    calibration = calibration_spec(config.objective, config.data, config.choices)
    return EvaluationSpec(model, [calibration], config.cluster, config.ledger_file)


def _with_halves(evaluation: EvaluationSpec) -> EvaluationSpec:
    """Return an evaluation of masks that may have halves of layers."""
    return dataclasses.replace(evaluation, model=dataclasses.replace(evaluation.model, halves=True))


def _search_spec(config: RecordedSearchConfig, values: Mapping[str, Any]) -> SearchSpec:
    """Build a search.

    Args:
        config: Its configuration.
        values: The same configuration as plain values, for the record.
    """
    evaluation = _evaluation_spec(config)
    if config.space.needs_halves:
        evaluation = _with_halves(evaluation)
    evaluation = evaluation.repaired(config.repair)
    if config.screening.stages:
        evaluation = dataclasses.replace(evaluation, screening=config.screening)
    # The record holds the dtype that this machine chose for `auto`: the search must resume with it on any machine.
    model = {**values["model"], "dtype": evaluation.model.dtype}
    return SearchSpec(
        evaluation,
        config.searcher,
        config.choices["searcher"],
        config.remove,
        config.protect,
        config.seed,
        {**values, "model": model},
        Budget.parse([]) if config.budget is None and config.remove == AUTO else config.budget,
        config.speed,
        config.serve,
        target=config.target,
        space=config.space,
    )


def _trained_search_spec(config: SearchConfig, values: Mapping[str, Any]) -> SearchSpec:
    """Build a search with its refiner and its healer; the arguments are those of `_search_spec`."""
    search = _search_spec(config, values)
    if config.refine is not None:
        recover_with = config.refine.recover_with
        recovery = _recover_spec(recover_with, values["refine"]["recover_with"], config.cluster, AssessSpec())
        recovery = recovery.on_own_data(search.evaluation, values) or recovery
        if recovery.options.loss == "hidden" and search.space is not LAYERS:
            raise UserError(
                f"recovery.loss=hidden needs whole layers, and refine=recover trains masks of space={search.space.name}"
                "; use recovery.loss=distill, or space=layers"
            )
        refiner = RecoveryRefiner(config.refine.masks, config.refine.steps, recovery)
        search = dataclasses.replace(search, refiner=refiner)
    healing = config.heal.recover_with
    if healing is None:
        if config.schedule:
            raise UserError(
                f"schedule={as_typed(config.schedule)} removes layers and recovers the model in turns, and heal=none "
                "recovers nothing; use heal=recover, or leave schedule out"
            )
        return search
    if not config.schedule:
        raise UserError(
            "heal=recover needs the number of layers of each stage; give it, as in remove=9 schedule=[3,3,3], or use "
            "raysearch recover after the search"
        )
    recovery = _recover_spec(healing, values["heal"]["recover_with"], config.cluster, healing.assess)
    recovery = recovery.on_own_data(search.evaluation, values) or recovery
    healer = RecoveryHealer(tuple(config.schedule), recovery)
    return dataclasses.replace(search, healer=healer)


def score_spec(overrides: Sequence[Override], config_dir: PathLike | None = None) -> tuple[EvaluationSpec, list[Mask]]:
    """Build an evaluation, and the masks to evaluate, from the overrides of ``raysearch score``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The evaluation, and the masks in the order of ``masks``.
    """
    config = _read(ScoreConfig, compose_leniently("score", overrides, config_dir))
    evaluation = _evaluation_spec(config).repaired(config.repair)
    return (_with_halves(evaluation) if any(mask.halves for mask in config.masks) else evaluation), config.masks


def evaluation_spec(
    overrides: Sequence[Override], also: Sequence[str], config_dir: PathLike | None = None
) -> EvaluationSpec:
    """Build an evaluation on several calibrations.

    Args:
        overrides: See `compose`; they name the model and the first calibration.
        also: The other calibrations: for each, the overrides that differ from the first.
        config_dir: See `compose`.

    Returns:
        The evaluation. Its first calibration is the one of `overrides`, and those of `also` follow in order.

    Raises:
        UserError: See `compose`; or the first calibration is weighted.
    """
    merged = compose_leniently("evaluation", overrides, config_dir)
    mistakes = Mistakes()
    with mistakes:
        evaluation = _evaluation_spec(_read(EvaluationConfig, merged))
    other_calibrations = []
    for text in also:
        with mistakes:
            other_calibrations.append(_other_calibration(text, merged.overrides, config_dir))
    mistakes.raise_if_any()
    if evaluation.weighting is not None:
        raise UserError("objective=weighted is several calibrations in one; give each of them with --also instead")
    return dataclasses.replace(evaluation, calibrations=[*evaluation.calibrations, *other_calibrations])


def _other_calibration(
    text: str, command_overrides: Sequence[Override], config_dir: PathLike | None
) -> CalibrationSpec:
    """Build a calibration from its overrides; the arguments are those of `compose_calibration`."""
    config = validated(CalibrationConfig, "", compose_calibration(text, command_overrides, config_dir))
    return calibration_spec(config.objective, config.data, config.choices)


def study_spec(overrides: Sequence[Override], config_dir: PathLike | None = None) -> StudySpec:
    """Build a study and all of its searches from the overrides of ``raysearch study``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The specification of the study.
    """
    return tracked_study(overrides, config_dir)[0]


def tracked_study(
    overrides: Sequence[Override], config_dir: PathLike | None = None
) -> tuple[StudySpec, TrackingOptions]:
    """Build a study and its tracking options from the overrides of ``raysearch study``.

    Args:
        overrides: See `compose`.
        config_dir: See `compose`.

    Returns:
        The specification of the study, and the options of its tracker.

    Raises:
        UserError: See `compose`; or the searches of the study are recorded in different places.
    """
    merged = compose_leniently("study", overrides, config_dir)
    mistakes = merged.mistakes
    with mistakes:
        config = _read_study(merged, overrides)
    with mistakes:
        recoveries = _study_recoveries(merged.config, config_dir)
    with mistakes:
        planned_cells = _cells(merged, config_dir)
    mistakes.raise_if_any()
    config.study.check_contrasts(cell.cell.searcher for cell in planned_cells)
    tracking = config.options
    if any(cell.tracking != tracking for cell in planned_cells):
        raise UserError(
            "study.grid has searches recorded in different places, and a study has one; take store, ledger and "
            "tracking out of its axes, and give them outside the grid"
        )
    if config.assess is not None:
        recoveries = {name: dataclasses.replace(spec, assess=config.assess) for name, spec in recoveries.items()}
    arguments = [*([] if config_dir is None else ["--config-dir", str(config_dir)]), *map(str, overrides)]
    cells, notes = one_seed_each(_with_short_names([planned.cell for planned in planned_cells]))
    cells = with_shared_models(cells)
    spec = StudySpec(
        config.study,
        cells,
        config.assess,
        config.store,
        merged.config,
        arguments,
        [*notes, *counted_differently(cells), *drawn_once(cells)],
        recoveries,
    )
    return spec, tracking


def _read_study(merged: MergedConfig, overrides: Sequence[Override]) -> StudyConfig:
    """Validate the keys of a study that are not keys of its searches."""
    values = _values_of(StudyConfig, merged.config)
    sets_assess = any(key_of(override).startswith("assess.") for override in overrides)
    if merged.config["choices"]["assess"] == "none" and not sets_assess:
        values.pop("assess", None)
    return validated(StudyConfig, "", values, merged.mistakes.sentences, merged.absent)


def _grid(study: Mapping[str, Any]) -> StudyGrid:
    return validated(StudyGrid, "study", _values_of(StudyGrid, study.get("study", {})))


def _study_recoveries(study: Mapping[str, Any], config_dir: PathLike | None) -> dict[str, RecoverySpec]:
    """Build the methods of recovering a study's masks."""
    recoveries = {}
    mistakes = Mistakes()
    for name, text in _grid(study).recoveries.items():
        with mistakes:
            overrides = split_overrides(text, f"study.recover.{name}=")
            on_cluster = with_section("cluster", study, overrides) if "cluster" in study else overrides
            config = compose("recover", on_cluster, config_dir)
            recoveries[name] = within(f"study.recover.{name}", recover_spec, config)
    mistakes.raise_if_any()
    return recoveries


class _PlannedCell(NamedTuple):
    """A search of a study, and where it is recorded."""

    cell: Cell
    tracking: TrackingOptions


def _cells(merged: MergedConfig, config_dir: PathLike | None) -> list[_PlannedCell]:
    """Build the searches of a study."""
    if "study" in merged.absent:
        return []
    grid = _grid(merged.config)
    cells = []
    mistakes = Mistakes()
    for combination in combinations_of(grid.grid, grid.include, grid.exclude):
        with mistakes:
            cells.append(_cell(combination, merged.overrides, merged.config, config_dir))
    mistakes.raise_if_any()
    return cells


def _cell(
    combination: Combination,
    study_overrides: Sequence[Override],
    study: Mapping[str, Any],
    config_dir: PathLike | None,
) -> _PlannedCell:
    """Build a search of a study.

    If an axis varies the searcher's seed, the samples stay the same. The searcher's seed depends on the set of samples,
    so that its random numbers are independent between them; unless the overrides of another axis set the seed.
    """
    shared = [override for override in study_overrides if section_of(override) not in ("study", "assess")]
    overrides = [*_study_choices(), *shared, *combination.overrides]
    set_keys = {*map(key_of, overrides)}
    if "seed" in combination.labels and "data.seed" not in set_keys and "seed" in study:
        overrides.append(f"data.seed={study['seed']}")
    search, tracking = tracked_search(overrides, config_dir)
    seed_is_set = "seed" not in combination.labels and "seed" in map(key_of, combination.overrides)
    if search.searcher.stochastic and not seed_is_set:
        seed = search.seed + _seed_offset(combination)  # not an override, which would change the seed of the data too
        search = dataclasses.replace(search, seed=seed, config={**search.config, "seed": seed})
    if search.budget is not None:
        raise UserError("remove=auto is of one search, not of a study's; give study.grid.remove a number or a range")
    if search.refiner is not None:
        raise UserError(
            "refine=recover is of one search, not of a study's; study.recover trains each mask that a study finds"
        )
    if search.healer is not None:
        raise UserError(
            "heal=recover is of one search, not of a study's; study.recover trains each mask that a study finds"
        )
    calibrations = " and ".join(calibration.name for calibration in search.evaluation.calibrations)
    cell = Cell(
        model=combination.label("model") or search.evaluation.model.name,
        calibration=combination.label("calibration") or calibrations,
        searcher=combination.label("searcher") or search.searcher_name,
        search=search,
        draw=combination.label("draw") or "",
    )
    return _PlannedCell(cell, tracking)


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
    """Build the assessment of a configuration composed from ``conf/assess.yaml``.

    Raises:
        UserError: The section ``assess`` is wrong, or measures nothing.
    """
    return assess_config(config).assess


def assess_config(config: Mapping[str, Any]) -> AssessConfig:
    """Build a configuration composed from ``conf/assess.yaml``; errors are those of `assess_spec`."""
    return validated(AssessConfig, "", _values_of(AssessConfig, config))


def recover_spec(config: Mapping[str, Any]) -> RecoverySpec:
    """Build a recovery from a configuration composed from ``conf/recover.yaml``.

    The section ``assess`` names the measures of the recovered model; it may name none.

    Raises:
        UserError: The configuration is wrong, or a library for training is not installed.
    """
    recover = validated(RecoverConfig, "", config)
    return _recover_spec(recover, config, recover.cluster, recover.assess)


def _recover_spec(
    config: RecoveryConfig, values: Mapping[str, Any], cluster: ClusterOptions, assess: AssessSpec
) -> RecoverySpec:
    """Build a recovery.

    Args:
        config: Its configuration.
        values: The same configuration as plain values, for the record.
        cluster: The cluster of the dense model's replicas.
        assess: The measurements of the recovered model.
    """
    is_own = config.choices["data"] == OWN
    options = config.recovery
    responses = values["recovery"].get("responses")
    choices = {"data": "sotu" if is_own else config.choices["data"], "recovery": config.choices["recovery"]}
    sections = {
        "choices": choices,
        "data": values["data"],
        "recovery": {**values["recovery"], "responses": options.responses},
    }
    return RecoverySpec(
        config.data,
        options,
        assess,
        cluster,
        dataclasses.replace(options, responses=responses or "data") if is_own else None,
        {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()},
        None if options.teacher is None else _teacher(options.teacher, cluster),
    )


def _teacher(name: str, cluster: ClusterOptions) -> ModelSpec:
    """Build the teacher of a recovery, as ``model=`` builds a model.

    Args:
        name: Its name.
        cluster: The cluster of its replicas.
    """
    model = within("recovery.teacher", evaluation_spec, as_overrides({"model": name}), ()).model
    return cluster.place(model)


def tracking_options(config: Mapping[str, Any]) -> TrackingOptions:
    """Build the tracking options from the configuration of a search or a study."""
    return validated(TrackingConfig, "", _values_of(TrackingConfig, config)).options
