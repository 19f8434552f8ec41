"""Writes one search to MLflow: a parent run for the search, a child run for each trial.

Everything here talks to MLflow and blocks while it does; `raysearch.tracking.mlflow.tracker` keeps it on a thread of
its own. What was written before is found again by tags and never written twice, so a search may tell all of it anew:

    parent   tag raysearch.search_id             params are write-once; metrics go on after the last round written
    child    tag raysearch.trial_index        complete once its status says how it ended
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

from raysearch.core import style
from raysearch.reporting.figures.knee import knee
from raysearch.searching.figures import Plots
from raysearch.searching.frames import write_frame
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
from raysearch.searching.trial import Trial
from raysearch.tracking.mlflow import records
from raysearch.tracking.mlflow.bulk import Child, complete, make_children
from raysearch.tracking.mlflow.client import connect, log, only_one, search_all
from raysearch.tracking.options import TrackingOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AT_ONCE = 200  # child runs
#: Metrics that tell one result of a search from another, whatever the ledger had answered.
_TELLING = ("loss/pruned", "layer_forwards/alone")
_DPI = 150


class MlflowWriter:
    """One search's runs in one store. Methods take the time of the event, in milliseconds since the epoch.

    Args:
        now: When the search began.
        seconds_before: Of earlier processes, to which new ones are added; None for what MLflow has.
        wrote: Called whenever a part of an event is written that may take long.
    """

    def __init__(
        self,
        options: TrackingOptions,
        header: SearchHeader,
        now: int,
        seconds_before: float | None,
        wrote: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._experiment = connect(options.store, options.experiment)
        self._asks_again = options.store.is_server
        self._max_child_runs = options.max_child_runs
        self._header, self._wrote = header, wrote
        self._trials: list[Trial] = []
        self._new: list[Child] = []
        self._before = 0.0, 0.0  # evaluations and layer-forwards of earlier processes, of the rounds that are written
        self._round_opened = now
        self._run = run = self._find(header.search_id) or self._client.create_run(
            self._experiment, start_time=now, tags=records.search_tags(header), run_name=header.search_id
        )
        self.run_id: str = run.info.run_id
        self.written = 0  # trials that had not been there, or not in full
        stopped = run.data.tags.get("raysearch.complete") == "false"  # by its budget; a larger one may take it further
        self._was_finished = run.info.status == "FINISHED" and not stopped
        self._rounds_written = int(run.data.metrics.get("progress/rounds", 0))
        known = run.data.metrics.get("cost/seconds", 0.0)
        self.seconds_before = known if seconds_before is None else seconds_before
        self._children = self._find_children()
        self._log = partial(log, self._client, self.run_id)

    def trial(self, trial: Trial, now: int) -> None:
        """Take a child run for `flush`, unless it is there; it lasts from the start of its round to its score."""
        self._trials.append(trial)
        known = self._children.pop(trial.index, None)
        if trial.index >= self._max_child_runs:
            return
        status = None if known is None else known.info.status
        if status == "FINISHED" or (status == "FAILED" and trial.failure is not None):  # else it was tried again
            return
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
        if known is not None:
            if status == "FAILED":
                self._client.delete_tag(known.info.run_id, "raysearch.failure")
            complete(self._client, known.info.run_id, child, bool(known.data.metrics))
            return
        self._new.append(child)
        if len(self._new) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the child runs that are still to be written."""
        if self._new:
            make_children(self._client, self._experiment, self._new, self._wrote)
            self._new.clear()

    def round_done(self, summary: RoundSummary, now: int) -> None:
        """Write a round's metrics, unless an earlier process wrote them."""
        self._round_opened = now
        if summary.round <= self._rounds_written:
            known = self._run.data.metrics
            evaluations = known.get("evaluations/computed", 0) - summary.n_computed
            forwards = known.get("layer_forwards/computed", 0) - summary.layer_forwards_computed
            self._before = evaluations, forwards
            return
        self._rounds_written = summary.round
        seconds = self.seconds_before + summary.seconds
        metrics = records.round_metrics(summary, *self._before) | {"cost/seconds": seconds}
        points = [(name, value, summary.round) for name, value in metrics.items()]
        if summary.best_loss is not None:
            points.append(("progress/best_loss", summary.best_loss, summary.n_requested))
            points.append(("progress/best_loss_by_second", summary.best_loss, int(seconds)))
        self._log(points, now)

    def finish(self, result: SearchResult | None, failure: str | None, now: int, stopped: bool = False) -> None:
        """Write the result with its figures, or the cause of failure, and the status; a finished run stays as it is."""
        self.flush()
        if self._was_finished:
            return
        if result is not None:
            metrics, points = records.result_metrics(result), list[tuple[str, float, int]]()
            if any(self._run.data.metrics.get(name) != metrics[name] for name in _TELLING):
                metrics |= {"cost/seconds": self.seconds_before + result.seconds}
                series = records.result_series(result).items()
                points += [(name, value, step) for name, each in series for step, value in each]
                points += [(name, value, self._rounds_written + 1) for name, value in metrics.items()]  # telling: last
            found = {"removed": str(result.mask), "n_remove": str(result.n_remove)} if result.complete else {}
            tags = records.result_tags(result, self._max_child_runs)
            self._log(points, now, self._lacking(found), tags)  # a param is written once
            self._wrote()
            self._log_artifacts(result.trials or self._trials, result)
        elif failure is not None:
            more = {"raysearch.complete": "false"} if stopped else {}
            self._log(tags={"raysearch.failure": records.clip(failure, records.MAX_TAG), **more})
        if self._asks_again:  # then some may have been made twice
            self._find(self._header.search_id)
            self._find_children()
        status = "FINISHED" if stopped or result is not None else "KILLED" if failure is None else "FAILED"
        self._client.set_terminated(self.run_id, status, now)

    def _find(self, search_id: str) -> Run | None:
        found = self._search(f"tags.`raysearch.search_id` = '{search_id}' and tags.`raysearch.kind` = 'search'")
        return only_one(self._client, found)

    def _find_children(self) -> dict[int, Run]:
        """Return the trials' runs by earlier processes."""
        found = defaultdict[int, list[Run]](list)
        for run in self._search(f"tags.`mlflow.parentRunId` = '{self.run_id}' and tags.`raysearch.kind` = 'trial'"):
            found[int(run.data.tags["raysearch.trial_index"])].append(run)
        kept = {index: only_one(self._client, runs) for index, runs in found.items()}
        return {index: run for index, run in kept.items() if run}

    def _search(self, wanted: str) -> Iterator[Run]:
        return search_all(self._client, self._experiment, wanted)

    def take_up(self) -> None:
        """Write what the parent run lacks, and set it running again unless it was finished; call this first.

        A run that was made and not taken up has no params, and so is known for one made twice: see `only_one`.
        """
        run, header = self._run, self._header
        tags = records.study_tags(header.labels, header.parent) if header.labels else {}
        self._log(params=self._lacking(records.search_params(header)), tags=tags)
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

    def _lacking(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return the params that the parent run does not have; they are written once."""
        return {key: value for key, value in params.items() if key not in self._run.data.params}

    def _log_artifacts(self, trials: Sequence[Trial], result: SearchResult) -> None:
        with TemporaryDirectory() as folder:
            table = Path(folder, "trials.csv")
            write_frame([replace(result, trials=tuple(trials)).to_frame().reset_index()], table)
            self._client.log_artifact(self.run_id, str(table))
        self._wrote()
        for name, figure in Plots(trials, self._header.n_layers, result.mask, self._header.measure).files():
            self._log_figure(figure, name)
        if result.recommendation is not None:
            self._log_figure(knee(result.recommendation), "knee.png")

    def _log_figure(self, figure: Figure, name: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure.dpi = _DPI
        style.place(figure, FigureCanvasAgg)
        self._client.log_figure(self.run_id, figure, name, save_kwargs={"dpi": _DPI})
        self._wrote()
