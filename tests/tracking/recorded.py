"""The runs of a search in MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from raysearch.tracking.options import MlflowStore

#: The files of a search.
ARTIFACTS = {
    "config.yaml",
    "data.json",
    "trials.json",
    "trials.csv",
    "mask_map.png",
    "best_so_far.png",
    "loss_by_size.png",
}


class Recorded:
    """The run of a search, and the child runs of its trials; each must exist once.

    The place is MLflow's URI, or the folder of an embedded store. Without `search_id`, the store must contain only one
    search.
    """

    def __init__(self, place: str | Path, experiment: str = "raysearch", search_id: str | None = None) -> None:
        self.client = MlflowClient(place if isinstance(place, str) else MlflowStore.locate(None, place).uri)
        existing = self.client.get_experiment_by_name(experiment)
        assert existing is not None
        runs: list[Run] = self.client.search_runs([existing.experiment_id], max_results=1000)
        searches = [run for run in runs if run.data.tags["raysearch.kind"] == "search"]
        self.parent: Run
        (self.parent,) = [run for run in searches if search_id in (None, run.data.tags["raysearch.search_id"])]
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == self.parent.info.run_id]
        self.children: dict[int, Run] = {int(run.data.tags["raysearch.trial_index"]): run for run in children}
        assert len(self.children) == len(children), "a trial was written twice"
        assert search_id is not None or len(runs) == 1 + len(children)

    def steps(self, metric: str) -> list[int]:
        """The steps at which the search has a metric."""
        return [point.step for point in self.client.get_metric_history(self.parent.info.run_id, metric)]

    def losses(self) -> dict[int, float]:
        """The loss of each trial that has one, by its index; each must be written once."""
        points = self.client.get_metric_history(self.parent.info.run_id, "trial/loss")
        losses = {point.step: point.value for point in points}
        assert len(losses) == len(points), "a loss was written twice"
        return losses

    def table(self) -> list[dict[str, Any]]:
        """The rows of the table of trials, which MLflow's pages list as a table."""
        run = self.parent
        assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "trials.json", "type": "table"}]
        table = json.loads(Path(self.client.download_artifacts(run.info.run_id, "trials.json")).read_text())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]

    def artifacts(self) -> set[str]:
        """The names of its files."""
        return {file.path for file in self.client.list_artifacts(self.parent.info.run_id)}

    def everything(self) -> list[Any]:
        """All that MLflow has of the search and its trials: its runs, and each value of each metric."""
        runs = [self.parent, *(child for _, child in sorted(self.children.items()))]
        return [
            (
                run.to_dictionary(),
                {name: self.client.get_metric_history(run.info.run_id, name) for name in sorted(run.data.metrics)},
            )
            for run in runs
        ]

    def assert_complete(self, trials: int) -> None:
        """Assert that the search and its child runs have finished, and that the loss of each trial is written once."""
        assert sorted(self.losses()) == list(range(trials))
        assert [row["index"] for row in self.table()] == list(range(trials))
        assert self.children, "at least those of the best masks"
        for run in (self.parent, *self.children.values()):
            assert run.info.status == "FINISHED"
            assert "raysearch.failure" not in run.data.tags
            assert run.data.params
            assert "loss/pruned" in run.data.metrics
        for run in self.children.values():
            assert len(self.client.get_metric_history(run.info.run_id, "loss/pruned")) == 1
        assert self.artifacts() == ARTIFACTS
