"""The tree of the configuration: a class for each command, whose fields are the keys of the command's YAML files.

A section is a dataclass of the room that uses it, such as `ClusterOptions`. A section with a key ``type`` is built by
the class that this key names, see `raysearch.configuration.parts`. `raysearch.core.validation.validated` fills a tree
and reports all mistakes; `raysearch.configuration.build` makes specifications of trees.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.data import Data
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.calibration.rows import Rows
from raysearch.checkpoints.runtimes import RUNTIMES
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.parts import build_data, build_objective, build_searcher
from raysearch.core.mask import Half, Mask
from raysearch.core.options import Options
from raysearch.core.problem import AUTO, sizes_of
from raysearch.core.scale import REPAIRS, Repair
from raysearch.core.space import LAYERS, SPACES, Space
from raysearch.core.validation import SECTION, UserPath, built_by, checked, validated
from raysearch.errors import Mistakes, UserError, within
from raysearch.evaluation.screening import Screening
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.models.file_cache import user_cache
from raysearch.models.spec import ModelSpec
from raysearch.recovery.spec import RecoveryOptions
from raysearch.searchers.base import Searcher
from raysearch.searching.recommendation import Budget
from raysearch.searching.serve_options import ServeOptions
from raysearch.searching.speed_options import SearchSpeedOptions
from raysearch.studies.spec import StudyOptions
from raysearch.text.sentences import as_typed, did_you_mean
from raysearch.tracking.options import TrackingOptions

OWN = "own"  #: the choice ``data=own`` of a recovery: the data of the recorded search


@dataclass(frozen=True)
class WeightedCalibrations:
    """The calibrations of a weighted objective.

    Args:
        weighting: Combines their losses.
        calibrations: A calibration for each part.
    """

    weighting: WeightedObjective
    calibrations: list[CalibrationSpec]


@dataclass(frozen=True)
class TrackingSection(Options):
    """The section ``tracking``: what `TrackingOptions` has besides the places of the store.

    Args:
        type: See `TrackingOptions`.
        uri: See `TrackingOptions`.
        experiment: See `TrackingOptions`.
        child_runs: See `TrackingOptions`.
    """

    section = "tracking"

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    child_runs: Literal["best", "all", "none"] = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options(Path(), None)  # checks the address

    def options(self, folder: Path, ledger: Path | None) -> TrackingOptions:
        """Return the options of the tracker.

        Args:
            folder: The store.
            ledger: The ledger's file; None for the ledger in the store.

        Returns:
            The options. Secrets in the name of the experiment are redacted.
        """
        return TrackingOptions(self.type, self.uri, self.experiment, folder, ledger, self.child_runs)


def _build_model(section: Mapping[str, Any]) -> ModelSpec:
    """Build the model; with ``model.cache`` a GGUF file is kept in the user's cache."""
    uses_cache = checked(bool, "model.cache", section.get("cache", True))
    cache = str(user_cache()) if uses_cache else None
    return validated(ModelSpec, "model", {**section, "cache": cache})


def _build_objective(section: Mapping[str, Any]) -> Objective | WeightedCalibrations:
    if section.get("parts") is None:
        return build_objective(section)
    mistakes = Mistakes()
    calibrations = []
    for part in section["parts"]:
        with mistakes:
            values = {key: part[key] for key in ("objective", "data", "choices")}
            config = within("objective.parts", validated, CalibrationConfig, "", values)
            calibrations.append(calibration_spec(config.objective, config.data, config.choices))
    with mistakes:
        weights = [checked(float, "objective.parts: weight", part["weight"]) for part in section["parts"]]
        # the overrides of the parts refer to the values under `shared`, which are not fields
        fields = {key: value for key, value in section.items() if key not in ("type", "parts", "shared")}
        weighting = validated(WeightedObjective, "objective", {**fields, "weights": weights})
    mistakes.raise_if_any()
    return WeightedCalibrations(weighting, calibrations)


def calibration_spec(objective: Objective, data: Data, choices: Mapping[str, str]) -> CalibrationSpec:
    """Return the specification of a calibration, with its name for people.

    Args:
        objective: The objective.
        data: The data.
        choices: The chosen files of ``objective`` and ``data``.

    Returns:
        The specification. Its name is such as ``perplexity on c4``.
    """
    return CalibrationSpec(f"{choices['objective']} on {_name_of(choices['data'], data.rows)}", objective, data)


def _name_of(choice: str, rows: Rows) -> str:
    """Return the choice of data; with the file's or the data set's name if the choice does not imply it."""
    if rows.path and not rows.name:
        return f"{choice} {Path(rows.path).name}"
    return f"{choice} {rows.name}" if choice == "hub" else choice


def _check_data(choices: Mapping[str, str]) -> None:
    """Refuse the search's own data as data of a search."""
    if choices["data"] == OWN:
        raise UserError(f"data={OWN} is a search's own data, for raysearch recover alone; name data such as data=file")


def _read_remove(value: Any) -> int | str:
    remove: int | str = value if type(value) is int else as_typed(value)
    if remove != AUTO:
        sizes_of(remove)
    return remove


_MEANS_HALF = re.compile(r"[0-9]+[A-Za-z_]+")  # perhaps written wrongly


def _check_parts(expected: Any, key: str, value: Any) -> None:
    """Refuse lists whose values are neither layers nor halves such as ``17a``.

    Args:
        expected: The type of the value if it has layers alone.
        key: The key.
        value: The value.
    """

    def layers_of(part: Any) -> Any:
        if isinstance(part, list):
            return [*map(layers_of, part)]
        if not isinstance(part, str) or not _MEANS_HALF.fullmatch(part):
            return part
        if not Half.is_text(part):
            raise UserError(
                f"{key}={as_typed(value)} has {part}, which is neither a layer nor a half; write 17 for layer 17, 17a "
                "for its attention, and 17m for its MLP"
            )
        return Half.parse(part).layer

    checked(expected, key, layers_of(value))


def _read_protect(value: Any) -> list[int | str]:
    _check_parts(list[int], "protect", value)
    return [*value]


def _read_space(value: Any) -> Space:
    name = as_typed(value)
    if name not in SPACES:
        raise UserError(f"space={name} is unknown; {did_you_mean(name, SPACES)}")
    return SPACES[name]


def _read_repair(value: Any) -> Repair:
    for repair in REPAIRS:
        if value == repair:
            return repair
    name = as_typed(value)
    raise UserError(f"repair={name} is unknown; {did_you_mean(name, REPAIRS)}")


def _read_target(value: Any) -> tuple[str, ...]:
    """Return the names of runtimes, each once; the value is a name, a list of names, or None for none."""
    names = value if isinstance(value, list) else [] if value is None else [value]
    for name in names:
        if name not in RUNTIMES:
            remedy = did_you_mean(as_typed(name), RUNTIMES)
            raise UserError(f"target={as_typed(value)} has {as_typed(name)}, which is no runtime; {remedy}")
    return tuple(name for name in RUNTIMES if name in names)


def _read_budget(limits: Mapping[str, Any]) -> Budget | None:
    """Return the budget; None if it has no limit."""
    overrides = [f"budget.{limit}={as_typed(value)}" for limit, value in limits.items() if value is not None]
    return Budget.parse(overrides) if overrides else None


def _read_masks(value: Any) -> list[Mask]:
    _check_parts(list[list[int]], "masks", value)
    masks = [Mask.of(*parts) for parts in value]
    if not masks:
        raise UserError("masks=[] names no mask; give a list of lists, such as masks=[[3],[3,5],[]]")
    return masks


def _build_assess(section: Mapping[str, Any]) -> AssessSpec:
    mistakes = Mistakes()
    with mistakes:
        options = {key: value for key, value in section.items() if key not in ("texts", "generation")}
        spec = validated(AssessSpec, "assess", options)
    with mistakes:
        texts = _build_texts("texts", section.get("texts", {}))
    with mistakes:
        tasks = _build_texts("generation", section.get("generation", {}))
    mistakes.raise_if_any()
    return dataclasses.replace(spec, texts=texts, generation=tasks)


def _build_measures(section: Mapping[str, Any]) -> AssessSpec:
    spec = _build_assess(section)
    if not spec.measures:
        raise UserError("assess measures nothing; name texts or tasks, or set assess.speed.enabled=true")
    return spec


def _build_texts(key: str, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Data]:
    """Build the data of texts or tasks. They may come from an evaluation split."""
    mistakes = Mistakes()
    data = {}
    for name, section in sections.items():
        with mistakes:
            values = {**section, "allow_evaluation_split": True}
            data[name] = within(f"assess.{key}.{name}", build_data, values)
    mistakes.raise_if_any()
    return data


def _build_recovery_options(section: Mapping[str, Any]) -> RecoveryOptions:
    return validated(RecoveryOptions, "recovery", {**section, "responses": section.get("responses") or "self"})


def _build_short_recovery(values: Mapping[str, Any] | None) -> RecoveryConfig | None:
    return None if values is None else within("refine.recover_with", validated, RecoveryConfig, "", values)


def _build_healing(values: Mapping[str, Any] | None) -> HealingConfig | None:
    return None if values is None else within("heal.recover_with", validated, HealingConfig, "", values)


def _build_refine(section: Mapping[str, Any]) -> RefineSection | None:
    """Build the section ``refine``; None if no mask is to be recovered."""
    return None if section.get("recover_with") is None else validated(RefineSection, "refine", section)


def _build_study(section: Mapping[str, Any]) -> StudyOptions:
    names = {field.name for field in dataclasses.fields(StudyGrid)}
    return validated(StudyOptions, "study", {key: section[key] for key in section.keys() - names})


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """A part of a weighted objective."""

    objective: Annotated[Objective, built_by(build_objective)]
    data: Annotated[Data, built_by(build_data)]
    choices: Mapping[str, str]

    def __post_init__(self) -> None:
        _check_data(self.choices)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The keys of all commands that evaluate masks.

    Args:
        model: The model.
        objective: The objective, or the calibrations of a weighted objective.
        data: The data; None for a weighted objective, whose parts have their own.
        cluster: The replicas.
        store: The folder of the ledger and of the embedded MLflow store.
        ledger: The ledger's file; None for ``ledger.db`` in the store.
        seed: The seed of the searcher, and of random samples unless ``data.seed`` is set.
        choices: The chosen file of each group.
    """

    model: Annotated[ModelSpec, built_by(_build_model)]
    objective: Annotated[Objective | WeightedCalibrations, built_by(_build_objective)]
    data: Annotated[Data, built_by(build_data)] | None = None
    cluster: Annotated[ClusterOptions, SECTION]
    store: UserPath
    ledger: UserPath | None
    seed: NonNegativeInt
    choices: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.data is not None:
            _check_data(self.choices)

    @property
    def ledger_file(self) -> Path:
        """The ledger's file."""
        return self.store / "ledger.db" if self.ledger is None else self.ledger


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(EvaluationConfig):
    """The keys of ``raysearch score``.

    Args:
        masks: The masks to evaluate.
        repair: How they are repaired before that.
    """

    masks: Annotated[list[Mask], built_by(_read_masks)]
    repair: Annotated[Repair, built_by(_read_repair)]


@dataclass(frozen=True, kw_only=True)
class RecordedSearchConfig(EvaluationConfig):
    """The keys of a recorded search that decide its masks and losses before masks are recovered.

    Args:
        searcher: The searcher.
        screening: When the evaluation of a mask stops early.
        remove: The number of layers to remove, a range such as ``"1..9"``, or ``"auto"``.
        protect: Layers, and halves such as ``"17a"``, that are never removed; negative layers count from the end.
        space: What can be removed.
        repair: How masks are repaired before they are evaluated.
        target: The names of the runtimes that are to run the result; empty for any.
        budget: The limits of ``remove="auto"``; None if none is set.
        speed: How the speeds of a search by budget are measured.
        serve: How they are measured in the runtime ``speed.serve``.
    """

    searcher: Annotated[Searcher, built_by(build_searcher)]
    screening: Annotated[Screening, SECTION]
    remove: Annotated[int | str, built_by(_read_remove)]
    protect: Annotated[list[int | str], built_by(_read_protect)]
    budget: Annotated[Budget | None, built_by(_read_budget)]
    speed: Annotated[SearchSpeedOptions, SECTION]
    serve: Annotated[ServeOptions, SECTION]
    target: Annotated[tuple[str, ...], built_by(_read_target)] = ()
    space: Annotated[Space, built_by(_read_space)] = LAYERS
    repair: Annotated[Repair, built_by(_read_repair)] = "none"


@dataclass(frozen=True, kw_only=True)
class RecoveryConfig:
    """The keys of a recovery: its data and its training.

    Args:
        data: The rows to train on.
        recovery: How a pruned model is trained.
        choices: The chosen file of each group.
    """

    data: Annotated[Data, built_by(build_data)]
    recovery: Annotated[RecoveryOptions, built_by(_build_recovery_options)]
    choices: Mapping[str, str]

    def __post_init__(self) -> None:
        if missing := [name for name in ("peft", "trl") if find_spec(name) is None]:
            raise UserError(f"recover needs {' and '.join(missing)}; install with: pip install {' '.join(missing)}")
        if self.recovery.method == "qlora" and find_spec("bitsandbytes") is None:
            raise UserError("recovery.method=qlora needs bitsandbytes; install it with: pip install bitsandbytes")


@dataclass(frozen=True, kw_only=True)
class RecoverConfig(RecoveryConfig):
    """The keys of ``raysearch recover``.

    Args:
        assess: The measurements of the recovered model; it may name none.
        cluster: The replicas of the dense model, which write answers and assess.
        seed: The seed of the random draw of rows.
    """

    assess: Annotated[AssessSpec, built_by(_build_assess)] = field(default_factory=AssessSpec)
    cluster: Annotated[ClusterOptions, SECTION]
    seed: NonNegativeInt


@dataclass(frozen=True, kw_only=True)
class HealingConfig(RecoveryConfig):
    """The keys of the recovery after each stage of a search.

    Args:
        assess: The measurements of the last stage's model; it may name none.
    """

    assess: Annotated[AssessSpec, built_by(_build_assess)]


@dataclass(frozen=True, kw_only=True)
class HealSection:
    """The section ``heal``, see `RecoveryHealer`.

    Args:
        recover_with: The data, the options and the assessment of the recovery after each stage; None for no recovery.
    """

    recover_with: Annotated[HealingConfig | None, built_by(_build_healing)] = None


@dataclass(frozen=True, kw_only=True)
class RefineSection:
    """The section ``refine``, see `RecoveryRefiner`.

    Args:
        masks: The number of masks to recover: those with the lowest losses.
        steps: The number of steps of each training.
        recover_with: The data and options of the training.
    """

    masks: Annotated[int, Field(ge=2)]
    steps: PositiveInt
    recover_with: Annotated[RecoveryConfig, built_by(_build_short_recovery)]


@dataclass(frozen=True, kw_only=True)
class SearchConfig(RecordedSearchConfig):
    """The keys of ``raysearch search``.

    Args:
        refine: How the best masks are recovered before the best one is chosen; None to choose by their losses alone.
        schedule: How many layers each stage removes before the model is recovered; empty to remove all at once.
        heal: How the model is recovered after each stage of the schedule.
        tracking: The tracker that records the search.
    """

    refine: Annotated[RefineSection | None, built_by(_build_refine)]
    schedule: list[PositiveInt] = field(default_factory=list)
    heal: Annotated[HealSection, SECTION] = HealSection()
    tracking: Annotated[TrackingSection, SECTION]

    @property
    def tracking_options(self) -> TrackingOptions:
        """The options of the tracker."""
        return self.tracking.options(self.store, self.ledger_file)


@dataclass(frozen=True, kw_only=True)
class AssessConfig:
    """The keys of ``raysearch assess`` that are checked before the recorded search is read.

    Args:
        assess: The texts, tasks and speeds to measure.
        serve: How speed is measured in a runtime.
        seed: The seed of randomly drawn texts.
    """

    assess: Annotated[AssessSpec, built_by(_build_measures)]
    serve: Annotated[ServeOptions, SECTION]
    seed: NonNegativeInt


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """The keys that decide where searches and studies are recorded.

    Args:
        tracking: The tracker.
        store: See `EvaluationConfig`.
        ledger: See `EvaluationConfig`.
    """

    tracking: Annotated[TrackingSection, SECTION]
    store: UserPath
    ledger: UserPath | None

    @property
    def options(self) -> TrackingOptions:
        """The options of the tracker."""
        return self.tracking.options(self.store, self.store / "ledger.db" if self.ledger is None else self.ledger)


@dataclass(frozen=True, kw_only=True)
class StudyConfig(TrackingConfig):
    """The keys of ``raysearch study`` that are not keys of its searches.

    Args:
        study: How the study runs its searches.
        assess: How the masks are assessed; None for no assessment.
    """

    study: Annotated[StudyOptions, built_by(_build_study)]
    assess: Annotated[AssessSpec, built_by(_build_measures)] | None = None


@dataclass(frozen=True, kw_only=True)
class StudyGrid:
    """The keys of the section ``study`` that name its searches and recoveries.

    Args:
        grid: The axes, with the values or the overrides of each.
        include: Additional combinations, with a label for every axis.
        exclude: Combinations to leave out.
        recover: The overrides of each recovery method by its label; None for none.
        recover_with: Overrides for all methods, before their own.
    """

    grid: dict[str, Any] = field(default_factory=dict)
    include: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    recover: dict[str, str | None] = field(default_factory=dict)
    recover_with: str = ""

    @property
    def recoveries(self) -> dict[str, str]:
        """The overrides of each recovery method, as typed."""
        return {name: f"{self.recover_with} {text}" for name, text in self.recover.items() if text is not None}
