"""Puts what searches' masks were assessed at on the searches' MLflow runs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping

from raysearch.tracking.store import Store


def record_assessments(store: Store, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Logs metrics on runs that exist: what they do not have yet, without numbers that are not finite.

    Args:
        store: Where the runs are kept.
        metrics: By MLflow's id of a run, by name: ``assess.hellaswag``, ``assess.dense.hellaswag`` …
    """
    from mlflow.entities import Metric

    from raysearch.tracking.mlflow.client import client_of

    now = time.time_ns() // 1_000_000
    client = client_of(store)
    for run_id, values in metrics.items():
        known = client.get_run(run_id).data.metrics
        named = {re.sub(r"[^\w./ -]", "_", name): value for name, value in values.items()}
        new = {name: value for name, value in named.items() if math.isfinite(value) and known.get(name) != value}
        client.log_batch(run_id, [Metric(name, value, now, 0) for name, value in new.items()])
