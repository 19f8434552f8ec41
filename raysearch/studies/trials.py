"""A study's searches as trials of Ray Tune: one Tune trial is one search, and its reports are the search's rounds.

Tune runs several searches at a time, retries those that fail, and stops those that have spent their budget. The results
of the searches are in the ledger, so a Tune trial that begins again soon reaches the point where it was. All Tune
trials use the same replicas.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial
from typing_extensions import override

from raysearch.cluster.connection import this_node
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.cluster.scheduler import SYNC_S
from raysearch.errors import EvaluationError, UserError
from raysearch.searching.events import CellEnded, CellProgressed, CellStarted, ReplicasPolled, WarningRaised
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import RoundSummary, SearchResult
from raysearch.searching.run import StudyContext, search_rounds
from raysearch.searching.spec import SearchSpec
from raysearch.studies.spec import StopCriteria
from raysearch.text.sentences import last_line

#: Makes the tracker of a search; its argument receives the tracker's warnings. It must be picklable.
OpenTracker = Callable[[Callable[[str], None]], Tracker]

_CELL = "cell"  # the key of a search's place in the configuration of its Tune trial
_NAME = "cell-"  # the prefix of the names of Tune trials
_FAILURE = "failure"

# Tune reads these at its start. A value that the user has set is kept.
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # no tables of Tune
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # they write six files for each Tune trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the study, not a Tune trial
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True)
class TrialTask:
    """A search to be run as a Tune trial.

    Args:
        search: The search.
        context: The parts of the study that it uses; `SearchTrial` adds the replicas.
        replicas: The replicas that all searches of the model share.
        open_tracker: It makes the tracker of the search.
    """

    search: SearchSpec
    context: StudyContext
    replicas: Replicas
    open_tracker: OpenTracker


class SearchTrial(tune.Trainable):
    """Runs one search; each step is a round.

    The next search uses the same process, so that torch is imported only once.
    """

    @override
    def setup(self, config: dict[str, Any], tasks: Mapping[int, TrialTask], stop: StopCriteria) -> None:  # type: ignore[override]
        self._tasks = tasks
        self._criteria = stop
        self._progress: dict[str, Any] = {}
        self._rounds = self._begin(config)

    @override
    def step(self) -> dict[str, Any]:
        try:
            summary = next(self._rounds)
        except StopIteration as stop:
            return self._report(best_loss=stop.value.loss, done=True)
        except UserError as error:  # it is recorded, and another try would fail again
            return self._report(**{_FAILURE: str(error)}, done=True)
        self._progress = {
            "round": summary.round,
            "evaluations": summary.n_requested,
            "seconds": summary.seconds,
            "best_loss": summary.best_loss,
        }
        if any(self._progress[name] >= limit for name, limit in self._criteria.limits.items()):
            self._rounds.close()  # this records it as stopped, before Tune stops it for the same reason
        return self._report(done=False)

    @override
    def cleanup(self) -> None:
        self._rounds.close()

    @override
    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._rounds = self._begin(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing: all results are in the ledger."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load nothing: the search is replayed from the ledger."""

    def _begin(self, config: Mapping[str, Any]) -> Generator[RoundSummary, None, SearchResult]:
        """Prepare and run a search. Nothing runs before the first step, since Tune handles earlier errors wrongly."""
        task = self._tasks[config[_CELL]]
        self._observer = _Warnings()
        self._progress = {"round": 0, "evaluations": 0, "seconds": 0.0}
        context = replace(task.context, make_pool=partial(RayPool, task.replicas))
        tracker = task.open_tracker(self._observer.warn)
        return (yield from search_rounds(task.search, self._observer, tracker, context=context))

    def _report(self, **values: Any) -> dict[str, Any]:
        """Return the progress of the search, its warnings so far, and these values."""
        return {**self._progress, "warnings": list(self._observer.warnings), **values}


def run_trials(
    tasks: Mapping[int, TrialTask],
    stop: StopCriteria,
    concurrency: int,
    retries: int,
    folder: Path,
    observer: Observer,
) -> dict[int, str]:
    """Run searches as Tune trials. A search that fails does not stop the others.

    Args:
        tasks: The searches, by their places in the study.
        stop: The budget of each search.
        concurrency: How many searches run at a time.
        retries: How often a search that failed is tried again.
        folder: The folder of Tune's experiment.
        observer: It is notified of the progress of each search, and of its warnings.

    Returns:
        Why searches failed after all their retries, by their places in the study.

    Raises:
        EvaluationError: Ray has ended the searches, for instance because the machine runs low on memory.
    """
    replicas = next(iter(tasks.values())).replicas
    with _tune_environment():
        # Tune trials run on the machine with the ledger. They need no CPU: most of the time they wait for replicas.
        trainable = tune.with_parameters(SearchTrial, tasks=tasks, stop=stop)
        trainable = tune.with_resources(trainable, {"cpu": 0, this_node(): 0.001})
        tuner = tune.Tuner(
            trainable,
            param_space={_CELL: tune.grid_search(list(tasks))},
            tune_config=tune.TuneConfig(
                max_concurrent_trials=concurrency,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name=folder.name,
                storage_path=str(folder.parent.resolve()),
                stop=stop.limits or None,
                failure_config=tune.FailureConfig(max_failures=retries),
                callbacks=[_Callback(observer, replicas)],
                verbose=0,
            ),
        )
        try:
            grid = tuner.fit()
        except RuntimeError as error:  # Tune raises it if Ray ends the process of a trial that waits for work
            if not isinstance(error.__cause__, RayError):
                raise
            raise EvaluationError(f"Ray ended the searches: {last_line(error.__cause__)}") from error
    failed = {}
    for result in (grid[index] for index in range(len(grid))):
        cause = _cause(result.error) if result.error else (result.metrics or {}).get(_FAILURE)
        if cause is not None:
            name = Path(result.path).name  # result.config is missing if the process never began
            failed[int(name.removeprefix(_NAME))] = cause
    return failed


def _trial_name(trial: Trial) -> str:
    return f"{_NAME}{trial.config[_CELL]}"


def _cause(error: BaseException | None) -> str:
    """Return the last line of a trial's error, without the class name of `EvaluationError`."""
    last = "no cause is known" if error is None else last_line(error)
    return last.removeprefix(f"{EvaluationError.__module__}.").removeprefix(f"{EvaluationError.__name__}: ")


class _Callback(tune.Callback):
    """Passes Tune's events on to an observer, and regularly whether searches wait for replicas."""

    def __init__(self, observer: Observer, replicas: Replicas) -> None:
        self._observer = observer
        self._replicas = replicas
        self._polled_at_s = 0.0
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an empty callback, since Tune saves its callbacks and an observer cannot be saved."""
        return tune.Callback, ()

    @override
    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if time.monotonic() - self._polled_at_s >= SYNC_S:
            self._polled_at_s = time.monotonic()
            self._observer.on_event(ReplicasPolled(self._replicas.fleet.is_awaited()))

    @override
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.on_event(CellStarted(trial.config[_CELL]))

    @override
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        for message in result.get("warnings", ()):
            if message not in self._warned:
                self._warned.add(message)
                self._observer.warn(message)
        self._observer.on_event(
            CellProgressed(
                cell=trial.config[_CELL],
                n_rounds=result["round"],
                n_requested=result["evaluations"],
                best_loss=result.get("best_loss"),
            )
        )

    @override
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.on_event(CellEnded(trial.config[_CELL], trial.last_result.get(_FAILURE)))

    @override
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.on_event(CellEnded(trial.config[_CELL], _cause(trial.get_error())))


@dataclass
class _Warnings(Observer):
    """Collects a search's warnings, which are then passed on to the process of the study."""

    warnings: list[str] = field(default_factory=list)

    @override
    def on_warning_raised(self, event: WarningRaised) -> None:
        self.warnings.append(event.message)


@contextlib.contextmanager
def _tune_environment() -> Iterator[None]:
    """Set Tune's environment variables and silence its logs while it runs; failures are reported by the observer."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in added:
            os.environ.pop(name, None)
