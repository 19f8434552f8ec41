"""A study, from its specification to its record: one model after another, each with its replicas resident."""

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
from raysearch.ledger.locks import held, is_held
from raysearch.searching.observer import (
    Observer,
    Observers,
    Prefixed,
    StudyHeader,
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

if TYPE_CHECKING:  # these bring Ray and torch, which a study that the ledger answers does without
    from raysearch.assessment.context import AssessmentPlan
    from raysearch.cluster.pool import RayPool, Replicas
    from raysearch.studies.trials import OpenTracker

#: Why a part of a study could not be done.
Failure = EvaluationError | UserError

_MOST_AT_ONCE = 4
_MOST_S_TO_END = 2  # that searches get to say how they ended, once the study is stopped


def run_study(
    spec: StudySpec, observer: Observer, tracker: Tracker, open_tracker: OpenTracker
) -> tuple[StudyRecord, Sequence[Failure]]:
    """Run all searches of a study that are not done yet, or go on with it where it was stopped.

    `tracker` records the study for people; `open_tracker` makes that of a search, in the process that runs it.

    Returns:
        Its record, and what could not be held out, assessed or recovered.

    Raises:
        UserError: A search does not fit its model, its data or the machine; then none is run.
        EvaluationError: Ray has died.
        KeyboardInterrupt: The user stopped it; the same command goes on.
    """
    model_groups = prepare(spec, observer)
    for group in model_groups:
        group.cluster.check_cluster()
    checked = check_study(spec, model_groups, spec.ledger.parent)
    search_ids, plans = checked.search_ids, checked.assessments
    ledger = Ledger(spec.ledger)
    with closing(ledger), held(ledger, spec.study_id, "STUDY"):
        observer = Observers(tracker, observer)
        observer.study_started(_header(spec, search_ids, ledger))
        of_draws = [note for group in model_groups for draws in draws_of(group) for note in notes_on(draws)]
        for note in (*spec.notes, *of_draws, *(note for plan in plans for note in plan.notes)):
            observer.warn(note)
        texts = [*(one.prepared.calibrations for one in model_groups), *(one.calibrations for one in plans)]
        warn_of_unknown([one for each in texts for one in each], observer)
        for group in model_groups:
            warn_of_dtype(group.info, observer)
        work = _StudyWork(spec, model_groups, search_ids, plans, tracker.run_id, ledger, observer, open_tracker)
        work.record({})
        with work.interruptible():
            failures = work.do()
        return STUDIES.find(ledger, spec.study_id), failures


def _header(spec: StudySpec, search_ids: Sequence[str], ledger: Ledger) -> StudyHeader:
    """The study with the searches that were done before, perhaps outside it."""
    records = SEARCHES.some(ledger, search_ids)
    done = [number for number, name in enumerate(search_ids) if is_done(records.get(name), spec.options.stop)]
    run_ids = {number: records[search_ids[number]].mlflow_run_id for number in done}
    recorded = {run_id: spec.cells[number].labels for number, run_id in run_ids.items() if run_id is not None}
    return StudyHeader(spec.study_id, spec.config, [str(cell) for cell in spec.cells], done, recorded)


def is_done(record: SearchRecord | None, stop: StopCriteria) -> bool:
    """Return whether a search has come to its end, or to where these criteria end it."""
    if record is None or record.result is None or record.state not in ("finished", "stopped"):
        return False
    spent = {"evaluations": record.result.evaluations.requested, "seconds": record.result.seconds}
    return record.state == "finished" or any(spent[name] >= limit for name, limit in stop.limits.items())


@dataclass(frozen=True)
class _StudyWork:
    """A study at work; `parent` is the tracker's id of it, and `plans` has one for each model, or none at all."""

    spec: StudySpec
    model_groups: Sequence[ModelGroup]
    search_ids: Sequence[str]
    plans: Sequence[AssessmentPlan]
    parent: str | None
    ledger: Ledger
    observer: Observer
    open_tracker: OpenTracker

    def record(self, assessed: Mapping[str, AssessedMasks]) -> None:
        """Writes down where the study stands, and what was assessed, by the label of a model."""
        record_study(self.spec, self.ledger, self.search_ids, self.model_groups, self.parent, assessed)

    def do(self) -> list[Failure]:
        """Run one model's searches on its replicas, then assess and recover what they found; then the next model's.

        What could not be held out, assessed or recovered is told as it happens, and returned.
        """
        failures: list[Failure] = []
        for model_group, plan in zip_longest(self.model_groups, self.plans):
            with _replicas(model_group, self.observer.warn) as (replicas, check):
                self._search_what_is_left(model_group, replicas)
                for work, name in (self._hold_out, "held-out evaluation"), (partial(self._assess, plan), "assessment"):
                    try:
                        work(model_group, replicas)
                    except (EvaluationError, UserError) as error:
                        check()
                        self.observer.warn(f"the {name} of {model_group.label} failed: {error}")
                        failures.append(error)
            failures += self._recover(model_group)
        return failures

    def _records(self, numbers: Iterable[int]) -> dict[int, SearchRecord]:
        """Return the records of searches by their places in the study."""
        ids = {number: self.search_ids[number] for number in numbers}
        known = SEARCHES.some(self.ledger, ids.values())
        return {number: known[search_id] for number, search_id in ids.items() if search_id in known}

    def _found(self, model_group: ModelGroup) -> dict[int, SearchRecord]:
        """Return those of a model's searches that have found something."""
        return {number: one for number, one in self._records(model_group.cells).items() if one.result is not None}

    def _search_what_is_left(self, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        records, stop = self._records(model_group.cells), self.spec.options.stop
        left = [number for number in model_group.cells if not is_done(records.get(number), stop)]
        if left:
            folder = as_folder("store", self.spec.store / "tune") / f"{self.spec.study_id}-{min(model_group.cells)}"
            self._search(model_group, left, replicas(), folder)
            self.record({})

    def _hold_out(self, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Evaluates what was found by one draw of a calibration on the samples of its other draws."""
        if every := draws_of(model_group):
            found = self._found(model_group)
            masks = {number: record.found.mask for number, record in found.items()}
            for draws in every:
                evaluate_held_out(draws, masks, model_group.info, self.ledger, lambda: _pool(replicas()))
            self.record({})
            cells = STUDIES.find(self.ledger, self.spec.study_id).cells
            self.observer.assessed([(one, named) for number, one in found.items() if (named := cells[number].named)])

    def _assess(self, plan: AssessmentPlan | None, model_group: ModelGroup, replicas: Callable[[], Replicas]) -> None:
        """Assesses what the searches of a model have found, if that is asked for."""
        if plan is not None:
            from raysearch.studies.assess import assess_found

            records = list(self._found(model_group).values())
            found = assess_found(plan, self.ledger, records, self.observer, lambda: _pool(replicas()))
            self.record({model_group.label: found})

    def _recover(self, model_group: ModelGroup) -> list[Failure]:
        """Trains each mask of a model in each way, the dense model too as a control, and returns what failed."""
        if not self.spec.recoveries:
            return []
        from raysearch.cluster.connection import join_ray, raising
        from raysearch.recovery.recover import recover_in_study  # trl takes seconds to import

        found, failures = self._found(model_group), list[Failure]()
        if not found:
            return failures  # without Ray
        first: dict[Mask, int] = {}
        for number, record in found.items():
            first.setdefault(record.found.mask, number)
        if self.spec.options.unpruned:
            first = {Mask(): next(iter(first.values())), **first}
        replicas = model_group.cluster.replica_range(model_group.info, _MOST_AT_ONCE).max
        most = max(replicas, *(spec.options.workers for spec in self.spec.recoveries.values()))
        total = len(self.spec.recoveries) * len(first)
        leave = join_ray(model_group.cluster.address, most * model_group.cluster.cpus_per_replica)
        with ExitStack() as stack:
            stack.callback(leave)
            stack.enter_context(raising(leave.check, self.observer.warn))
            each = product(self.spec.recoveries.items(), first.items())
            for place, ((way, spec), (mask, number)) in enumerate(each, start=1):
                record, cell = found[number], self.spec.cells[number]
                remove, whose = (None, cell.searcher) if mask else (0, "dense")
                telling = Prefixed(f"recovery {place} of {total}, {whose}, {way}: ", self.observer)
                try:
                    recover_in_study(record, self.ledger, cell.search, spec, way, remove=remove, observer=telling)
                except (EvaluationError, UserError) as error:
                    leave.check()
                    telling.warn(f"it failed: {error}")
                    failures.append(error)
        return failures

    def _search(self, model_group: ModelGroup, numbers: Sequence[int], replicas: Replicas, folder: Path) -> None:
        """Runs searches to their ends, and puts on record why some failed; the folder is Tune's."""
        from raysearch.studies.trials import TrialTask, run_trials

        options = self.spec.options
        tasks = {}
        for number in numbers:
            cell = self.spec.cells[number]
            context = StudyContext(model_group.info, model_group.prepared_for(cell), cell.labels, self.parent)
            tasks[number] = TrialTask(cell.search.elsewhere(), context, replicas, self.open_tracker)
        auto = min(replicas.most, _MOST_AT_ONCE)
        at_once = auto if options.concurrency == "auto" else options.concurrency
        failed = run_trials(tasks, options.stop, at_once, options.retries, folder, self.observer)
        records = self._records(failed)
        for number, cause in failed.items():
            record = records.get(number)
            if record is None or record.state in ("running", "interrupted"):  # it could not do so itself
                config = tasks[number].search.config
                write_search(self.ledger, self.search_ids[number], config, "failed", failure=cause)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Tells that the user, the death of Ray, or a mistake found late stopped the study."""
        try:
            yield
        except (KeyboardInterrupt, EvaluationError, UserError):
            ended = self._ended()
            with suppress(UserError):  # the ledger itself may be what failed, which is said already
                self.record({})
            self.observer.study_stopped(self.parent, ended)
            raise

    def _ended(self) -> list[str]:
        """The searches that nobody runs, after a short wait for those that are about to end."""
        deadline = time.monotonic() + _MOST_S_TO_END
        running = self.search_ids
        while running := [one for one in running if is_held(self.ledger, one)]:
            if time.monotonic() > deadline:  # another command runs them
                break
            time.sleep(0.05)
        return [one for one in self.search_ids if one not in running]


def _pool(replicas: Replicas) -> RayPool:
    from raysearch.cluster.pool import RayPool

    return RayPool(replicas)


@contextmanager
def _replicas(
    model_group: ModelGroup, warn: Callable[[str], None]
) -> Iterator[tuple[Callable[[], Replicas], Callable[[], None]]]:
    """Gives the actors of a model's replicas, started when first asked for, and what raises if Ray has died."""
    with ExitStack() as stack:

        @cache
        def group() -> ReplicaGroup:
            from raysearch.cluster.connection import raising

            # Searches run side by side: as many replicas as fit are of use.
            started = model_group.cluster.start(model_group.info, math.inf, shared=True)
            stack.callback(started.close)
            stack.enter_context(raising(started.check, warn))
            return started

        def check() -> None:
            if group.cache_info().currsize:  # it was asked for
                group().check()

        yield lambda: group().replicas, check
