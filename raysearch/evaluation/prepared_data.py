"""Prepares the calibrations of a model from its files and data files, or from the cache of the same files.

Errors in the data, the tokenizer and the model's shape are detected here, before any weights are loaded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from typing_extensions import override

from raysearch.calibration.batch import Batch, Choices, Form
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data, Drawn
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.digest import digest
from raysearch.core.json import from_json, to_json
from raysearch.errors import UserError, within
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec, identity_of
from raysearch.generation.answer import Answer
from raysearch.models.file_cache import FileCache, identity_of_files
from raysearch.models.loading import (
    fingerprint,
    load_processor,
    load_tokenizer,
    tokenizer_fingerprint,
    writing_fingerprint,
)
from raysearch.models.spec import LocatedModel, ModelInfo

#: The version of drawing and tokenising. It increases when the same data and tokenizer give different samples, so that
#: samples in the cache that an earlier version drew are drawn again.
_ENCODING = 2
_ARRAYS = ("input_ids", "scored", "attention_mask")
_CHOICES = tuple(Choices.__dataclass_fields__)
_ANSWERS: Any = tuple[Answer, ...] | None


@dataclass(frozen=True)
class ModelFiles:
    """The facts of a model's files. Each is computed on first use, or read from the cache.

    Args:
        model: The model.
    """

    model: LocatedModel

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the weights. This reads all of them."""
        return fingerprint(self.model)

    @cached_property
    def writing_fingerprint(self) -> str:
        """The fingerprint of the files, besides the weights, that decide how the model generates text."""
        return writing_fingerprint(self.model)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded on first use."""
        return load_tokenizer(self.model)

    @cached_property
    def processor(self) -> Any:
        """The processor of images, loaded on first use."""
        return load_processor(self.model)

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """The fingerprint of everything that turns text into token ids."""
        if self.identity is None:
            return tokenizer_fingerprint(self.tokenizer)
        cache = FileCache(self.model.cache)
        key = {"tokenizer": self.identity}
        if (cached_bytes := cache.get(key)) is not None:
            return cached_bytes.decode()
        name = tokenizer_fingerprint(self.tokenizer)
        if identity_of_files(self.model) == self.identity:  # no file changed while it was read
            cache.put(key, name.encode())
        return name

    @cached_property
    def identity(self) -> Mapping[str, Any] | None:
        """The cache key of the tokenizer; None if it does not come from local files."""
        return identity_of_files(self.model)


@dataclass(frozen=True)
class UnnamedFiles(ModelFiles):
    """The facts of a model's files if no result is stored under its fingerprint, so that its weights are not read."""

    @cached_property
    @override
    def fingerprint(self) -> str:
        """An empty text, in place of a fingerprint."""
        return ""


@dataclass(frozen=True)
class PreparedData:
    """The data that a search needs before it starts.

    Args:
        calibrations: The calibrations, with their samples.
        files: The facts of the model's files.
    """

    calibrations: Sequence[Calibration]
    files: ModelFiles


def prepare_data(spec: EvaluationSpec, info: ModelInfo, files: ModelFiles | None = None) -> PreparedData:
    """Draw and tokenise the samples of each calibration.

    Args:
        spec: How masks are evaluated.
        info: The model.
        files: The facts of the model's files, if some have been computed; these are not computed again.

    Returns:
        The calibrations, in the order of the specification, and the facts of the model's files.

    Raises:
        UserError: Data cannot be read, hold too little, or do not fit the objective, the model or its tokenizer.
    """
    spec.check_data()
    files = files or ModelFiles(info.model)
    identity = {
        "tokenizer": files.tokenizer_fingerprint,  # first: a missing tokenizer is an error before weights are read
        "model": files.fingerprint,
        **info.numerics,
        "threads": spec.cluster.cpus_per_replica,
    }
    calibrations = []
    for calibration_spec in spec.calibrations:
        read = partial(_read, calibration_spec, files, identity, info)
        is_single = len(spec.calibrations) == 1
        calibrations.append(read() if is_single else within(calibration_spec.name, read))
    return PreparedData(calibrations, files)


def joint_fingerprint(fingerprints: Sequence[str], weighting: WeightedObjective | None) -> str:
    """Return the fingerprint of several calibrations and their weights.

    Args:
        fingerprints: The fingerprint of each calibration.
        weighting: How their losses are combined; None to return the first fingerprint.

    Returns:
        The fingerprint of the one calibration, or a digest of 32 hexadecimal digits.
    """
    if weighting is None:
        return fingerprints[0]
    return digest([*fingerprints, identity_of(weighting)], 32)


def _read(spec: CalibrationSpec, files: ModelFiles, identity: dict[str, Any], info: ModelInfo) -> Calibration:
    drawn = _draw(spec.data, spec.objective.form, files, info.max_positions)
    highest = int(drawn.batch.input_ids.max())
    if highest >= info.vocab_size:
        raise UserError(
            f"the tokenizer of model={info.model.name} gives token {highest}, but the model has {info.vocab_size} in "
            "its vocabulary; use the tokenizer that the model was made with"
        )
    spec.objective.check_samples(drawn.batch)
    whole = {**identity, "objective": identity_of(spec.objective)}
    kind = type(spec.objective)
    module = kind.__module__.rpartition(".")[2]
    # A copied file may define a class of the same name.
    if kind.__name__.lower() != f"{module.replace('_', '')}objective":
        whole["module"] = module
    if spec.objective.form is Form.PROMPT:
        whole["writing"] = files.writing_fingerprint
    return Calibration.create(
        spec.objective, drawn.batch, spec.data.draw.shard_samples, whole, drawn.description, spec.repair
    )


def _draw(data: Data, form: Form, files: ModelFiles, max_positions: int | None) -> Drawn:
    """Draw samples as `Data.samples` does, or read them from the cache."""
    if data.format.has_images:  # in files that the rows name: no cache would know of their changes
        return data.samples(files.tokenizer, form, max_positions, files.processor)
    cache = FileCache(files.model.cache)
    key = _cache_key(data, form, files, max_positions, cache)
    if key is None:
        return data.samples(files.tokenizer, form, max_positions)
    if (cached_bytes := cache.get(key)) is not None:
        return _from_bytes(cached_bytes)
    drawn = data.samples(files.tokenizer, form, max_positions)
    # Files may have changed meanwhile.
    is_unchanged = _cache_key(data, form, ModelFiles(files.model), max_positions, cache) == key
    if is_unchanged and json.loads(json.dumps(drawn.description)) == drawn.description:
        cache.put(key, _to_bytes(drawn))
    return drawn


def _cache_key(
    data: Data, form: Form, files: ModelFiles, max_positions: int | None, cache: FileCache
) -> Mapping[str, Any] | None:
    """Return the cache key of the samples, or None if they do not come from local files."""
    rows = data.rows.files()
    if files.identity is None or rows is None or data.used is not None:
        return None
    return {
        "encoding": _ENCODING,
        "samples": [identity_of(data.rows), identity_of(data.format), identity_of(data.draw), form.value],
        "described": data.rows.describe(),
        "tokenizer": files.identity,
        "max_positions": max_positions,
        "rows": {str(file): cache.sha256(file) for file in rows},
    }


def _to_bytes(drawn: Drawn) -> bytes:
    batch = drawn.batch
    arrays = {name: getattr(batch, name) for name in _ARRAYS if getattr(batch, name) is not None}
    if batch.choices is not None:
        arrays |= vars(batch.choices)
    text = json.dumps([drawn.description, to_json(batch.answers, _ANSWERS)])
    file = io.BytesIO()
    np.savez_compressed(file, text=np.array(text), **arrays)
    return file.getvalue()


def _from_bytes(content: bytes) -> Drawn:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    description, answers = json.loads(str(arrays.pop("text")))
    choices = {name: arrays.pop(name) for name in _CHOICES if name in arrays}
    batch = Batch(**arrays, choices=Choices(**choices) if choices else None, answers=from_json(_ANSWERS, answers))
    return Drawn(batch, description)
