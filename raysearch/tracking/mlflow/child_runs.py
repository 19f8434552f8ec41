"""Writes the child runs of a search's trials, each with its params, metrics and tags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from raysearch.core.trial import Trial
from raysearch.tracking.mlflow import run_fields
from raysearch.tracking.mlflow.client import Point, in_ms, log, only_one, search_all
from raysearch.tracking.state import SearchState

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow import MlflowClient
    from mlflow.entities import Run

_THREADS = 8  # that send requests to a server; a database has one writer at a time


class ChildRuns:
    """The child runs of a search in one store. A complete child run is never changed.

    Args:
        client: A client of the store.
        experiment: The id of the experiment.
        parent: The id of the search's run.
        at_server: Whether the store is a server, which can handle several requests at a time.
    """

    def __init__(self, client: MlflowClient, experiment: str, parent: str, at_server: bool) -> None:
        self._client = client
        self._experiment = experiment
        self._parent = parent
        self._at_server = at_server
        self._runs = self.find()  # by the index of the trial
        self._written: set[int] = set()  # the indices of the trials that this object has written

    def find(self) -> dict[int, Run]:
        """Return the child runs that exist, by the index of the trial; empty duplicates are deleted."""
        condition = f"tags.`mlflow.parentRunId` = '{self._parent}' and tags.`raysearch.kind` = 'trial'"
        runs_by_index = defaultdict[int, list["Run"]](list)
        for run in search_all(self._client, self._experiment, condition):
            runs_by_index[int(run.data.tags["raysearch.trial_index"])].append(run)
        unique = {index: only_one(self._client, runs) for index, runs in runs_by_index.items()}
        return {index: run for index, run in unique.items() if run is not None}

    def write(self, trials: Iterable[Trial], state: SearchState, on_progress: Callable[[str], None]) -> None:
        """Write the child runs of trials that are missing or not complete.

        Args:
            trials: The trials.
            state: The search, which has the times of its rounds.
            on_progress: It is called with a line after each child run.
        """
        missing = [trial for trial in trials if not self._is_complete(trial)]
        with closing(self._write_all(missing, state)) as written:
            for number, trial in enumerate(written, start=1):
                self._written.add(trial.index)
                on_progress(f"{number:,} of {len(missing):,} child runs")

    def _is_complete(self, trial: Trial) -> bool:
        """Return whether the trial has a complete run; a failed trial that has a loss now was tried again."""
        if trial.index in self._written:
            return True
        run = self._runs.get(trial.index)
        status = None if run is None else run.info.status
        return status == "FINISHED" or (status == "FAILED" and trial.failure is not None)

    def _write_all(self, trials: Iterable[Trial], state: SearchState) -> Generator[Trial, None, None]:
        """Write the runs of trials, and yield each trial once its run is complete. Closing it ends the writing."""
        write = partial(self._write, state=state)
        if not self._at_server:
            yield from map(write, trials)
            return
        threads = ThreadPoolExecutor(_THREADS)
        try:
            yield from threads.map(write, trials)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _write(self, trial: Trial, state: SearchState) -> Trial:
        """Write the run of a trial, its status last, and return the trial."""
        client = self._client
        ended_ms = in_ms(state.round_end(trial))
        run = self._runs.get(trial.index)
        if run is None:
            tags = run_fields.trial_tags(trial, self._parent)
            began_ms = in_ms(state.round_begin(trial))
            run = client.create_run(self._experiment, began_ms, tags, run_fields.trial_name(trial))
        elif run.info.status == "FAILED":
            client.delete_tag(run.info.run_id, "raysearch.failure")
        metrics = {} if run.data.metrics else run_fields.trial_metrics(trial, state.header.measure)
        points = [Point(name, value, 0, ended_ms) for name, value in metrics.items()]
        log(client, run.info.run_id, points, params=run_fields.trial_params(trial, state.header.space))
        client.set_terminated(run.info.run_id, "FINISHED" if trial.failure is None else "FAILED", ended_ms)
        return trial
