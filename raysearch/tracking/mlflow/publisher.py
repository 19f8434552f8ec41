"""Publishes the state of one search in MLflow: a run for the search, and child runs for some of its trials.

All functions send requests to MLflow and wait for the answers; `raysearch.tracking.mlflow.tracker` calls them on a
separate thread. A part that the run has is never written again, so any state can be published at any time:

    run of the search   found by the tag raysearch.search_id; its params are written once
    loss of a trial     metric trial/loss, whose step is the index of the trial: only at steps that are missing
    rounds              metrics whose step is the round: only after the last round in metric progress/rounds
    table of trials     artifact trials.json: replaced
    result              metrics if a loss or a cost differs; files of the same names are replaced
    child run           found by the tag raysearch.trial_index; it is complete if its status is FINISHED or FAILED
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from raysearch.core.trial import Trial
from raysearch.figures.picture import fix_layout
from raysearch.figures.search import Plots
from raysearch.searching.events import SearchEnded
from raysearch.searching.frames import write_frame
from raysearch.searching.knee import knee_file, write_knee
from raysearch.searching.recommendation import Recommendation
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult, trials_frame
from raysearch.tracking.mlflow import run_fields
from raysearch.tracking.mlflow.child_runs import ChildRuns
from raysearch.tracking.mlflow.client import Point, connect, in_ms, log, only_one, search_all
from raysearch.tracking.options import TrackingOptions
from raysearch.tracking.state import SearchState

if TYPE_CHECKING:
    from mlflow.entities import Run

    from raysearch.figures.picture import Figure

_ROUNDS_AT_ONCE = 50  # their metrics are in one request, of at most MLflow's 1,000 metrics, so all or none are written
#: Metrics that differ between different results of a search, but do not depend on what the ledger contained.
_RESULT_METRICS = ("loss/pruned", "layer_forwards/alone")
_TRIAL_LOSS = "trial/loss"
_TABLE = "trials.json"
_DPI = 150


class SearchPublisher:
    """Publishes one search in one store. Creating it finds or creates the run of the search.

    Args:
        options: Where and how to record.
        state: The search.
        seconds_before: The seconds of earlier processes of the search, to which new ones are added; None for the value
            in MLflow.
        on_progress: It is called with a line after each part that is written.

    Attributes:
        run_id: The id of the search's run.
        seconds_before: The seconds of earlier processes of the search.
    """

    def __init__(
        self,
        options: TrackingOptions,
        state: SearchState,
        seconds_before: float | None,
        on_progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._client, self._experiment = connect(options.store, options.experiment)
        self._at_server = options.store.is_server  # which may execute a request twice
        self._which_children = options.child_runs
        self._folder = options.folder
        self._on_progress = on_progress
        header = state.header
        run = self._find(header.search_id) or self._client.create_run(
            self._experiment, in_ms(state.began), run_fields.search_tags(header), header.search_id
        )
        self._run = run
        self.run_id: str = run.info.run_id
        was_stopped = run.data.tags.get("raysearch.complete") == "false"  # a larger budget may continue the search
        self._was_finished = run.info.status == "FINISHED" and not was_stopped
        self._n_rounds_before = int(run.data.metrics.get("progress/rounds", 0))
        self._n_rounds = self._n_rounds_before
        recorded_seconds = run.data.metrics.get("cost/seconds", 0.0)
        self.seconds_before = recorded_seconds if seconds_before is None else seconds_before
        self._recorded_trials: set[int] = set()
        self._children: ChildRuns | None = None
        self._is_open = False

    def count_missing(self, trials: Iterable[Trial]) -> int:
        """Return how many of the trials are of rounds that the run did not have when this object was created."""
        return sum(max(trial.round, 1) > self._n_rounds_before for trial in trials)

    def publish(self, state: SearchState) -> None:
        """Write all parts of a state that the run does not have yet.

        Args:
            state: The state of the search; later calls have later states.
        """
        if not self._is_open:
            self._open(state.header)
        self._write_losses(state)
        self._write_rounds(state)
        self._write_children(state)
        if state.end is not None and not self._was_finished:
            self._write_end(state, state.end)

    def _open(self, header: SearchHeader) -> None:
        """Write the missing facts of the search, and set its run to RUNNING unless it was finished.

        Until then, a new run has no params; `only_one` recognises duplicates by that.
        """
        run = self._run
        tags = run_fields.study_tags(header.labels, header.parent) if header.labels else {}
        log(self._client, self.run_id, params=self._missing(run_fields.search_params(header)), tags=tags)
        if header.labels:
            self._client.update_run(self.run_id, name=run_fields.search_name(header.search_id, header.labels))
        if _TRIAL_LOSS in run.data.metrics:
            history = self._client.get_metric_history(self.run_id, _TRIAL_LOSS)
            self._recorded_trials = {point.step for point in history}
        if self._which_children != "none":
            self._children = ChildRuns(self._client, self._experiment, self.run_id, self._at_server)
        if not self._was_finished:
            self._write_facts(header)
            if "raysearch.failure" in run.data.tags:
                self._client.delete_tag(self.run_id, "raysearch.failure")
            if run.info.status != "RUNNING":
                self._client.update_run(self.run_id, status="RUNNING")
        self._is_open = True
        self._on_progress("the facts of the search")

    def _write_facts(self, header: SearchHeader) -> None:
        if self._run.inputs is None or not self._run.inputs.dataset_inputs:
            self._client.log_inputs(self.run_id, [run_fields.calibration_input(header)])
        config = yaml.safe_dump(header.config, sort_keys=False, allow_unicode=True)
        self._client.log_text(self.run_id, config, "config.yaml")
        self._client.log_text(self.run_id, json.dumps(header.data, ensure_ascii=False, indent=2), "data.json")

    def _write_losses(self, state: SearchState) -> None:
        """Write the losses of trials, unless an earlier process wrote them."""
        points = [
            Point(_TRIAL_LOSS, trial.loss, trial.index, in_ms(state.round_end(trial)))
            for trial in state.trials
            if trial.loss is not None and trial.index not in self._recorded_trials
        ]
        log(self._client, self.run_id, points)
        self._recorded_trials.update(point.step for point in points)
        self._on_progress(f"the losses of {len(state.trials):,} trials")

    def _write_rounds(self, state: SearchState) -> None:
        """Write the metrics of rounds, unless an earlier process wrote them."""
        earlier_evaluations, earlier_forwards = self._earlier_work(state.rounds)
        while self._n_rounds < len(state.rounds):
            end = self._n_rounds + _ROUNDS_AT_ONCE
            points = []
            for summary, ended in zip(
                state.rounds[self._n_rounds : end], state.round_ends[self._n_rounds : end], strict=True
            ):
                seconds = self.seconds_before + summary.seconds
                metrics = run_fields.round_metrics(summary, earlier_evaluations, earlier_forwards)
                metrics["cost/seconds"] = seconds
                at_ms = in_ms(ended)
                points += [Point(name, value, summary.round, at_ms) for name, value in metrics.items()]
                if (best := summary.best_loss) is not None:
                    points.append(Point("progress/best_loss", best, summary.n_requested, at_ms))
                    points.append(Point("progress/best_loss_by_second", best, int(seconds), at_ms))
            log(self._client, self.run_id, points)
            self._n_rounds = min(end, len(state.rounds))
            self._on_progress(f"{self._n_rounds:,} of {len(state.rounds):,} rounds")

    def _earlier_work(self, rounds: Sequence[RoundSummary]) -> tuple[float, float]:
        """Return the evaluations and layer-forwards of earlier processes, in the rounds that they wrote."""
        if not 0 < self._n_rounds_before <= len(rounds):
            return 0.0, 0.0
        last = rounds[self._n_rounds_before - 1]
        recorded = self._run.data.metrics
        evaluations = recorded.get("evaluations/computed", 0) - last.n_computed
        return evaluations, recorded.get("layer_forwards/computed", 0) - last.layer_forwards_computed

    def _write_children(self, state: SearchState) -> None:
        """Write the child runs of all trials, or of the best mask of each number of layers once these are known."""
        if self._children is None:
            return
        if self._which_children == "all":
            self._children.write(state.trials, state, self._on_progress)
        elif state.result is not None:
            self._children.write(state.result.path, state, self._on_progress)

    def _write_end(self, state: SearchState, end: SearchEnded) -> None:
        """Write the end of a search: its trials, its result with its figures or its failure, and its status."""
        self._write_table(state)
        if end.result is not None:
            self._write_result(end.result, state)
        elif end.failure is not None:
            tags = {"raysearch.failure": run_fields.clip(end.failure, run_fields.MAX_TAG)}
            if end.stopped:
                tags["raysearch.complete"] = "false"
            log(self._client, self.run_id, tags=tags)
        if self._at_server:  # looking up the runs deletes duplicates
            self._find(state.header.search_id)
            if self._children is not None:
                self._children.find()
        if end.stopped or end.result is not None:
            status = "FINISHED"
        elif end.failure is not None:
            status = "FAILED"
        else:
            status = "KILLED"
        self._client.set_terminated(self.run_id, status, None if state.ended is None else in_ms(state.ended))

    def _write_table(self, state: SearchState) -> None:
        """Write the table of all trials, which MLflow's pages show and compare."""
        if not state.trials:
            return
        # MLflow looks for images in columns of objects; of pandas' own type for texts, pandas 3 warns there.
        frame = trials_frame(state.trials, state.header.measure).reset_index().astype(object)
        if any(file.path == _TABLE for file in self._client.list_artifacts(self.run_id)):
            # `log_table` adds rows to those of a table that exists.
            self._client.log_text(self.run_id, frame.head(0).to_json(orient="split", index=False), _TABLE)
        self._client.log_table(self.run_id, frame, _TABLE)
        self._on_progress("the table of trials")

    def _write_result(self, result: SearchResult, state: SearchState) -> None:
        metrics = run_fields.result_metrics(result)
        at_ms = None if state.ended is None else in_ms(state.ended)
        points: list[Point] = []
        if any(self._run.data.metrics.get(name) != metrics[name] for name in _RESULT_METRICS):
            metrics["cost/seconds"] = self.seconds_before + result.work.seconds
            for name, series in run_fields.result_series(result).items():
                points += [Point(name, value, step, at_ms) for step, value in series]
            # The metrics come last, so that those of _RESULT_METRICS are only there if all others are.
            points += [Point(name, value, self._n_rounds + 1, at_ms) for name, value in metrics.items()]
        params = {"removed": str(result.mask), "n_remove": str(result.n_remove)} if result.complete else {}
        log(self._client, self.run_id, points, self._missing(params), run_fields.result_tags(result))
        self._on_progress("the result")
        self._write_files(state.trials, result)

    def _write_files(self, trials: Sequence[Trial], result: SearchResult) -> None:
        with TemporaryDirectory() as folder:
            table = Path(folder, "trials.csv")
            write_frame([trials_frame(trials, result.measure).reset_index()], table)
            self._client.log_artifact(self.run_id, str(table))
        for name, figure in Plots(trials, result.sites, result.mask, result.measure).files():
            self._write_figure(figure, name)
        if result.recommendation is not None:
            self._write_knee(result.recommendation)

    def _write_knee(self, recommendation: Recommendation) -> None:
        """Write the figure of a search by budget; the search has drawn it, but a store may have come without it."""
        file = knee_file(recommendation.search_id, self._folder)
        if not file.is_file():
            write_knee(recommendation, self._folder)
        self._client.log_artifact(self.run_id, str(file))
        self._on_progress(file.name)

    def _write_figure(self, figure: Figure, name: str) -> None:
        fix_layout(figure, _DPI)
        self._client.log_figure(self.run_id, figure, name, save_kwargs={"dpi": _DPI})
        self._on_progress(name)

    def _find(self, search_id: str) -> Run | None:
        """Return the run of a search, and delete empty duplicates; None if there is none."""
        condition = f"tags.`raysearch.search_id` = '{search_id}' and tags.`raysearch.kind` = 'search'"
        return only_one(self._client, search_all(self._client, self._experiment, condition))

    def _missing(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return the params that the run does not have; MLflow's params can be written only once."""
        return {key: value for key, value in params.items() if key not in self._run.data.params}
