"""Writes one search to MLflow: a parent run for the search, a child run for each trial.

All functions send requests to MLflow and wait for the answers; `raysearch.tracking.mlflow.tracker` calls them on a
separate thread. Parts that were written before are found by tags and never written twice, so all events of a search can
be repeated:

    parent   tag raysearch.search_id      params are written once; metrics continue after the last round written
    child    tag raysearch.trial_index    it is complete if its status is FINISHED or FAILED
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml
from mlflow.entities import Run

from raysearch.core.trial import Trial
from raysearch.figures.picture import fix_layout
from raysearch.figures.search import Plots
from raysearch.searching.frames import write_frame
from raysearch.searching.knee import knee
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
from raysearch.tracking.mlflow import records
from raysearch.tracking.mlflow.bulk import Child, complete, make_children
from raysearch.tracking.mlflow.client import connect, log, only_one, search_all
from raysearch.tracking.options import TrackingOptions

if TYPE_CHECKING:
    from raysearch.figures.picture import Figure

_BATCH = 200  # child runs that are written at once
#: Metrics that differ between different results of a search, but do not depend on what the ledger contained.
_RESULT_METRICS = ("loss/pruned", "layer_forwards/alone")
_DPI = 150


class MlflowWriter:
    """Writes the runs of one search to one store.

    Methods take the time `now` of their event, in milliseconds since the epoch.

    Args:
        options: Where and how to record.
        header: The search.
        now: When the search began.
        seconds_before: The seconds of earlier processes of the search, to which new ones are added; None for the value
            in MLflow.
        on_progress: It is called after each part of a long event is written.

    Attributes:
        run_id: The id of the parent run.
        written: How many trials were missing or incomplete before.
        seconds_before: The seconds of earlier processes of the search.
    """

    def __init__(
        self,
        options: TrackingOptions,
        header: SearchHeader,
        now: int,
        seconds_before: float | None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._experiment = connect(options.store, options.experiment)
        self._may_duplicate = options.store.is_server
        self._max_child_runs = options.max_child_runs
        self._header = header
        self._on_progress = on_progress
        self._trials: list[Trial] = []
        self._pending: list[Child] = []
        self._earlier_work = (0.0, 0.0)  # evaluations and layer-forwards of earlier processes, in the written rounds
        self._round_opened = now
        self._run = run = self._find(header.search_id) or self._client.create_run(
            self._experiment, start_time=now, tags=records.search_tags(header), run_name=header.search_id
        )
        self.run_id: str = run.info.run_id
        self.written = 0
        was_stopped = run.data.tags.get("raysearch.complete") == "false"  # a larger budget may continue the search
        self._was_finished = run.info.status == "FINISHED" and not was_stopped
        self._rounds_written = int(run.data.metrics.get("progress/rounds", 0))
        recorded_seconds = run.data.metrics.get("cost/seconds", 0.0)
        self.seconds_before = recorded_seconds if seconds_before is None else seconds_before
        self._children = self._find_children()
        self._log = partial(log, self._client, self.run_id)

    def trial(self, trial: Trial, now: int) -> None:
        """Prepare the child run of a trial for `flush`, unless it is complete.

        Args:
            trial: The trial.
            now: When it was scored, the end of its run; the run begins with its round.
        """
        self._trials.append(trial)
        run = self._children.pop(trial.index, None)
        if trial.index >= self._max_child_runs:
            return
        status = None if run is None else run.info.status
        if status == "FINISHED" or (status == "FAILED" and trial.failure is not None):
            return  # complete; a failed trial that has a loss now was tried again
        self.written += 1
        metrics = records.trial_metrics(trial, self._header.measure).items()
        child = Child(
            records.trial_name(trial),
            self._round_opened,
            now,
            "FINISHED" if trial.failure is None else "FAILED",
            records.trial_tags(trial, self.run_id),
            records.trial_params(trial),
            {name: float(value) for name, value in metrics if math.isfinite(value)},
        )
        if run is not None:
            if status == "FAILED":
                self._client.delete_tag(run.info.run_id, "raysearch.failure")
            complete(self._client, run.info.run_id, child, bool(run.data.metrics))
            return
        self._pending.append(child)
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the child runs that were prepared."""
        if self._pending:
            make_children(self._client, self._experiment, self._pending, self._on_progress)
            self._pending.clear()

    def round_done(self, summary: RoundSummary, now: int) -> None:
        """Write a round's metrics, unless an earlier process wrote them.

        Args:
            summary: The round.
            now: When it ended.
        """
        self._round_opened = now
        if summary.round <= self._rounds_written:
            recorded = self._run.data.metrics
            evaluations = recorded.get("evaluations/computed", 0) - summary.n_computed
            forwards = recorded.get("layer_forwards/computed", 0) - summary.layer_forwards_computed
            self._earlier_work = (evaluations, forwards)
            return
        self._rounds_written = summary.round
        seconds = self.seconds_before + summary.seconds
        metrics = records.round_metrics(summary, *self._earlier_work) | {"cost/seconds": seconds}
        points = [(name, value, summary.round) for name, value in metrics.items()]
        if summary.best_loss is not None:
            points.append(("progress/best_loss", summary.best_loss, summary.n_requested))
            points.append(("progress/best_loss_by_second", summary.best_loss, int(seconds)))
        self._log(points, now)

    def finish(self, result: SearchResult | None, failure: str | None, now: int, stopped: bool = False) -> None:
        """Write the end of a search: its result with its figures, or its failure; and the status of its run.

        A run that was finished before stays as it is.

        Args:
            result: The result; None if the search failed or was interrupted.
            failure: Why the search failed; None if it did not fail.
            now: When the search ended.
            stopped: Whether the budget of the search ended it.
        """
        self.flush()
        if self._was_finished:
            return
        if result is not None:
            self._log_result(result, now)
        elif failure is not None:
            tags = {"raysearch.failure": records.clip(failure, records.MAX_TAG)}
            if stopped:
                tags["raysearch.complete"] = "false"
            self._log(tags=tags)
        if self._may_duplicate:  # looking up the runs deletes duplicates
            self._find(self._header.search_id)
            self._find_children()
        has_ended = stopped or result is not None
        status_without_end = "KILLED" if failure is None else "FAILED"
        self._client.set_terminated(self.run_id, "FINISHED" if has_ended else status_without_end, now)

    def _log_result(self, result: SearchResult, now: int) -> None:
        metrics = records.result_metrics(result)
        points: list[tuple[str, float, int]] = []
        if any(self._run.data.metrics.get(name) != metrics[name] for name in _RESULT_METRICS):
            metrics |= {"cost/seconds": self.seconds_before + result.seconds}
            for name, series in records.result_series(result).items():
                points += [(name, value, step) for step, value in series]
            # The metrics come last, so that those of _RESULT_METRICS are only there if all others are.
            points += [(name, value, self._rounds_written + 1) for name, value in metrics.items()]
        params = {"removed": str(result.mask), "n_remove": str(result.n_remove)} if result.complete else {}
        tags = records.result_tags(result, self._max_child_runs)
        self._log(points, now, self._missing(params), tags)
        self._on_progress()
        self._log_artifacts(result.trials or self._trials, result)

    def _find(self, search_id: str) -> Run | None:
        """Return the run of a search; None if there is none."""
        runs = self._search(f"tags.`raysearch.search_id` = '{search_id}' and tags.`raysearch.kind` = 'search'")
        return only_one(self._client, runs)

    def _find_children(self) -> dict[int, Run]:
        """Return the runs that earlier processes made, by the index of the trial."""
        runs_by_index = defaultdict[int, list[Run]](list)
        for run in self._search(f"tags.`mlflow.parentRunId` = '{self.run_id}' and tags.`raysearch.kind` = 'trial'"):
            runs_by_index[int(run.data.tags["raysearch.trial_index"])].append(run)
        unique = {index: only_one(self._client, runs) for index, runs in runs_by_index.items()}
        return {index: run for index, run in unique.items() if run}

    def _search(self, condition: str) -> Iterator[Run]:
        return search_all(self._client, self._experiment, condition)

    def open_run(self) -> None:
        """Write the missing parts of the parent run, and set it to RUNNING unless it was finished. Call this first.

        Until then, a new run has no params; `only_one` recognises duplicates by that.
        """
        run = self._run
        header = self._header
        tags = records.study_tags(header.labels, header.parent) if header.labels else {}
        self._log(params=self._missing(records.search_params(header)), tags=tags)
        if header.labels:
            self._client.update_run(self.run_id, name=records.search_name(header.search_id, header.labels))
        if self._was_finished:
            return
        if run.inputs is None or not run.inputs.dataset_inputs:
            self._client.log_inputs(self.run_id, [records.calibration_input(header)])
        config = yaml.safe_dump(header.config, sort_keys=False, allow_unicode=True)
        self._client.log_text(self.run_id, config, "config.yaml")
        self._client.log_text(self.run_id, json.dumps(header.data, ensure_ascii=False, indent=2), "data.json")
        if "raysearch.failure" in run.data.tags:
            self._client.delete_tag(self.run_id, "raysearch.failure")
        if run.info.status != "RUNNING":
            self._client.update_run(self.run_id, status="RUNNING")

    def _missing(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return the params that the parent run does not have; MLflow's params can be written only once."""
        return {key: value for key, value in params.items() if key not in self._run.data.params}

    def _log_artifacts(self, trials: Sequence[Trial], result: SearchResult) -> None:
        with TemporaryDirectory() as folder:
            table = Path(folder, "trials.csv")
            write_frame([replace(result, trials=tuple(trials)).to_frame().reset_index()], table)
            self._client.log_artifact(self.run_id, str(table))
        self._on_progress()
        for name, figure in Plots(trials, self._header.sites, result.mask, self._header.measure).files():
            self._log_figure(figure, name)
        if result.recommendation is not None:
            self._log_figure(knee(result.recommendation), "knee.png")

    def _log_figure(self, figure: Figure, name: str) -> None:
        fix_layout(figure, _DPI)
        self._client.log_figure(self.run_id, figure, name, save_kwargs={"dpi": _DPI})
        self._on_progress()
