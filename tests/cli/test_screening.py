"""`raysearch search screening=confident`, as people and programs use it."""

import csv
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raysearch.ledger.ledger import Ledger
from raysearch.searching.search_record import SEARCHES
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World

#: So little confidence that masks of a random model are dropped.
SCREENED = {"screening": "confident", "screening.confidence": 0.1, "data.samples": 64, "data.shard_samples": 4}


def test_screened_masks_are_recorded_shown_and_completed(run: Run, cwd: Path, world: World) -> None:
    overrides = world.search(searcher="greedy", **SCREENED)
    first = json_answer(run("search", *overrides, "--json"))
    n_screened = first["evaluations"]["screened"]
    assert 0 < n_screened < 9, "of greedy's nine masks"
    lines = run("show", "latest").out
    assert lines.count("screened: ") == n_screened
    assert "of the shards" in lines

    repeated = run("search", *overrides)
    assert f"Screened: {n_screened} masks stopped early, with 0.1 confidence" in " ".join(repeated.out.split())
    with closing(Ledger(cwd / "mlruns" / "ledger.db")) as ledger:
        (record,) = SEARCHES.all(ledger)
    trials = [trial for trial in record.finished_result.trials if trial.screened is not None]
    assert len(trials) == n_screened
    assert all(trial.loss is None and trial.failure is None for trial in trials)
    assert not any(trial.mask in {screened.mask for screened in trials} for trial in record.finished_result.path), (
        "never ranked"
    )

    off = json_answer(run("search", *world.search(searcher="greedy", **{**SCREENED, "screening": "off"}), "--json"))
    assert off["search_id"] != first["search_id"], "screening is part of a search's identity"
    assert off["evaluations"]["screened"] == 0
    assert n_screened <= off["evaluations"]["computed"] <= 9, "the rest is completed, and nothing else"


@pytest.mark.usefixtures("tables")
def test_mlflow_and_reports_contain_screened_masks(run: Run, cwd: Path, world: World) -> None:
    overrides = world.overrides(searcher="greedy", remove=2, **SCREENED)
    result = json_answer(run("search", *overrides, "tracking.child_runs=all", "--json"))
    n_screened = result["evaluations"]["screened"]
    client = MlflowClient(f"sqlite:///{cwd / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("raysearch")
    assert experiment is not None
    children = client.search_runs([experiment.experiment_id], "tags.`raysearch.screened` = 'true'")
    assert len(children) == n_screened
    for child in children:
        assert child.info.status == "FINISHED"
        assert "loss/pruned" not in child.data.metrics
        low, high = (child.data.metrics[f"screened/{name}"] for name in ("low", "high"))
        assert low <= child.data.metrics["screened/loss"] <= high
    artifact = client.download_artifacts(result["mlflow_run_id"], "trials.csv", str(cwd))
    table = csv.DictReader(Path(artifact).read_text().splitlines())
    rows = [row for row in table if row["screened_loss"]]
    assert len(rows) == n_screened
    assert not any(row["loss"] for row in rows)
