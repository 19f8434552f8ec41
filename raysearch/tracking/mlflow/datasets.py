"""The calibration of a search, and the texts of an assessment, as datasets of MLflow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag

from raysearch.search.observer import Text
from raysearch.search.result import SearchHeader


def calibration_input(header: SearchHeader) -> DatasetInput:
    """Return the samples that a search judges masks on, several calibrations as one dataset."""
    name = " + ".join(dict.fromkeys(map(_name, header.data)))
    return _input(name, header.fingerprints["calibration"], header.data, "calibration")


def text_input(name: str, text: Text) -> DatasetInput:
    """Return a text that masks were assessed on, by the assessment's name for it."""
    rows = {"samples": text.n_samples, "n_tokens": text.n_tokens}
    return _input(name, text.fingerprint, [{**text.data, **rows}], "assessment")


def _input(name: str, digest: str, data: Sequence[Mapping[str, Any]], context: str) -> DatasetInput:
    kind, source = _source(data)
    profile = {"num_rows": sum(one["samples"] for one in data), "num_tokens": sum(one["n_tokens"] for one in data)}
    dataset = Dataset(name[:500], digest, kind, json.dumps(source), profile=json.dumps({**profile, "data": list(data)}))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def _source(data: Sequence[Mapping[str, Any]]) -> tuple[str, Any]:
    """Return the kind of source and the source, so that ``mlflow.data.get_source`` finds files and the hub's."""
    first = data[0]
    if len(data) == 1 and first["source"] == "file":
        return "local", {"uri": first["path"]}
    if len(data) == 1 and first["source"] == "hub":
        return "hugging_face", {"path": first["name"], "config_name": first.get("config"), "split": first["split"]}
    return "raysearch", list(data)


def _name(one: Mapping[str, Any]) -> str:
    """Return what people call the rows: the file, the hub's name, or the package that has them."""
    return Path(one["path"]).name if one["source"] == "file" else str(one.get("name", one["source"]))
