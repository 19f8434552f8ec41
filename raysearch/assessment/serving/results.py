"""The numbers of a model on a server, from the times of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from raysearch.assessment.results import Result
from raysearch.assessment.serving.client import RequestTimes
from raysearch.core.estimate import Estimate, Metric
from raysearch.searching.serve_options import ServeOptions
from raysearch.stats.estimates import error_of_median
from raysearch.text.numbers import count

#: The metrics: their names and titles without the runtime, their units, and whether higher is better.
DECODE = "decode_tokens_per_s"
PREFILL = "prefill_tokens_per_s"
FIRST_TOKEN = "first_token_ms"
LATENCY = "latency_ms"
MEMORY = "peak_memory_bytes"
KV_CACHE = "kv_cache_bytes"
_METRICS = {
    DECODE: ("decoding", "tokens/s", True),
    PREFILL: ("prefill", "tokens/s", True),
    FIRST_TOKEN: ("time to the first token", "ms", False),
    LATENCY: ("latency", "ms", False),
    MEMORY: ("peak memory", "bytes", False),
    KV_CACHE: ("KV cache", "bytes", False),
}


def summary_of(times: Sequence[RequestTimes], memory: Mapping[str, Any], options: ServeOptions) -> dict[str, Any]:
    """Return the numbers of one model.

    Args:
        times: The times of its requests, of each repeat.
        memory: The sizes of its memory.
        options: The numbers of requests and tokens.

    Returns:
        Plain values: the medians by the names of the metrics, and each repeat in seconds.
    """
    repeats = {
        "first_token_s": [fmean(repeat.first_s) for repeat in times],
        "prefill_s": [max(repeat.first_s) for repeat in times],
        "decode_s": [max(repeat.last_s) - max(repeat.first_s) for repeat in times],
        "latency_s": [max(repeat.last_s) for repeat in times],
    }
    sizes = {name: getattr(options, name) for name in ("batch", "context_tokens", "new_tokens")}
    summary = {**repeats, **sizes, "repeats": len(times), **memory}
    medians = {name: [median(values)] for name, values in repeats.items()}
    speeds = {key: _repeats({**summary, **medians}, key)[0] for key in (DECODE, PREFILL, FIRST_TOKEN, LATENCY)}
    return {**speeds, MEMORY: None, KV_CACHE: None, **summary}


def serve_results(title: str, name: str, summary: Mapping[str, Any] | None) -> dict[str, Result]:
    """Return the numbers of one mask, each with its ratio to the dense model's of the same run.

    Args:
        title: The runtime for people.
        name: The runtime as a part of the metrics' names.
        summary: The numbers of a mask that `serve_speeds` returns; None for none.

    Returns:
        The results by the name of the metric; a number that is not known has none.
    """
    if summary is None:
        return {}
    dense_summary = summary["dense"] or {}
    requests = count(summary["batch"], "request")
    times = f"{requests} of {summary['context_tokens']} + {summary['new_tokens']} tokens, median of"
    results = {}
    for key, (text, unit, higher_is_better) in _METRICS.items():
        value = summary[key]
        if value is None:
            continue
        metric = Metric(f"{name}.{key}", f"{text} in {title}", "speed", unit, higher_is_better)
        dense = dense_summary.get(key)
        values = _repeats(summary, key)
        dense_values = _repeats(dense_summary, key) if dense_summary else []
        extent = f"{times} {len(values)}" if values else f"room for {requests}" if key == KV_CACHE else requests
        error = error_of_median(values) if values else None
        retention = None
        if dense is not None:
            ratios = [value / dense_value for value, dense_value in zip(values, dense_values, strict=True)]
            retention = Estimate(value / dense, error_of_median(ratios) if ratios else None)
        dense_error = error_of_median(dense_values) if dense_values else None
        detail = {**summary, "dense": dense, "dense_error": dense_error}
        results[metric.name] = Result(metric, Estimate(value, error), retention, extent, detail)
    return results


def _repeats(summary: Mapping[str, Any], key: str) -> list[float]:
    """Return each repeat of a metric; empty for a size."""
    batch = summary["batch"]
    if key == DECODE:
        return [batch * (summary["new_tokens"] - 1) / time_s for time_s in summary["decode_s"]]
    if key == PREFILL:
        return [batch * summary["context_tokens"] / time_s for time_s in summary["prefill_s"]]
    if key in (FIRST_TOKEN, LATENCY):
        return [1000 * time_s for time_s in summary[key.replace("_ms", "_s")]]
    return []
