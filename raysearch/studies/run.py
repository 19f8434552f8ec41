"""Runs a study, one model after another; the replicas of a model stay loaded for all its searches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.cluster.interrupt import interrupted_by_death
from raysearch.core.mask import Mask
from raysearch.core.paths import as_folder
from raysearch.errors import EvaluationError, UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_locked, locked
from raysearch.searching.events import MasksAssessed, StudyHeader, StudyStarted, StudyStopped
from raysearch.searching.notices import warn_of_dtype, warn_of_unknown_tokens
from raysearch.searching.observer import Observer, Observers, Prefixed, Tracker
from raysearch.searching.run import StudyContext
from raysearch.searching.search_record import SEARCHES, SearchRecord, write_search
from raysearch.studies.checks import check_study
from raysearch.studies.draws import draws_of, evaluate_held_out, notes_on
from raysearch.studies.model_group import ModelGroup, prepare
from raysearch.studies.replicas import ModelReplicas, StudyCluster
from raysearch.studies.spec import StopCriteria, StudySpec
from raysearch.studies.study_record import STUDIES, AssessedMasks, StudyRecord
from raysearch.studies.study_recorder import record_study

if TYPE_CHECKING:  # these import Ray and torch, which are not needed if the ledger has all results
    from raysearch.assessment.context import AssessmentPlan
    from raysearch.cluster.pool import Replicas
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
    n_workers = max((recovery.options.workers for recovery in spec.recoveries.values()), default=0)
    with StudyCluster(model_groups, n_workers) as cluster:
        cluster.join_running()
        checked = check_study(spec, model_groups, spec.ledger.parent)
        with closing(Ledger(spec.ledger)) as ledger, locked(ledger, spec.study_id, "STUDY"):
            observer = Observers(tracker, observer)
            observer.on_event(StudyStarted(_header(spec, checked.search_ids, ledger)))
            _warn(spec, model_groups, checked.assessments, observer)
            work = _StudyWork(
                spec=spec,
                model_groups=model_groups,
                search_ids=checked.search_ids,
                plans=checked.assessments,
                parent=tracker.run_id,
                cluster=cluster,
                ledger=ledger,
                observer=observer,
                open_tracker=open_tracker,
            )
            work.record({})
            with work.interruptible():
                failures = work.do()
            return STUDIES.find(ledger, spec.study_id), failures


def _warn(
    spec: StudySpec, model_groups: Sequence[ModelGroup], plans: Sequence[AssessmentPlan], observer: Observer
) -> None:
    """Report what a user should know before the study runs."""
    notes = list(spec.notes)
    for model_group in model_groups:
        for draws in draws_of(model_group):
            notes += notes_on(draws)
    for plan in plans:
        notes += plan.notes
    for note in dict.fromkeys(notes):
        observer.warn(note)
    calibrations = [calibration for model_group in model_groups for calibration in model_group.prepared.calibrations]
    calibrations += [calibration for plan in plans for calibration in plan.calibrations]
    warn_of_unknown_tokens(calibrations, observer)
    for model_group in model_groups:
        warn_of_dtype(model_group.info, observer)


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

    Returns:
        Whether the study leaves the search as it is.
    """
    if record is None or record.result is None or record.state not in ("finished", "stopped"):
        return False
    spent = {"evaluations": record.result.work.evaluations.requested, "seconds": record.result.work.seconds}
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
        cluster: The Ray cluster of the study.
        ledger: The ledger that records the study.
        observer: It is notified of progress and warnings.
        open_tracker: It makes the tracker of a search.
    """

    spec: StudySpec
    model_groups: Sequence[ModelGroup]
    search_ids: Sequence[str]
    plans: Sequence[AssessmentPlan]
    parent: str | None
    cluster: StudyCluster
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
        with interrupted_by_death(self.cluster.check, self.observer.warn):
            for model_group, plan in zip_longest(self.model_groups, self.plans):
                with ModelReplicas(model_group, self.cluster) as replicas:
                    self._search_remaining(model_group, replicas)
                    with self._collecting(failures, f"the held-out evaluation of {model_group.label} failed"):
                        self._hold_out(model_group, replicas)
                    with self._collecting(failures, f"the assessment of {model_group.label} failed"):
                        self._assess(plan, model_group, replicas)
                self._recover(model_group, failures)
        return failures

    @contextmanager
    def _collecting(self, failures: list[Failure], message: str, observer: Observer | None = None) -> Iterator[None]:
        """Report a failure of the body of the context, and add it to a list; raise an error only if Ray has died.

        Args:
            failures: The list.
            message: The beginning of the report.
            observer: It is notified; None for the observer of the study.
        """
        try:
            yield
        except (EvaluationError, UserError) as error:
            self.cluster.check()
            (observer or self.observer).warn(f"{message}: {error}")
            failures.append(error)

    def _records(self, numbers: Iterable[int]) -> dict[int, SearchRecord]:
        """Return the records of searches by their places in the study."""
        ids = {number: self.search_ids[number] for number in numbers}
        records = SEARCHES.by_ids(self.ledger, ids.values())
        return {number: records[search_id] for number, search_id in ids.items() if search_id in records}

    def _records_with_results(self, model_group: ModelGroup) -> dict[int, SearchRecord]:
        """Return the records of a model's searches that have found a mask, by their places in the study."""
        records = self._records(model_group.cells)
        return {number: record for number, record in records.items() if record.result is not None}

    def _search_remaining(self, model_group: ModelGroup, replicas: ModelReplicas) -> None:
        """Run the searches of a model that are not done."""
        records = self._records(model_group.cells)
        stop = self.spec.options.stop
        remaining = [number for number in model_group.cells if not is_done(records.get(number), stop)]
        if remaining:
            folder = as_folder("store", self.spec.store / "tune") / f"{self.spec.study_id}-{min(model_group.cells)}"
            self._search(model_group, remaining, replicas.get(), folder)
            self.record({})

    def _hold_out(self, model_group: ModelGroup, replicas: ModelReplicas) -> None:
        """Evaluate each mask on the samples of the draws on which it was not found."""
        all_draws = draws_of(model_group)
        if not all_draws:
            return
        records = self._records_with_results(model_group)
        masks = {number: record.finished_result.mask for number, record in records.items()}
        for draws in all_draws:
            evaluate_held_out(draws, masks, model_group.info, self.ledger, replicas.open_pool)
        self.record({})
        cells = STUDIES.find(self.ledger, self.spec.study_id).cells
        held_out = [(record, cells[number].named) for number, record in records.items() if cells[number].named]
        self.observer.on_event(MasksAssessed(held_out))

    def _assess(self, plan: AssessmentPlan | None, model_group: ModelGroup, replicas: ModelReplicas) -> None:
        """Assess the masks that the searches of a model have found, if the study has an assessment."""
        if plan is not None:
            from raysearch.studies.assess import assess_searches

            records = list(self._records_with_results(model_group).values())
            assessed = assess_searches(plan, self.ledger, records, self.observer, replicas.open_pool)
            self.record({model_group.label: assessed})

    def _recover(self, model_group: ModelGroup, failures: list[Failure]) -> None:
        """Train each mask of a model by each recovery method, and the dense model as a control.

        Args:
            model_group: The model.
            failures: Failures are added to this list.
        """
        records = self._records_with_results(model_group)
        if not self.spec.recoveries or not records:
            return  # Ray is not needed
        from raysearch.recovery.recover import recover_in_study  # trl takes seconds to import

        first_searches: dict[Mask, int] = {}  # the first search that found each mask
        for number, record in records.items():
            first_searches.setdefault(record.finished_result.mask, number)
        if self.spec.options.unpruned:
            first_searches = {Mask(): next(iter(first_searches.values())), **first_searches}
        self.cluster.join(model_group).wait()  # replicas and workers of all recoveries use it
        total = len(self.spec.recoveries) * len(first_searches)
        recoveries = product(self.spec.recoveries.items(), first_searches.items())
        for index, ((label, spec), (mask, number)) in enumerate(recoveries, start=1):
            cell = self.spec.cells[number]
            subject = cell.searcher if mask else "dense"
            observer = Prefixed(f"recovery {index} of {total}, {subject}, {label}: ", self.observer)
            remove = None if mask else 0
            with self._collecting(failures, "it failed", observer):
                recover_in_study(
                    records[number], self.ledger, cell.search, spec, label, remove=remove, observer=observer
                )

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
            self.cluster.leave()  # this ends the processes of the searches
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
