"""The calibrations of a model, made of its files and those of its data, or of what was kept of the same files before.

Mistakes in the data, the tokenizer and the model's shape are found here, before any weights are loaded.
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
from raysearch.models.loading import fingerprint, load_tokenizer, tokenizer_fingerprint, writing_fingerprint
from raysearch.models.spec import LocatedModel, ModelInfo

#: Raised when the same data and tokenizer make other samples, so that those of an earlier version are drawn anew.
_ENCODING = 2
_ARRAYS = ("input_ids", "scored", "attention_mask")
_CHOICES = tuple(Choices.__dataclass_fields__)
_ANSWERS: Any = tuple[Answer, ...] | None


@dataclass(frozen=True)
class ModelFiles:
    """The facts of a model's files, each worked out when it is first asked for, or kept from before."""

    model: LocatedModel

    @cached_property
    def fingerprint(self) -> str:
        """The name of the weights, made by reading them all."""
        return fingerprint(self.model)

    @cached_property
    def writing_fingerprint(self) -> str:
        """The name of the files by which the model writes texts, besides the weights."""
        return writing_fingerprint(self.model)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded on first use."""
        return load_tokenizer(self.model)

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """The name of everything that turns text into token ids."""
        if self.identity is None:
            return tokenizer_fingerprint(self.tokenizer)
        cache, key = FileCache(self.model.cache), {"tokenizer": self.identity}
        if (known := cache.get(key)) is not None:
            return known.decode()
        found = tokenizer_fingerprint(self.tokenizer)
        if identity_of_files(self.model) == self.identity:  # else a file was changed while it was read
            cache.put(key, found.encode())
        return found

    @cached_property
    def identity(self) -> Mapping[str, Any] | None:
        """All that the tokenizer follows from; None where that is not known."""
        return identity_of_files(self.model)


@dataclass(frozen=True)
class UnnamedFiles(ModelFiles):
    """The facts of a model's files where nothing is kept under its name, so that its weights need not be read."""

    @cached_property
    @override
    def fingerprint(self) -> str:
        """No name."""
        return ""


@dataclass(frozen=True)
class PreparedData:
    """The data and the facts of a model that are read before a search."""

    calibrations: Sequence[Calibration]
    files: ModelFiles


def prepare_data(spec: EvaluationSpec, info: ModelInfo, files: ModelFiles | None = None) -> PreparedData:
    """Draw and tokenise the samples of each calibration; what is known of the model's `files` is not read again.

    Raises:
        UserError: Data cannot be read, hold too little, or do not fit the objective, the model or its tokenizer.
    """
    spec.check_data()
    files = files or ModelFiles(info.model)
    identity = {
        "tokenizer": files.tokenizer_fingerprint,  # first: a tokenizer that is missing is found before weights are read
        "model": files.fingerprint,
        **info.numerics,
        "threads": spec.cluster.cpus_per_replica,
    }
    reading = [(one.name, partial(_read, one, files, identity, info)) for one in spec.calibrations]
    several = len(spec.calibrations) > 1
    return PreparedData([within(name, read) if several else read() for name, read in reading], files)


def joint_fingerprint(fingerprints: Sequence[str], weighting: WeightedObjective | None) -> str:
    """Return the name of all parts and their weights; without weights, that of the first part."""
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
    if kind.__name__.lower() != f"{module.replace('_', '')}objective":  # as in a copied file: another may be called so
        whole["module"] = module
    if spec.objective.form is Form.PROMPT:
        whole["writing"] = files.writing_fingerprint
    return Calibration.create(spec.objective, drawn.batch, spec.data.draw.shard_samples, whole, drawn.description)


def _draw(data: Data, form: Form, files: ModelFiles, max_positions: int | None) -> Drawn:
    """Draw samples as `Data.samples` does; those that were drawn before are taken from the cache."""
    cache = FileCache(files.model.cache)
    identity = _identity(data, form, files, max_positions, cache)
    if identity is None:
        return data.samples(files.tokenizer, form, max_positions)
    if (known := cache.get(identity)) is not None:
        return _from_bytes(known)
    drawn = data.samples(files.tokenizer, form, max_positions)
    same = _identity(data, form, ModelFiles(files.model), max_positions, cache) == identity  # nothing changed meanwhile
    if same and json.loads(json.dumps(drawn.description)) == drawn.description:
        cache.put(identity, _to_bytes(drawn))
    return drawn


def _identity(
    data: Data, form: Form, files: ModelFiles, max_positions: int | None, cache: FileCache
) -> Mapping[str, Any] | None:
    """Return all that the samples follow from; None where that is not in local files alone."""
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
