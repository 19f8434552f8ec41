"""A study, from its specification to its record: one model after another, each with its replicas resident."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

from raysearch.evaluation.cluster import start_replicas
from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.ray_pool import RayPool, ReplicaActors, Replicas
from raysearch.evaluation.runs import read_runs, write_run
from raysearch.evaluation.studies import StudyRecord, find_study
from raysearch.studies.assess_study import assess_found
from raysearch.studies.bench import Bench, name_runs, prepare
from raysearch.studies.observer import SilentObserver
from raysearch.studies.search import Surroundings
from raysearch.studies.spec import Budget, Cell, SearchSpec, StudySpec
from raysearch.studies.study_record import record_study
from raysearch.studies.tuning import Listener, Task, run_trials, tune_environment

_MOST_AT_ONCE = 4


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
    benches = prepare(spec)
    run_ids = name_runs(spec, benches)
    parent = spec.tracking.begin_study(spec.study_id, spec.config, observer.warn)
    ledger = Ledger(spec.ledger)
    with closing(ledger), tune_environment():
        record_study(spec, ledger, run_ids, benches, parent, {})
        done = [number for number, run_id in enumerate(run_ids) if is_done(ledger, run_id, spec.options.stop)]
        _adopt(spec, ledger, {run_ids[number]: spec.cells[number] for number in done}, parent, observer)
        observer.study_started(spec.study_id, spec.cells, done)
        with _interruptible(ledger, run_ids):
            for bench in benches:
                assessed = _run_bench(spec, bench, ledger, run_ids, parent, observer, restore)
                record_study(spec, ledger, run_ids, benches, parent, assessed)
        return find_study(ledger, spec.study_id)


def is_done(ledger: Ledger, run_id: str, budget: Budget) -> bool:
    """Whether a search has come to its end, or to that of this budget."""
    run = read_runs(ledger, [run_id]).get(run_id)
    if run is None or run.result is None or run.state not in ("finished", "stopped"):
        return False
    spent = {"evaluations": run.result["evaluations"]["asked"], "seconds": run.result["seconds"]}
    return run.state == "finished" or any(spent[name] >= limit for name, limit in budget.limits.items())


def _adopt(
    spec: StudySpec, ledger: Ledger, done: Mapping[str, Cell], parent: str | None, observer: StudyObserver
) -> None:
    """Files what was searched before, perhaps by itself, under the study in MLflow too."""
    runs = read_runs(ledger, done)
    labels = {run_id: cell.labels for run_id, cell in done.items()}
    recorded = {str(run.result["mlflow_run_id"]): labels[run_id] for run_id, run in runs.items() if run.result}
    recorded.pop("None", None)
    spec.tracking.adopt(parent, recorded, observer.warn)


def _run_bench(
    spec: StudySpec,
    bench: Bench,
    ledger: Ledger,
    run_ids: Sequence[str],
    parent: str | None,
    observer: StudyObserver,
    restore: bool,
) -> Mapping[str, Any]:
    """Runs one model's searches on its replicas, then assesses what they found; gives that by the model's label."""
    options = spec.options
    left = [number for number in bench.numbers if not is_done(ledger, run_ids[number], options.stop)]
    with _replicas(bench, _MOST_AT_ONCE if options.concurrency == "auto" else options.concurrency) as replicas:
        if left:
            tasks = {
                number: Task(
                    spec.cells[number].search.elsewhere(),
                    Surroundings(
                        bench.info,
                        bench.reading_of(spec.cells[number].search.judge),
                        spec.cells[number].labels,
                        parent,
                    ),
                    replicas(),
                )
                for number in left
            }
            at_once = min(len(replicas().actors), _MOST_AT_ONCE)
            at_once = at_once if options.concurrency == "auto" else options.concurrency
            folder = spec.tracking.folder / "tune" / f"{spec.study_id}-{bench.numbers[0]}"
            failed = run_trials(tasks, options.stop, at_once, options.retries, folder, observer, restore)
            for number, cause in failed.items():
                _record_failure(ledger, run_ids[number], tasks[number].search, cause)
        if spec.assess is None:
            return {}
        runs = read_runs(ledger, [run_ids[number] for number in bench.numbers])
        found = assess_found(
            spec.assess,
            bench.model,
            bench.cluster,
            ledger,
            list(runs.values()),
            spec.tracking,
            lambda: RayPool(replicas()),
            observer.assessing,
            observer.warn,
        )
        return {spec.cells[bench.numbers[0]].model: found}


@contextmanager
def _replicas(bench: Bench, spare_cpus: int) -> Iterator[Callable[[], Replicas]]:
    """Gives the actors of a model's replicas, which are started when they are first asked for."""
    started: list[ReplicaActors] = []

    def replicas() -> Replicas:
        if not started:
            started.append(start_replicas(bench.cluster, bench.model, bench.reading.calibrations, spare_cpus))
        return started[0].replicas

    try:
        yield replicas
    finally:
        for actors in started:
            actors.close()


def _record_failure(ledger: Ledger, run_id: str, search: SearchSpec, cause: str) -> None:
    """Puts on record why a search failed, unless it could do so itself before its process ended."""
    run = read_runs(ledger, [run_id]).get(run_id)
    if run is None or run.failure is None:
        write_run(ledger, run_id, search.config, "failed", failure=cause)


@contextmanager
def _interruptible(ledger: Ledger, run_ids: Sequence[str]) -> Iterator[None]:
    """Puts on record that the user stopped the searches that were running."""
    try:
        yield
    except KeyboardInterrupt:
        for run in read_runs(ledger, run_ids).values():
            if run.state == "running":
                write_run(ledger, run.run_id, run.config, "interrupted")
        raise
