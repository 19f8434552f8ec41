"""The expected cost of a study: each search is rehearsed with an empty ledger, and after the searches before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field, InstanceOf, PlainSerializer, SerializerFunctionWrapHandler, computed_field, model_serializer

from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.timing import time_layers
from raysearch.searching.forecaster import Forecaster
from raysearch.searching.notices import describe_model, warn_of_dtype, warn_of_unknown_tokens
from raysearch.searching.observer import Observer
from raysearch.studies.checks import check_study
from raysearch.studies.model_group import prepare
from raysearch.studies.spec import Cell, StudySpec

_Labelled = Annotated[InstanceOf[Cell], PlainSerializer(attrgetter("labels"))]  # JSON has only the labels of a cell
_FORWARDS = ("shared", "separate", "naive")
_TIMEOUT_S = 5.0  # for the rehearsal of a search


@dataclass(frozen=True)
class CellPlan:
    """The expected cost of a search of a study; a forward is a pass over its whole calibration.

    Args:
        cell: The search.
        evaluations: How many masks it evaluates.
        separate: Layer-forwards with an empty ledger.
        shared: Layer-forwards after all searches before it, in the study's order.
        heads: Head-forwards after all searches before it.
        naive: Layer-forwards with a full forward for each mask.
    """

    cell: _Labelled
    evaluations: int
    separate: int
    shared: int
    heads: Annotated[int, Field(exclude=True)]
    naive: int

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        forwards = {kind: fields.pop(kind) for kind in _FORWARDS}
        return {**fields.pop("cell"), **fields, "layer_forwards": forwards}


@dataclass(frozen=True)
class StudyPlan:
    """The expected cost of a study.

    Args:
        cells: The cost of each search; searches with an unpredictable cost are left out.
        unpredictable: The searches with an unpredictable cost.
        eta_seconds: The duration of its searches, estimated by timing a few layers; None if they were not timed.
        memory_bytes: The largest memory that its searches need; None if the data were not read.
        notes: Notes for the user.
        trainings: The maximum number of recoveries; searches that find the same mask share them.
        assessed: The maximum number of masks that are assessed, including dense models.
        measures: The names of the measures of the assessment.
    """

    cells: Sequence[CellPlan]
    unpredictable: Sequence[_Labelled]
    eta_seconds: float | None = None
    memory_bytes: int | None = None
    notes: Sequence[str] = ()
    trainings: int = 0
    assessed: int = 0
    measures: Sequence[str] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def layer_forwards(self) -> dict[str, int]:
        """The layer-forwards of all searches together, by kind."""
        return {kind: sum(getattr(cell, kind) for cell in self.cells) for kind in _FORWARDS}


def plan_study(spec: StudySpec, observer: Observer | None = None, *, with_time: bool = False) -> StudyPlan:
    """Rehearse every search of a study. Nothing is recorded, and no weights are loaded.

    Args:
        spec: The study.
        observer: It is notified of progress and warnings.
        with_time: Whether to estimate time and memory too. This reads the data, checks the study, and runs a few layers
            of each model. Otherwise only the configurations of the models are read.

    Returns:
        The forecast of each search, and the costs of the whole study.

    Raises:
        UserError: A search does not fit its model; with `with_time`, also the errors of
            `raysearch.studies.run.run_study`.
    """
    observer = observer or Observer()
    describe = cache(partial(describe_model, observer=observer))
    forecaster = Forecaster(_TIMEOUT_S)
    simulated: list[tuple[EvaluationSpec, set[Mask | Statistic]]] = []
    plans = []
    unpredictable = []
    for number, cell in enumerate(spec.cells, start=1):
        observer.assessing(f"rehearsal: search {number} of {len(spec.cells)}")
        search = cell.search
        evaluation = search.evaluation
        args = search.searcher, search.problem(describe(evaluation.model)), search.seed, evaluation.objectives
        costs = forecaster.forecast(*args, repair=evaluation.repair)
        added_costs = None
        if costs is not None:
            recorded = _recorded_before(evaluation, simulated)
            added_costs = forecaster.forecast(*args, recorded, evaluation.repair)
        if costs is None or added_costs is None:
            unpredictable.append(cell)
            continue
        plans.append(
            CellPlan(
                cell,
                evaluations=sum(cost.masks for cost in costs),
                separate=sum(cost.layer_forwards for cost in costs),
                shared=sum(cost.layer_forwards for cost in added_costs),
                heads=sum(cost.head_forwards for cost in added_costs),
                naive=sum(cost.naive_layer_forwards for cost in costs),
            )
        )
    n_models = len({cell.search.evaluation.model for cell in spec.cells})
    measures = [] if spec.assess is None else spec.assess.measures
    plan = StudyPlan(
        plans,
        unpredictable,
        notes=spec.notes,
        trainings=len(spec.recoveries) * (len(spec.cells) + (n_models if spec.options.unpruned else 0)),
        assessed=len(spec.cells) + n_models if measures else 0,
        measures=measures,
    )
    return _with_time(spec, plan, observer) if with_time else plan


def _recorded_before(
    evaluation: EvaluationSpec, simulated: list[tuple[EvaluationSpec, set[Mask | Statistic]]]
) -> set[Mask | Statistic]:
    """Return what earlier searches with the same model and calibrations would have recorded.

    The set is the one in `simulated`, so that a rehearsal can add to it.
    """
    for earlier, subjects in simulated:
        if (earlier.model, earlier.calibrations) == (evaluation.model, evaluation.calibrations):
            return subjects
    subjects = set()
    simulated.append((evaluation, subjects))
    return subjects


def _with_time(study: StudySpec, plan: StudyPlan, observer: Observer) -> StudyPlan:
    """Read the data, check the study, and add its estimated seconds and memory, or a note why they are unknown."""
    seconds = 0.0
    memory_bytes = 0
    notes = list(plan.notes)
    model_groups = prepare(study, observer)
    with TemporaryDirectory() as store:
        check_study(study, model_groups, Path(store))
    for model_group in model_groups:  # models run one after another
        info = model_group.info
        calibrations = model_group.prepared.calibrations
        warn_of_unknown_tokens(calibrations, observer)
        warn_of_dtype(info, observer)
        pool = model_group.cluster.size(info, math.inf)
        memory_bytes = max(memory_bytes, pool.total_bytes)
        observer.assessing(f"timing: a few layers of {model_group.label} on a shard of each calibration")
        times = time_layers(info, model_group.specs, calibrations, model_group.cluster.cpus_per_replica)
        if times.seconds is None:
            notes.append(f"{model_group.label}: no estimate of time, {times.source}")
            continue
        fingerprints = [calibration.fingerprint for calibration in calibrations]
        layer_seconds = dict(zip(fingerprints, times.seconds, strict=True))
        for cell_plan in plan.cells:
            if cell_plan.cell in model_group.cells.values():
                used = model_group.prepared_for(cell_plan.cell).calibrations
                seconds_per_layer = sum(layer_seconds[calibration.fingerprint] for calibration in used)
                forwards = cell_plan.shared + cell_plan.heads * head_cost(info)
                seconds += forwards * seconds_per_layer / pool.n_replicas
    is_timed = len(notes) == len(plan.notes)
    return replace(plan, eta_seconds=seconds if is_timed else None, memory_bytes=memory_bytes, notes=notes)
