"""From an `EvaluationSpec` to an evaluator, with the model's shape, its calibrations and the ledger.

Mistakes in the data, the tokenizer and the model's shape are found here, before any weights are loaded. Replicas start
when something has to be computed for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.calibration.batch import Form
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.json import digest
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import UserError
from raysearch.evaluation.drawing import ModelFiles, draw
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.progress import Progress
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec, identity_of
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.models.kept import Kept
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo


@dataclass(frozen=True)
class EvaluationSession:
    """A model with its calibrations, ready to evaluate masks.

    Args:
        fingerprints: Of ``calibration``, ``model`` and ``text``; of a weighted calibration its ``parts`` too, by whose
            fingerprints evaluations are kept, with spaces between them.
        keep: Keeps what was read of files beside the ledger, if that was not yet possible; called after a search.
    """

    info: ModelInfo
    calibrations: Sequence[Calibration]
    measure: Measure
    fingerprints: dict[str, str]
    ledger: Ledger
    evaluator: Evaluator
    keep: Callable[[], object] = lambda: None

    @property
    def fingerprint(self) -> str:
        """The name of everything that a loss depends on besides the mask."""
        return self.fingerprints["calibration"]

    @property
    def n_tokens(self) -> int:
        """Scored tokens of all calibrations."""
        return sum(calibration.n_tokens for calibration in self.calibrations)

    @property
    def n_samples(self) -> int:
        """Samples of all calibrations."""
        return sum(calibration.n_samples for calibration in self.calibrations)

    def delta_errors(self, masks: Sequence[Mask]) -> list[float | None]:
        """Return the standard errors of masks' losses minus the dense model's; None for those of a weighted sum."""
        if len(self.calibrations) > 1:
            return [None for _ in masks]
        return standard_errors(self.calibrations[0], self.ledger, masks, Mask())

    def close(self) -> None:
        """Close the evaluator and the ledger. Closing twice is harmless."""
        try:
            self.evaluator.close()
        finally:
            self.ledger.close()


@dataclass(frozen=True)
class PreparedData:
    """The data and the facts of a model that are read before a search."""

    calibrations: Sequence[Calibration]
    files: ModelFiles


def open_session(
    spec: EvaluationSpec,
    info: ModelInfo,
    on_progress: Callable[[Progress], None],
    prepared: PreparedData | None = None,
    make_pool: Callable[[], Pool] | None = None,
) -> EvaluationSession:
    """Read the data, unless they are prepared, then open the ledger.

    No weights are loaded, and nothing is left behind if something is wrong. Without `make_pool` the pool is opened as
    `spec.cluster` says.

    Raises:
        UserError: Something the user named is not there, too small, or does not fit together.
    """
    spec.cluster.check_model(info.model)
    kept = Kept(info.model.cache)
    is_kept = prepared is not None or (kept.is_open and info.model.gguf is None)
    prepared = prepared or prepare_data(spec, info)
    calibrations = prepared.calibrations
    ledger = Ledger(spec.ledger)
    evaluator = Evaluator(
        calibrations=calibrations,
        n_layers=info.n_layers,
        ledger=ledger,
        make_pool=make_pool or (lambda: spec.cluster.open(info, sum(one.n_shards for one in calibrations))),
        weighting=spec.weighting,
        screening=spec.screening,
        on_progress=on_progress,
    )
    fingerprints = {
        "calibration": joint_fingerprint([one.fingerprint for one in calibrations], spec.weighting),
        "model": prepared.files.fingerprint,
        "text": joint_fingerprint([one.text_fingerprint for one in calibrations], spec.weighting),
    }
    if spec.weighting is not None:
        fingerprints["parts"] = " ".join(one.fingerprint for one in calibrations)
    measure = calibrations[0].measure if spec.weighting is None else spec.weighting.measure

    def keep() -> None:
        if not is_kept:
            kept.open()
            prepare_data(spec, describe(spec.model))  # a GGUF file is there as safetensors by now

    return EvaluationSession(info, calibrations, measure, fingerprints, ledger, evaluator, keep)


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
    several = len(spec.calibrations) > 1
    calibrations = [_read(one, files, identity, info, f"{one.name}: " * several) for one in spec.calibrations]
    return PreparedData(calibrations, files)


def _read(
    spec: CalibrationSpec, files: ModelFiles, identity: dict[str, Any], info: ModelInfo, where: str
) -> Calibration:
    """Return a calibration; `where` stands before what is wrong with its data."""
    try:
        drawn = draw(spec.data, spec.objective.form, files, info.max_positions)
    except UserError as error:
        raise UserError(*(f"{where}{one}" for one in error.sentences)) from error
    highest = int(drawn.batch.input_ids.max())
    if highest >= info.vocab_size:
        raise UserError(
            f"the tokenizer of model={info.model.name} gives token {highest}, but the model has {info.vocab_size} in "
            "its vocabulary; use the tokenizer that the model was made with"
        )
    spec.objective.check_samples(drawn.batch)
    whole = {**identity, "objective": identity_of(spec.objective)}
    if spec.objective.form is Form.PROMPT:
        whole["writing"] = files.writing_fingerprint
    return Calibration.create(spec.objective, drawn.batch, spec.data.draw.shard_samples, whole, drawn.description)


def joint_fingerprint(fingerprints: Sequence[str], weighting: WeightedObjective | None) -> str:
    """Return the name of all parts and their weights; without weights, that of the first part."""
    if weighting is None:
        return fingerprints[0]
    return digest([*fingerprints, identity_of(weighting)], 32)
