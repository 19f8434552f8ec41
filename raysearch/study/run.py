"""A study, from its specification to its record: one model after another, each with its replicas resident."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from raysearch.assessment.assess import Assessable, check_tasks, read_assessable
from raysearch.cluster.options import ReplicaGroup
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.errors import EvaluationError, UserError
from raysearch.ledger.ledger import Ledger, opened
from raysearch.ledger.searches import SearchRecord, held, read_searches, write_search
from raysearch.ledger.studies import StudyRecord, find_study
from raysearch.search.observer import SilentObserver
from raysearch.search.run import StudyContext
from raysearch.study.assess import assess_found
from raysearch.study.model_group import ModelGroup, name_runs, prepare
from raysearch.study.record import record_study
from raysearch.study.spec import Budget, Cell, StudySpec
from raysearch.study.trials import Listener, TrialTask, run_trials, tune_environment

_MOST_AT_ONCE = 4
_SECONDS_BETWEEN_RECORDS = 20


class StudyObserver(Listener, Protocol):
    """Watches a study while it runs."""

    def study_started(self, study_id: str, cells: Sequence[Cell], done: Sequence[int]) -> None:
        """The study begins; some of its searches are done already."""
        ...

    def assessing(self, line: str) -> None:
        """The searches of a model are done, and what they found is being assessed; how far that is."""
        ...


class SilentStudyObserver(SilentObserver):
    """Watches, and says nothing but warnings."""

    def study_started(self, study_id: str, cells: Sequence[Cell], done: Sequence[int]) -> None:
        """See `StudyObserver`."""

    def cell_started(self, cell: int) -> None:
        """See `StudyObserver`."""

    def cell_reported(self, cell: int, report: Mapping[str, Any]) -> None:
        """See `StudyObserver`."""

    def cell_ended(self, cell: int, failure: str | None) -> None:
        """See `StudyObserver`."""

    def assessing(self, line: str) -> None:
        """See `StudyObserver`."""


def run_study(spec: StudySpec, observer: StudyObserver, restore: bool = False) -> StudyRecord:
    """Runs all searches of a study that are not done yet, or takes it up where it was stopped.

    Args:
        spec: The study.
        observer: Watches.
        restore: Whether Tune's own experiment is restored, instead of starting one of the searches that are left.

    Returns:
        Its record; what the searches found, or why they did not, stands with their runs.

    Raises:
        UserError: A search does not fit its model, its data or the machine; then none is run.
        EvaluationError: What was found cannot be assessed.
        KeyboardInterrupt: The user stopped it; the same command goes on.
    """
    model_groups = prepare(spec)
    search_ids = name_runs(spec, model_groups)
    assessables = _read_assessables(spec, model_groups)
    ledger = Ledger(spec.ledger)
    with closing(ledger), held(ledger, spec.study_id, "STUDY"), tune_environment():
        parent = spec.tracking.begin_study(spec.study_id, spec.config, observer.warn)
        run = _StudyRun(spec, model_groups, search_ids, assessables, parent, ledger, observer, restore)
        run.record({})
        run.adopt()
        with run.interruptible():
            run.work()
        return find_study(ledger, spec.study_id)


def _read_assessables(spec: StudySpec, model_groups: Sequence[ModelGroup]) -> list[Assessable]:
    """What each model is to be assessed by; nothing where that is not asked for."""
    if spec.assess is None:
        return []
    read = [read_assessable(spec.assess, one.model, one.cluster, spec.ledger, one.prepared) for one in model_groups]
    with opened(spec.ledger) if spec.ledger.exists() else nullcontext() as ledger:
        for what in read:
            check_tasks(what, ledger)
    return read


def is_done(run: SearchRecord | None, budget: Budget) -> bool:
    """Whether a search has come to its end, or to that of this budget."""
    if run is None or run.result is None or run.state not in ("finished", "stopped"):
        return False
    spent = {"evaluations": run.result["evaluations"]["asked"], "seconds": run.result["seconds"]}
    return run.state == "finished" or any(spent[name] >= limit for name, limit in budget.limits.items())


@dataclass(frozen=True)
class _StudyRun:
    """A study at work.

    Args:
        spec: The study.
        model_groups: Its models.
        search_ids: Its searches, in order.
        assessables: What each model is to be assessed by, in their order; none where nothing is.
        parent: MLflow's id of it.
        ledger: Open.
        observer: Watches.
        restore: Whether Tune's own experiment is restored.
    """

    spec: StudySpec
    model_groups: Sequence[ModelGroup]
    search_ids: Sequence[str]
    assessables: Sequence[Assessable]
    parent: str | None
    ledger: Ledger
    observer: StudyObserver
    restore: bool

    def record(self, assessed: Mapping[str, Any]) -> None:
        """Writes down where the study stands, and what was assessed, by the label of a model."""
        record_study(self.spec, self.ledger, self.search_ids, self.model_groups, self.parent, assessed)

    def adopt(self) -> None:
        """Tells what was searched before, perhaps by itself, and files it under the study in MLflow too."""
        runs = read_searches(self.ledger, self.search_ids)
        done = [
            number
            for number, search_id in enumerate(self.search_ids)
            if is_done(runs.get(search_id), self.spec.options.stop)
        ]
        results = {number: runs[self.search_ids[number]].result or {} for number in done}
        recorded = {
            result["mlflow_run_id"]: self.spec.cells[number].labels
            for number, result in results.items()
            if result["mlflow_run_id"] is not None
        }
        self.spec.tracking.adopt(self.parent, recorded, self.observer.warn)
        self.observer.study_started(self.spec.study_id, self.spec.cells, done)

    def work(self) -> None:
        """Runs one model's searches on its replicas, then assesses what they found; then the next model's.

        Raises:
            EvaluationError: What was found cannot be assessed. The other models have been.
            UserError: The same, since a task or its data cannot be loaded.
        """
        failures: list[EvaluationError | UserError] = []
        for model_group, what in zip_longest(self.model_groups, self.assessables):
            with _replicas(model_group) as replicas:
                self._search_what_is_left(model_group, replicas)
                try:
                    self._assess(model_group, what, replicas)
                except (EvaluationError, UserError) as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def _search_what_is_left(self, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Runs the searches of a model that are not done."""
        runs, stop = read_searches(self.ledger, self.search_ids), self.spec.options.stop
        left = [number for number in model_group.numbers if not is_done(runs.get(self.search_ids[number]), stop)]
        if left:
            self._search(model_group, left, replicas())
            self.record({})

    def _assess(self, model_group: ModelGroup, what: Assessable | None, replicas: Callable[[], Replicas]) -> None:
        """Assesses what the searches of a model have found, if that is asked for."""
        if what is not None:
            found = assess_found(
                what,
                self.ledger,
                list(read_searches(self.ledger, [self.search_ids[number] for number in model_group.numbers]).values()),
                self.spec.tracking,
                self.observer.assessing,
                self.observer.warn,
                lambda: RayPool(replicas()),
            )
            self.record({model_group.label(self.spec): found})

    def _search(self, model_group: ModelGroup, numbers: Sequence[int], replicas: Replicas) -> None:
        """Runs searches to their ends, and puts on record why some failed."""
        options = self.spec.options
        tasks = {}
        for number in numbers:
            cell = self.spec.cells[number]
            prepared = model_group.prepared_for(cell.search.evaluation)
            context = StudyContext(model_group.info, prepared, cell.labels, self.parent)
            tasks[number] = TrialTask(cell.search.elsewhere(), context, replicas)
        auto = min(replicas.most, _MOST_AT_ONCE)
        at_once = auto if options.concurrency == "auto" else options.concurrency
        folder = self.spec.tracking.folder / "tune" / f"{self.spec.study_id}-{model_group.numbers[0]}"
        failed = run_trials(tasks, options.stop, at_once, options.retries, folder, _Recording(self), self.restore)
        runs = read_searches(self.ledger, [self.search_ids[number] for number in failed])
        for number, cause in failed.items():
            run = runs.get(self.search_ids[number])
            if run is None or run.failure is None:  # it could not do so itself before its process ended
                config = tasks[number].search.config
                write_search(self.ledger, self.search_ids[number], config, "failed", failure=cause)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Puts on record that the user stopped the searches that were running."""
        try:
            yield
        except KeyboardInterrupt:
            self.record({})
            for run in read_searches(self.ledger, self.search_ids).values():
                if run.state == "running":
                    write_search(self.ledger, run.search_id, run.config, "interrupted")
            raise


class _Recording:
    """Passes on how trials fare, and keeps the study's record up to date, for whoever reports on it meanwhile."""

    def __init__(self, run: _StudyRun) -> None:
        self._run, self._recorded = run, time.monotonic()
        self.cell_started, self.cell_reported = run.observer.cell_started, run.observer.cell_reported
        self.warn = run.observer.warn

    def cell_ended(self, cell: int, failure: str | None) -> None:
        """See `Listener`."""
        self._run.observer.cell_ended(cell, failure)
        if time.monotonic() - self._recorded > _SECONDS_BETWEEN_RECORDS:
            self._run.record({})
            self._recorded = time.monotonic()


@contextmanager
def _replicas(model_group: ModelGroup) -> Iterator[Callable[[], Replicas]]:
    """Gives the actors of a model's replicas, which are started when they are first asked for."""
    started: list[ReplicaGroup] = []

    def replicas() -> Replicas:
        if not started:
            n_units = sum(one.n_shards for one in model_group.prepared.calibrations)
            started.append(model_group.cluster.start(model_group.model, n_units, shared=True))
        return started[0].replicas

    try:
        yield replicas
    finally:
        for group in started:
            group.close()
