"""The expected cost of a study: each search rehearsed on an empty ledger, and after the searches before it."""

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
from raysearch.searching.forecast import Forecaster
from raysearch.searching.observer import Observer, describe_model, warn_of_dtype, warn_of_unknown
from raysearch.studies.checks import check_study
from raysearch.studies.model_group import prepare
from raysearch.studies.spec import Cell, StudySpec

_Labelled = Annotated[InstanceOf[Cell], PlainSerializer(attrgetter("labels"))]  # in JSON by its labels
_FORWARDS = ("shared", "separate", "naive")
_TIMEOUT_S = 5.0  # of the rehearsal of a search


@dataclass(frozen=True)
class CellPlan:
    """The expected cost of a search of a study; forwards are passes over its whole calibration.

    Args:
        evaluations: Masks it asks for.
        separate: Layer-forwards on an empty ledger.
        shared: The same after all searches before it, in the study's order; `heads` are head-forwards after these.
        naive: Layer-forwards of a full forward per mask.
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
        cells: Of each search; those with an unpredictable cost are left out.
        eta_seconds: How long its searches take, by a trial run of a few layers; None if none was made.
        memory_bytes: The most memory that its searches take; None if the data were not read.
        trainings: Recoveries that follow, at most: searches that find the same mask share them.
        assessed: Masks that are assessed, dense models included, at most, as for `trainings`.
        measures: What each of them is assessed by.
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
        """The sums over all searches."""
        return {kind: sum(getattr(cell, kind) for cell in self.cells) for kind in _FORWARDS}


def plan_study(spec: StudySpec, observer: Observer | None = None, *, with_time: bool = False) -> StudyPlan:
    """Rehearse every search of a study; only the models' configurations are read.

    With `with_time` the data are read as well, and a few layers of each model are run, to find out how long the study
    takes, and in how much memory. Nothing is recorded, and no weights are loaded.

    Raises:
        UserError: A search does not fit its model, or, `with_time`, as `raysearch.studies.run.run_study`.
    """
    observer = observer or Observer()
    shape, forecaster = cache(partial(describe_model, observer=observer)), Forecaster(_TIMEOUT_S)
    known: list[tuple[EvaluationSpec, set[Mask | Statistic]]] = []
    plans, unpredictable = [], []
    for number, cell in enumerate(spec.cells, start=1):
        observer.assessing(f"rehearsal: search {number} of {len(spec.cells)}")
        search, evaluation = cell.search, cell.search.evaluation
        args = search.searcher, search.problem(shape(evaluation.model)), search.seed, evaluation.objectives
        alone = forecaster.forecast(*args)
        added = None if alone is None else forecaster.forecast(*args, _left_in_ledger(evaluation, known))
        if alone is None or added is None:
            unpredictable.append(cell)
            continue
        plans.append(
            CellPlan(
                cell,
                evaluations=sum(cost.masks for cost in alone),
                separate=sum(cost.layer_forwards for cost in alone),
                shared=sum(cost.layer_forwards for cost in added),
                heads=sum(cost.head_forwards for cost in added),
                naive=sum(cost.naive_layer_forwards for cost in alone),
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
    return _measured(spec, plan, observer) if with_time else plan


def _left_in_ledger(
    evaluation: EvaluationSpec, known: list[tuple[EvaluationSpec, set[Mask | Statistic]]]
) -> set[Mask | Statistic]:
    """Return what earlier searches of the same model and calibrations have left there: the set itself, which grows."""
    for other, subjects in known:
        if (other.model, other.calibrations) == (evaluation.model, evaluation.calibrations):
            return subjects
    known.append((evaluation, subjects := set()))
    return subjects


def _measured(study: StudySpec, plan: StudyPlan, observer: Observer) -> StudyPlan:
    """Read the data, refuse what the study would, and tell its seconds and memory, or why they are not known."""
    seconds, memory_bytes, notes = 0.0, 0, list(plan.notes)
    model_groups = prepare(study, observer)
    with TemporaryDirectory() as store:
        check_study(study, model_groups, Path(store))
    for model_group in model_groups:  # which run one after another
        info, calibrations = model_group.info, model_group.prepared.calibrations
        warn_of_unknown(calibrations, observer)
        warn_of_dtype(info, observer)
        pool = model_group.cluster.size(info, math.inf)
        memory_bytes = max(memory_bytes, pool.total_bytes)
        observer.assessing(f"timing: a few layers of {model_group.label} on a shard of each calibration")
        times = time_layers(info, model_group.specs, calibrations, model_group.cluster.cpus_per_replica)
        if times.seconds is None:
            notes.append(f"{model_group.label}: no estimate of time, {times.source}")
            continue
        by_fingerprint = {
            calibration.fingerprint: of_layer for calibration, of_layer in zip(calibrations, times.seconds, strict=True)
        }
        for cell_plan in plan.cells:
            if cell_plan.cell in model_group.cells.values():
                used = model_group.prepared_for(cell_plan.cell).calibrations
                of_layer = sum(by_fingerprint[calibration.fingerprint] for calibration in used)
                seconds += (cell_plan.shared + cell_plan.heads * head_cost(info)) * of_layer / pool.n_replicas
    is_timed = len(notes) == len(plan.notes)
    return replace(plan, eta_seconds=seconds if is_timed else None, memory_bytes=memory_bytes, notes=notes)
