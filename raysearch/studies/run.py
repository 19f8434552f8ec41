"""Runs a study, one model after another; the replicas of a model stay loaded for all its searches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.cluster.options import ReplicaGroup
from raysearch.core.mask import Mask
from raysearch.core.paths import as_folder
from raysearch.errors import EvaluationError, UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_locked, locked
from raysearch.searching.events import MasksAssessed, StudyHeader, StudyStarted, StudyStopped
from raysearch.searching.observer import (
    Observer,
    Observers,
    Prefixed,
    Tracker,
    warn_of_dtype,
    warn_of_unknown,
)
from raysearch.searching.record import SEARCHES, SearchRecord, write_search
from raysearch.searching.run import StudyContext
from raysearch.studies.checks import check_study
from raysearch.studies.draws import draws_of, evaluate_held_out, notes_on
from raysearch.studies.model_group import ModelGroup, prepare
from raysearch.studies.record import STUDIES, AssessedMasks, StudyRecord
from raysearch.studies.recorder import record_study
from raysearch.studies.spec import StopCriteria, StudySpec

if TYPE_CHECKING:  # these import Ray and torch, which are not needed if the ledger has all results
    from raysearch.assessment.context import AssessmentPlan
    from raysearch.cluster.pool import RayPool, Replicas
    from raysearch.studies.trials import OpenTracker

#: Why a part of a study failed.
Failure = EvaluationError | UserError

_MAX_CONCURRENCY = 4
_ENDING_TIMEOUT_S = 2  # for searches to record their end after the study was stopped


def run_study(
    spec: StudySpec, observer: Observer, tracker: Tracker, open_tracker: OpenTracker
) -> tuple[StudyRecord, Sequence[Failure]]:
    """Run all searches of a study that are not done yet. A study that was stopped is resumed.

    Args:
        spec: The study.
        observer: It is notified of progress and warnings.
        tracker: It records the study in MLflow, or elsewhere.
        open_tracker: It makes the tracker of a search, in the process that runs the search.

    Returns:
        The study's record, and the failures of held-out evaluations, assessments and recoveries.

    Raises:
        UserError: A search does not fit its model, its data or the machine; then no search is run.
        EvaluationError: Ray has died.
        KeyboardInterrupt: The user stopped the study; the same command resumes it.
    """
    model_groups = prepare(spec, observer)
    for group in model_groups:
        group.cluster.check_cluster()
    checked = check_study(spec, model_groups, spec.ledger.parent)
    search_ids = checked.search_ids
    plans = checked.assessments
    ledger = Ledger(spec.ledger)
    with closing(ledger), locked(ledger, spec.study_id, "STUDY"):
        observer = Observers(tracker, observer)
        observer.on_event(StudyStarted(_header(spec, search_ids, ledger)))
        draws_notes = [note for group in model_groups for draws in draws_of(group) for note in notes_on(draws)]
        plan_notes = [note for plan in plans for note in plan.notes]
        for note in (*spec.notes, *draws_notes, *plan_notes):
            observer.warn(note)
        calibrations = [calibration for group in model_groups for calibration in group.prepared.calibrations]
        calibrations += [calibration for plan in plans for calibration in plan.calibrations]
        warn_of_unknown(calibrations, observer)
        for group in model_groups:
            warn_of_dtype(group.info, observer)
        work = _StudyWork(spec, model_groups, search_ids, plans, tracker.run_id, ledger, observer, open_tracker)
        work.record({})
        with work.interruptible():
            failures = work.do()
        return STUDIES.find(ledger, spec.study_id), failures


def _header(spec: StudySpec, search_ids: Sequence[str], ledger: Ledger) -> StudyHeader:
    """Return the header of a study, with the searches that were done before, in this study or outside it."""
    records = SEARCHES.by_ids(ledger, search_ids)
    done = [number for number, name in enumerate(search_ids) if is_done(records.get(name), spec.options.stop)]
    run_ids = {number: records[search_ids[number]].mlflow_run_id for number in done}
    recorded = {run_id: spec.cells[number].labels for number, run_id in run_ids.items() if run_id is not None}
    return StudyHeader(spec.study_id, spec.config, [str(cell) for cell in spec.cells], done, recorded)


def is_done(record: SearchRecord | None, stop: StopCriteria) -> bool:
    """Return whether a search has finished, or has spent the budget of a study.

    Args:
        record: The record of the search; None if it has none.
        stop: The budget.
    """
    if record is None or record.result is None or record.state not in ("finished", "stopped"):
        return False
    spent = {"evaluations": record.result.evaluations.requested, "seconds": record.result.seconds}
    return record.state == "finished" or any(spent[name] >= limit for name, limit in stop.limits.items())


@dataclass(frozen=True)
class _StudyWork:
    """The run of a study.

    Args:
        spec: The study.
        model_groups: Its models, with their data.
        search_ids: The ids of its searches, in its order.
        plans: The assessment of each model; empty if the study has no assessment.
        parent: The tracker's id of the study; None if it has none.
        ledger: The ledger that records the study.
        observer: It is notified of progress and warnings.
        open_tracker: It makes the tracker of a search.
    """

    spec: StudySpec
    model_groups: Sequence[ModelGroup]
    search_ids: Sequence[str]
    plans: Sequence[AssessmentPlan]
    parent: str | None
    ledger: Ledger
    observer: Observer
    open_tracker: OpenTracker

    def record(self, assessed: Mapping[str, AssessedMasks]) -> None:
        """Record the current state of the study, and new assessed numbers by the label of a model."""
        record_study(self.spec, self.ledger, self.search_ids, self.model_groups, self.parent, assessed)

    def do(self) -> list[Failure]:
        """Run the searches of each model on its replicas, then assess and recover the masks that they found.

        Failures of held-out evaluations, assessments and recoveries are reported when they happen, and returned.
        """
        failures: list[Failure] = []
        for model_group, plan in zip_longest(self.model_groups, self.plans):
            stages: dict[str, Callable[[ModelGroup, Callable[[], Replicas]], None]] = {
                "held-out evaluation": self._hold_out,
                "assessment": partial(self._assess, plan),
            }
            with _replicas(model_group, self.observer.warn) as (replicas, check):
                self._search_remaining(model_group, replicas)
                for name, run_stage in stages.items():
                    try:
                        run_stage(model_group, replicas)
                    except (EvaluationError, UserError) as error:
                        check()
                        self.observer.warn(f"the {name} of {model_group.label} failed: {error}")
                        failures.append(error)
            failures += self._recover(model_group)
        return failures

    def _records(self, numbers: Iterable[int]) -> dict[int, SearchRecord]:
        """Return the records of searches by their places in the study."""
        ids = {number: self.search_ids[number] for number in numbers}
        records = SEARCHES.by_ids(self.ledger, ids.values())
        return {number: records[search_id] for number, search_id in ids.items() if search_id in records}

    def _records_with_results(self, model_group: ModelGroup) -> dict[int, SearchRecord]:
        """Return the records of a model's searches that have found a mask, by their places in the study."""
        records = self._records(model_group.cells)
        return {number: record for number, record in records.items() if record.result is not None}

    def _search_remaining(self, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Run the searches of a model that are not done."""
        records = self._records(model_group.cells)
        stop = self.spec.options.stop
        remaining = [number for number in model_group.cells if not is_done(records.get(number), stop)]
        if remaining:
            folder = as_folder("store", self.spec.store / "tune") / f"{self.spec.study_id}-{min(model_group.cells)}"
            self._search(model_group, remaining, replicas(), folder)
            self.record({})

    def _hold_out(self, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Evaluate each mask on the samples of the draws on which it was not found."""
        all_draws = draws_of(model_group)
        if not all_draws:
            return
        records = self._records_with_results(model_group)
        masks = {number: record.finished_result.mask for number, record in records.items()}
        for draws in all_draws:
            evaluate_held_out(draws, masks, model_group.info, self.ledger, lambda: _pool(replicas()))
        self.record({})
        cells = STUDIES.find(self.ledger, self.spec.study_id).cells
        held_out = [(record, metrics) for number, record in records.items() if (metrics := cells[number].named)]
        self.observer.on_event(MasksAssessed(held_out))

    def _assess(self, plan: AssessmentPlan | None, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Assess the masks that the searches of a model have found, if the study has an assessment."""
        if plan is not None:
            from raysearch.studies.assess import assess_searches

            records = list(self._records_with_results(model_group).values())
            assessed = assess_searches(plan, self.ledger, records, self.observer, lambda: _pool(replicas()))
            self.record({model_group.label: assessed})

    def _recover(self, model_group: ModelGroup) -> list[Failure]:
        """Train each mask of a model by each recovery method, and the dense model as a control; return the failures."""
        if not self.spec.recoveries:
            return []
        from raysearch.cluster.connection import join_ray, raising
        from raysearch.recovery.recover import recover_in_study  # trl takes seconds to import

        failures: list[Failure] = []
        records = self._records_with_results(model_group)
        if not records:
            return failures  # Ray is not needed
        first_searches: dict[Mask, int] = {}  # the first search that found each mask
        for number, record in records.items():
            first_searches.setdefault(record.finished_result.mask, number)
        if self.spec.options.unpruned:
            first_searches = {Mask(): next(iter(first_searches.values())), **first_searches}
        n_replicas = model_group.cluster.replica_range(model_group.info, _MAX_CONCURRENCY).max
        n_workers = max(n_replicas, *(spec.options.workers for spec in self.spec.recoveries.values()))
        total = len(self.spec.recoveries) * len(first_searches)
        leave = join_ray(model_group.cluster.address, n_workers * model_group.cluster.cpus_per_replica)
        with ExitStack() as stack:
            stack.callback(leave)
            stack.enter_context(raising(leave.check, self.observer.warn))
            recoveries = product(self.spec.recoveries.items(), first_searches.items())
            for place, ((way, spec), (mask, number)) in enumerate(recoveries, start=1):
                cell = self.spec.cells[number]
                name = cell.searcher if mask else "dense"
                observer = Prefixed(f"recovery {place} of {total}, {name}, {way}: ", self.observer)
                remove = None if mask else 0
                try:
                    recover_in_study(
                        records[number], self.ledger, cell.search, spec, way, remove=remove, observer=observer
                    )
                except (EvaluationError, UserError) as error:
                    leave.check()
                    observer.warn(f"it failed: {error}")
                    failures.append(error)
        return failures

    def _search(self, model_group: ModelGroup, numbers: Sequence[int], replicas: Replicas, folder: Path) -> None:
        """Run searches to their ends, and record why some failed; Tune writes to the folder."""
        from raysearch.studies.trials import TrialTask, run_trials

        options = self.spec.options
        tasks = {}
        for number in numbers:
            cell = self.spec.cells[number]
            context = StudyContext(model_group.info, model_group.prepared_for(cell), cell.labels, self.parent)
            tasks[number] = TrialTask(cell.search.with_absolute_paths(), context, replicas, self.open_tracker)
        auto = min(replicas.most, _MAX_CONCURRENCY)
        concurrency = auto if options.concurrency == "auto" else options.concurrency
        failed = run_trials(tasks, options.stop, concurrency, options.retries, folder, self.observer)
        records = self._records(failed)
        for number, cause in failed.items():
            record = records.get(number)
            if record is None or record.state in ("running", "interrupted"):  # it could not record its failure itself
                config = tasks[number].search.config
                write_search(self.ledger, self.search_ids[number], config, "failed", failure=cause)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Record and report that the study was stopped by the user, the death of Ray, or an error during the run."""
        try:
            yield
        except (KeyboardInterrupt, EvaluationError, UserError):
            ended = self._ended()
            with suppress(UserError):  # if the ledger failed, the error that stopped the study reports it
                self.record({})
            self.observer.on_event(StudyStopped(self.parent, ended))
            raise

    def _ended(self) -> list[str]:
        """Return the searches that no process runs, after a short wait for searches that are about to end."""
        deadline = time.monotonic() + _ENDING_TIMEOUT_S
        running = self.search_ids
        while running := [search_id for search_id in running if is_locked(self.ledger, search_id)]:
            if time.monotonic() > deadline:  # another command runs them
                break
            time.sleep(0.05)
        return [search_id for search_id in self.search_ids if search_id not in running]


def _pool(replicas: Replicas) -> RayPool:
    from raysearch.cluster.pool import RayPool

    return RayPool(replicas)


@contextmanager
def _replicas(
    model_group: ModelGroup, warn: Callable[[str], None]
) -> Iterator[tuple[Callable[[], Replicas], Callable[[], None]]]:
    """Yield a function that returns a model's replicas, and a function that raises an error if Ray has died.

    The replicas are started at the first call of the first function.
    """
    with ExitStack() as stack:

        @cache
        def group() -> ReplicaGroup:
            from raysearch.cluster.connection import raising

            # Several searches use the replicas at the same time, so as many as fit are started.
            started = model_group.cluster.start(model_group.info, math.inf, shared=True)
            stack.callback(started.close)
            stack.enter_context(raising(started.check, warn))
            return started

        def check() -> None:
            if group.cache_info().currsize:  # the replicas were started
                group().check()

        yield lambda: group().replicas, check
