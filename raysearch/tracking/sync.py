"""Writes to MLflow what it lacks of searches and studies that are on record: with no model, no data, no search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raysearch.errors import UserError
from raysearch.search.result import SearchResult
from raysearch.tracking.mlflow.contact import cause_of, quiet
from raysearch.tracking.options import TrackingOptions

_T = TypeVar("_T")


@dataclass(frozen=True)
class Written:
    """What a search's run in MLflow is now.

    Args:
        mlflow_run_id: MLflow's id of it.
        trials: How many it has.
        missing: How many of them were not there, or not in full.
    """

    mlflow_run_id: str
    trials: int
    missing: int


def record_search(options: TrackingOptions, result: SearchResult, assessed: Mapping[str, float]) -> Written:
    """Writes what MLflow lacks of a search.

    Args:
        options: Where it is recorded.
        result: What it found, with its trials and rounds.
        assessed: What its mask was assessed at, by the names of MLflow's metrics.

    Raises:
        UserError: MLflow cannot be written to.
    """

    def write() -> Written:
        from raysearch.tracking.mlflow.study import record_assessments
        from raysearch.tracking.mlflow.writer import MlflowWriter

        at = int(1000 * result.began)
        writer = MlflowWriter(options.store, options.experiment, result, at, seconds_before=0.0)
        writer.take_up()
        for trials, summary in result.by_round:
            at = int(1000 * (result.began + summary.seconds))
            for trial in trials:
                writer.trial(trial, at)
            writer.round_done(summary, at)
        writer.finish(result, None, int(1000 * result.ended))
        record_assessments(options.store, {writer.run_id: assessed})
        return Written(writer.run_id, len(result.trials), writer.written)

    return _written(options, write)


def record_study(options: TrackingOptions, study_id: str, config: Mapping[str, Any]) -> str:
    """Makes a study's run if MLflow has none, and gives MLflow's id of it.

    Raises:
        UserError: MLflow cannot be written to.
    """

    def write() -> str:
        from raysearch.tracking.mlflow.study import begin_study

        return begin_study(options.store, options.experiment, study_id, config, reopen=False)

    return _written(options, write)


def record_report(options: TrackingOptions, run_id: str, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
    """Puts a report's numbers and files on its study's run, and ends that.

    Raises:
        UserError: MLflow cannot be written to.
    """

    def write() -> None:
        from raysearch.tracking.mlflow.study import end_study

        end_study(options.store, run_id, metrics, files)

    _written(options, write)


def _written(options: TrackingOptions, write: Callable[[], _T]) -> _T:
    try:
        with quiet():
            return write()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"tracking.uri={options.store.shown} cannot be written to ({cause_of(error)}); sync again once it can be, "
            "or name another with tracking.uri=…"
        ) from error
