"""The way into an MLflow store: its client, its tables, its experiment."""

from __future__ import annotations

from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from raysearch.tracking.store import Store

# What MLflow's pages open with: runs and charts, where they would otherwise guess at language model traces.
_KIND = {"mlflow.experimentKind": "custom_model_development"}


def connect(store: Store, experiment: str) -> tuple[MlflowClient, str]:
    """A client, and the id of the experiment, which is made if there is none.

    Args:
        store: Where the runs are kept.
        experiment: MLflow's name for a group of runs.
    """
    store.check()
    with store.alone():
        _make_tables(store)
        client = MlflowClient(store.uri)
        return client, _experiment_id(client, store, experiment)


def client_of(store: Store) -> MlflowClient:
    """A client of a store that is there."""
    store.check()
    return MlflowClient(store.uri)


def only_one(client: MlflowClient, runs: Iterable[Run]) -> Run | None:
    """The run that was written to, of all that were made for the same thing; the others are deleted.

    A server that is slow to answer is asked again, and makes a run each time. Only one of them gets params.
    """
    made = sorted(runs, key=lambda run: (not run.data.params, run.info.start_time, run.info.run_id))
    for run in made[1:]:
        if not run.data.params:
            client.delete_run(run.info.run_id)
    return next(iter(made), None)


def _make_tables(store: Store) -> None:
    """Makes a new embedded store beside its place and moves it there: MLflow can do nothing with half of its tables."""
    database = store.folder / "mlflow.db"
    if store.is_embedded and not database.exists():
        unfinished = database.with_name("mlflow.db.new")
        unfinished.unlink(missing_ok=True)  # of a search that was killed meanwhile
        MlflowClient(f"sqlite:///{unfinished}").search_experiments()
        unfinished.rename(database)


def _experiment_id(client: MlflowClient, store: Store, name: str) -> str:
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name, None if store.is_server else store.artifacts.as_uri(), tags=_KIND))
    except MlflowException:
        # Searches of a study start together: another may have made it between the look and the leap.
        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        raise
