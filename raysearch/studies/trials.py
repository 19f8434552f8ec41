"""A study's searches as trials of Ray Tune: one trial is one search, and its reports are the search's rounds.

Tune runs several at a time, retries what fails, and stops what has spent its budget. What searches find is not its
business: that is in the ledger, so a trial that begins anew is soon where it was. All trials hand their units to the
same replicas.
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
from raysearch.errors import EvaluationError, UserError, last_line
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import RoundSummary, SearchResult
from raysearch.searching.run import StudyContext, search_rounds
from raysearch.searching.spec import SearchSpec
from raysearch.studies.spec import StopCriteria

#: Makes a search's tracker from what gets the tracker's warnings; picklable.
OpenTracker = Callable[[Callable[[str], None]], Tracker]

_CELL, _NAME, _FAILURE = "cell", "cell-", "failure"

# Read by Tune at its start; a value the user has set wins.
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # no tables of its own
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # six files a trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the study, not a trial
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True)
class TrialTask:
    """A search as a trial needs it; `SearchTrial` puts the replicas into its context."""

    search: SearchSpec
    context: StudyContext
    replicas: Replicas
    open_tracker: OpenTracker


class SearchTrial(tune.Trainable):
    """Runs one search, a round a step.

    Its process is used again for the next one, so that importing torch is paid for once.
    """

    @override
    def setup(self, config: dict[str, Any], tasks: Mapping[int, TrialTask], stop: StopCriteria) -> None:  # type: ignore[override]
        self._tasks, self._criteria = tasks, stop
        self._standing: dict[str, Any] = {}
        self._rounds = self._begin(config)

    @override
    def step(self) -> dict[str, Any]:
        try:
            summary = next(self._rounds)
        except StopIteration as stop:
            return self._report(best_loss=stop.value.loss, done=True)
        except UserError as error:  # on record by now, and no better for being tried again
            return self._report(**{_FAILURE: str(error)}, done=True)
        self._standing = {
            "round": summary.round,
            "evaluations": summary.n_requested,
            "seconds": summary.seconds,
            "best_loss": summary.best_loss,
        }
        if any(self._standing[name] >= limit for name, limit in self._criteria.limits.items()):
            self._rounds.close()  # Tune will stop it for the same reason; by then it is on record as stopped
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
        """Nothing to save: the ledger has it."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing to load: the search is replayed."""

    def _begin(self, config: Mapping[str, Any]) -> Generator[RoundSummary, None, SearchResult]:
        """Does nothing before the first step: what fails earlier Tune does not know for the trial's own."""
        task = self._tasks[config[_CELL]]
        self._observer = _Warnings()
        self._standing = {"round": 0, "evaluations": 0, "seconds": 0.0}
        context = replace(task.context, make_pool=partial(RayPool, task.replicas))
        tracker = task.open_tracker(self._observer.warn)
        return (yield from search_rounds(task.search, self._observer, tracker, context=context))

    def _report(self, **more: Any) -> dict[str, Any]:
        """Where the search stands, and all that it has warned of so far."""
        return {**self._standing, "warnings": list(self._observer.warnings), **more}


def run_trials(
    tasks: Mapping[int, TrialTask],
    stop: StopCriteria,
    concurrency: int,
    retries: int,
    folder: Path,
    observer: Observer,
) -> dict[int, str]:
    """Run searches by the number of their cell, so many at a time, and return why some failed for good, by that number.

    Those that fail are tried again so often, and do not stop the others. Tune keeps its experiment in the folder.

    Raises:
        EvaluationError: Ray has ended them, as where the machine runs low on memory.
    """
    replicas = next(iter(tasks.values())).replicas
    with _tune_environment():
        # Beside the driver, where the ledger is; trials wait for replicas most of the time.
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
        except RuntimeError as error:  # as Tune has it where Ray ends the process of a trial that waits for work
            if not isinstance(error.__cause__, RayError):
                raise
            raise EvaluationError(f"Ray ended the searches: {last_line(error.__cause__)}") from error
    failed = {}
    for result in (grid[index] for index in range(len(grid))):
        cause = _cause(result.error) if result.error else (result.metrics or {}).get(_FAILURE)
        if cause is not None:
            name = Path(result.path).name  # it has no config if its process never began
            failed[int(name.removeprefix(_NAME))] = cause
    return failed


def _trial_name(trial: Trial) -> str:
    return f"{_NAME}{trial.config[_CELL]}"


def _cause(error: BaseException | None) -> str:
    """The last line of what a trial died of, without the name of our own exceptions."""
    last = "no cause is known" if error is None else last_line(error)
    return last.removeprefix(f"{EvaluationError.__module__}.").removeprefix(f"{EvaluationError.__name__}: ")


class _Callback(tune.Callback):
    """Passes Tune's events on to an observer, and every second whether replicas are waited for."""

    def __init__(self, observer: Observer, replicas: Replicas) -> None:
        self._observer, self._replicas = observer, replicas
        self._looked = 0.0
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune saves its callbacks with the experiment; an observer cannot be saved."""
        return tune.Callback, ()

    @override
    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if time.monotonic() - self._looked >= SYNC_S:
            self._looked = time.monotonic()
            self._observer.replicas_awaited(self._replicas.fleet.is_awaited())

    @override
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.cell_started(trial.config[_CELL])

    @override
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        for message in result.get("warnings", ()):
            if message not in self._warned:
                self._warned.add(message)
                self._observer.warn(message)
        standing = result["round"], result["evaluations"], result.get("best_loss")
        self._observer.cell_updated(trial.config[_CELL], *standing)

    @override
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.cell_ended(trial.config[_CELL], trial.last_result.get(_FAILURE))

    @override
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._observer.cell_ended(trial.config[_CELL], _cause(trial.get_error()))


@dataclass
class _Warnings(Observer):
    """Keeps a search's warnings, to be passed on to the study's own process."""

    warnings: list[str] = field(default_factory=list)

    @override
    def warn(self, message: str) -> None:
        self.warnings.append(message)


@contextlib.contextmanager
def _tune_environment() -> Iterator[None]:
    """Tune's settings by environment variables, while it runs, and its logs of failures, which we tell ourselves."""
    mine = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(mine)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in mine:
            os.environ.pop(name, None)
