"""Puts what a search's mask was assessed at on the search's MLflow run."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

from raysearch.tracking.mlflow_tracker import quiet
from raysearch.tracking.records import brief
from raysearch.tracking.store import Store


def record_assessment(store: Store, run_id: str, metrics: Mapping[str, float], warn: Callable[[str], None]) -> None:
    """Logs metrics on a run that exists; numbers that are not finite are left out.

    Args:
        store: Where the run is kept.
        run_id: MLflow's id of it.
        metrics: By name: ``assess.hellaswag``, ``assess.dense.hellaswag`` …
        warn: Told in one sentence if that failed: the ledger has it all, and the same command tries again.
    """
    now = time.time_ns() // 1_000_000
    try:
        with quiet():
            from mlflow import MlflowClient
            from mlflow.entities import Metric

            points = [
                Metric(re.sub(r"[^\w./ -]", "_", name), value, now, 0)
                for name, value in metrics.items()
                if math.isfinite(value)
            ]
            MlflowClient(store.uri).log_batch(run_id, points)
    except Exception as error:  # a tracker never stops anything, whatever MLflow, a disk or a network throws
        cause = brief(f"{type(error).__name__}: {error}")
        warn(f"the assessment was not recorded in MLflow at {store.uri} ({cause}); the same command tries again")
