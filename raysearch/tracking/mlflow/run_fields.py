"""The names, tags, params, metrics and datasets of a search in MLflow, within MLflow's limits.

Metrics are named ``group/name``, as MLflow groups them in charts; ``…_se`` is a standard error:

    loss/pruned  loss/dense  loss/delta  loss/delta_se  loss/held_out      perplexity/pruned  perplexity/dense
    path/…       by layers removed                          progress/…  evaluations/…  layer_forwards/…  cost/…

These are pure functions of the records in `raysearch.searching.result`; they do not use the MLflow client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.core.measure import Measure
from raysearch.core.problem import AUTO
from raysearch.core.scale import scales_text
from raysearch.core.space import Space
from raysearch.core.trial import Trial
from raysearch.searching.events import RecoveryHeader
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult, named_readout, uses_evaluation_split

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow.entities import DatasetInput

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_POINTS = 1000  # for a remark

#: The groups of the configuration by which searches can be filtered.
_FILTERS = ("searcher", "data", "objective")


def clip(text: str, limit: int) -> str:
    """Return the text, shortened with an ellipsis if it is too long.

    Args:
        text: The text.
        limit: The maximum number of characters.

    Returns:
        The text with at most `limit` characters.
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a nested configuration as MLflow params: values by dotted key, ``{"searcher.width": "5"}``.

    Lists and everything but text are written as JSON. Characters that MLflow refuses in a key become ``_``.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update({key_of(f"{key}.{inner_key}"): text for inner_key, text in flatten(value).items()})
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[key_of(str(key))] = clip(text, MAX_PARAM)
    return flat


def key_of(name: str) -> str:
    """Return the name of a param, metric or tag as MLflow accepts it."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:MAX_KEY]


def _grouped(group: str, name: str) -> str:
    """Return the name of a metric in a group; slashes in `name` are replaced, since they would create more groups."""
    return key_of(f"{group}/{name.replace('/', '_')}")


def search_params(header: SearchHeader) -> dict[str, str]:
    """Return the params of the parent run, by which MLflow compares runs."""
    params = {
        **flatten({**header.config, "versions": header.versions}),
        "n_layers": str(header.n_layers),
        **study_params(header.labels),
    }
    if header.config.get("remove") != AUTO:  # "auto" is decided at the end of the search
        params["n_remove"] = str(header.n_remove)
    if header.git_commit:
        params["git_commit"] = header.git_commit
    return params


def search_tags(header: SearchHeader) -> dict[str, str]:
    """Return the tags of the parent run, by which runs are searched and filtered."""
    tags = {"raysearch.search_id": header.search_id, "raysearch.kind": "search", "raysearch.model": header.model}
    tags |= {f"raysearch.{group}": choice for group, choice in header.choices.items() if group in _FILTERS}
    tags |= {f"raysearch.fingerprint.{subject}": digest for subject, digest in header.fingerprints.items()}
    tags["raysearch.unit"] = header.measure.unit
    if uses_evaluation_split(header.data):
        tags["raysearch.evaluation_split"] = "true"
    if header.git_commit:
        tags["mlflow.source.git.commit"] = header.git_commit  # MLflow shows it in its Version column
    return {key: clip(value, MAX_TAG) for key, value in tags.items()}


def study_params(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the params of a search in a study: its labels in the study."""
    return {f"study.{axis}": clip(label, MAX_PARAM) for axis, label in labels.items()}


def search_name(search_id: str, labels: Mapping[str, str]) -> str:
    """Return the name of a search's run, which the legends of charts show.

    Args:
        search_id: The id of the search; its name outside a study.
        labels: The labels of the search in a study; empty outside a study.

    Returns:
        The name, short enough for MLflow.
    """
    if not labels:
        return search_id
    # MLflow's tables cut the end of long names, so labels that differ most often come first.
    prefixes = {
        "stage": "stage ",
        "draw": "draw ",
        "calibration": "",
        "searcher": "",
        "remove": "M=",
        "seed": "seed ",
        "model": "",
    }
    return clip(", ".join(f"{prefix}{labels[axis]}" for axis, prefix in prefixes.items() if axis in labels), MAX_KEY)


def study_tags(labels: Mapping[str, str], parent: str | None) -> dict[str, str]:
    """Return the tags of a search in a study.

    Args:
        labels: The labels of the search in the study.
        parent: The id of the study's run; None if there is none.

    Returns:
        The tags, by their names.
    """
    tags = {f"raysearch.study.{axis}": clip(label, MAX_TAG) for axis, label in labels.items()}
    return tags if parent is None else {"mlflow.parentRunId": parent, **tags}


def recovery_params(header: RecoveryHeader) -> dict[str, str]:
    """Return the params of a recovery's run, by which MLflow compares recoveries."""
    method = {"way": header.method_label} if header.method_label else {}
    return {**flatten({**header.settings, **method}), "removed": str(header.mask), "n_remove": str(header.n_remove)}


def recovery_tags(header: RecoveryHeader, parent: str | None) -> dict[str, str]:
    """Return the tags of a recovery's run, including its name with the recovery method.

    Args:
        header: The recovery.
        parent: The id of the parent run; None if there is none.

    Returns:
        The tags, by their names.
    """
    name = clip(f"{header.method_label}, {header.recovery_id}" if header.method_label else header.recovery_id, MAX_KEY)
    tags = {"mlflow.runName": name, "raysearch.recovery": header.recovery_id, "raysearch.kind": "recovery"}
    return tags if parent is None else {"mlflow.parentRunId": parent, **tags}


def trial_name(trial: Trial) -> str:
    """Return the name of a child run: ``r02 {21,25}``, which sorts by round."""
    return clip(f"r{trial.round:02d} {trial.mask}", MAX_KEY)


def trial_params(trial: Trial, space: Space) -> dict[str, str]:
    """Return the params of a child run.

    Args:
        trial: The trial.
        space: What its mask removes.

    Returns:
        The params, by their names.
    """
    return {"removed": str(trial.mask), "n_removed": str(space.size_of(trial.mask)), "round": str(trial.round)}


def trial_tags(trial: Trial, parent: str) -> dict[str, str]:
    """Return the tags of a child run.

    Args:
        trial: The trial.
        parent: The id of the parent run.

    Returns:
        The tags, by their names.
    """
    tags = {
        "mlflow.parentRunId": parent,
        "raysearch.kind": "trial",
        "raysearch.trial_index": str(trial.index),
        "raysearch.round": str(trial.round),
        "raysearch.removed": clip(str(trial.mask), MAX_TAG),
        "raysearch.cached": str(trial.cached).lower(),
    }
    if trial.screened is not None:
        tags["raysearch.screened"] = "accepted" if trial.screened.accepted else "true"
    if trial.failure is not None:
        tags["raysearch.failure"] = clip(trial.failure, MAX_TAG)
    return tags


def trial_metrics(trial: Trial, measure: Measure) -> dict[str, float]:
    """Return the metrics of a child run; some may be infinite.

    Args:
        trial: The trial.
        measure: The measure of its loss.

    Returns:
        The metrics, by their names. A failed trial has none.
    """
    if trial.screened is not None:
        return {f"screened/{name}": value for name, value in vars(trial.screened).items() if name != "accepted"}
    if trial.loss is None or trial.delta is None:
        return {}
    parts = {_grouped("part", name): loss for name, loss in trial.parts.items()}
    readout = named_readout(measure, trial.loss, "{}/pruned")
    return {"loss/pruned": trial.loss, "loss/delta": trial.delta, **readout, **parts}


def round_metrics(summary: RoundSummary, evaluations: float = 0, forwards: float = 0) -> dict[str, float]:
    """Return the metrics of the parent run whose step is the round.

    Args:
        summary: The round.
        evaluations: The evaluations that earlier processes of this search computed, and that are now cached.
        forwards: The layer-forwards that earlier processes of this search computed.

    Returns:
        The metrics, by their names, without those that are not known.
    """
    values = {
        "progress/rounds": summary.round,
        "progress/round_best_loss": summary.round_best_loss,
        "evaluations/requested": summary.n_requested,
        "evaluations/computed": summary.n_computed + evaluations,
        "evaluations/cached": summary.n_cached - evaluations,
        "layer_forwards/computed": summary.layer_forwards_computed + forwards,
        "layer_forwards/saved": summary.layer_forwards_naive - summary.layer_forwards_computed - forwards,
        "cost/replica_busy_share": summary.busy_share,
    }
    return _without_none(values)


def _without_none(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def result_metrics(result: SearchResult) -> dict[str, float]:
    """Return the metrics of the parent run at the end of the search; some may be infinite."""
    refinement = result.refinement
    recovered = None if refinement is None else refinement.best.recovered_loss
    if result.staged is not None:
        recovered = result.staged.recovered_loss
    values = {
        **{_grouped("remark", name): value for name, value in result.remarks.items() if isinstance(value, int | float)},
        "loss/dense": result.dense_loss,
        "loss/pruned": result.loss,
        "loss/delta": result.loss - result.dense_loss,
        "loss/delta_se": result.delta_error,
        **named_readout(result.measure, result.dense_loss, "{}/dense"),
        **named_readout(result.measure, result.loss, "{}/pruned"),
        "loss/recovered": recovered,
        "refinement/rank_correlation": None if refinement is None else refinement.rank_correlation,
        "model/parameters_removed_share": result.size.removed_share,
        "calibration/tokens": result.samples.n_tokens,
        "calibration/samples": result.samples.n_samples,
        "cost/layer_tokens_computed": result.work.layer_tokens.computed,
        "cost/searcher_seconds": result.work.searcher_seconds,
        **{f"cost/{name}": value for name, value in result.work.pool.items() if isinstance(value, int | float)},
        "layer_forwards/alone": result.work.layer_forwards.alone,
    }
    return _without_none(values)


def result_series(result: SearchResult) -> dict[str, list[tuple[int, float]]]:
    """Return the charts of the parent run: points of step and value, by name; some values may be infinite.

    The steps of ``path/…`` are sizes of masks. The steps of ``remark/…`` are places in a list, that is, layers,
    pairs or halves.
    """
    path = [(size, trial.loss) for size, trial in result.best_by_size.items() if trial.loss is not None]
    series = {"path/loss": path}
    if result.measure.readout is not None:
        series[f"path/{result.measure.readout}"] = [(size, result.measure.read(loss)) for size, loss in path]
    sizes = () if result.recommendation is None else result.recommendation.sizes
    for size in sizes:
        values = {"path/delta": size.delta, "path/delta_se": size.delta_error}
        if (speed := size.speed) is not None:
            values |= {
                "path/speedup": speed.speedup,
                "path/speedup_se": speed.error,
                "path/memory_change": speed.memory,
            }
        for name, number in _without_none(values).items():
            series.setdefault(name, []).append((size.n_removed, number))
    for name, value in result.remarks.items():
        if isinstance(value, list):
            # the step is the layer, or the first layer of a group that the target allows
            points = [(place * result.group, number) for place, number in enumerate(value)]
            series[_grouped("remark", name)] = points[:MAX_POINTS]
    return series


def result_tags(result: SearchResult) -> dict[str, str]:
    """Return the tags of the parent run at the end of the search; MLflow shows the note as the run's description."""
    read_as = result.measure.readout or f"loss ({result.measure.unit})"
    note = (
        f"Without layers {result.mask} of {result.n_layers}, the {read_as} of {result.model} is "
        f"{result.readout:.4g}, where the dense model's is {result.dense_readout:.4g}."
    )
    tags = {
        "raysearch.removed": str(result.mask),
        "mlflow.note.content": note,
        "raysearch.complete": str(result.complete).lower(),
    }
    if result.scales:
        tags["raysearch.scales"] = scales_text(result.scales)
    if result.removal_order is not None:
        tags["raysearch.removal_order"] = json.dumps(list(result.removal_order))
    tags |= {key_of(f"raysearch.remark.{key}"): text for key, text in result.remarks.items() if isinstance(text, str)}
    return {key: clip(value, MAX_TAG) for key, value in tags.items()}


def calibration_input(header: SearchHeader) -> DatasetInput:
    """Return the samples of a search's calibrations, as one dataset."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name = " + ".join(dict.fromkeys(map(_data_name, header.data)))
    n_rows = sum(data["samples"] for data in header.data)
    n_tokens = sum(data["n_tokens"] for data in header.data)
    profile = json.dumps({"num_rows": n_rows, "num_tokens": n_tokens})
    source = json.dumps(list(header.data))
    digest = header.fingerprints["calibration"]
    dataset = Dataset(name[:500], digest, "raysearch", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "calibration")])


def _data_name(data: Mapping[str, Any]) -> str:
    """Return the name of a data source: its file, its name in the hub, or the package that contains it."""
    return Path(data["path"]).name if data["source"] == "file" else str(data.get("name", data["source"]))
