"""Evaluates recovered models on the calibration of a search, on the same samples as its masks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from raysearch.core.mask import Mask
from raysearch.errors import EvaluationError
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.prepared_data import ModelFiles, PreparedData
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.models.description import describe
from raysearch.models.spec import ModelSpec
from raysearch.searchers.base import Round


def data_for(files: ModelFiles, session: EvaluationSession) -> PreparedData:
    """Return the samples of a search's calibrations for a recovered model.

    Args:
        files: The files of the recovered model.
        session: The session of the search.

    Returns:
        The same samples, under fingerprints of the calibration and the recovered model.
    """
    calibrations = [
        replace(calibration, fingerprint=_combined_fingerprint(calibration.fingerprint, files.fingerprint))
        for calibration in session.calibrations
    ]
    return PreparedData(calibrations, files)


def recovered_losses(model: ModelSpec, mask: Mask, session: EvaluationSession) -> tuple[float, ...]:
    """Return the loss of a recovered model on each calibration of a search.

    Args:
        model: The recovered checkpoint.
        mask: The layers that it lacks, for messages.
        session: The session of the search.

    Returns:
        The losses, in the order of the calibrations.

    Raises:
        EvaluationError: A loss is not finite, or could not be computed.
    """
    info = describe(model)
    data = data_for(ModelFiles(info.model), session)
    spec = replace(session.spec, model=model, weighting=None, screening=None)
    with closing(open_session(spec, info, lambda progress: None, data)) as recovered:
        score = recovered.evaluator.evaluate(Round([Mask()]))[Mask()]
    losses = tuple(loss for loss in score.parts if loss is not None)
    if len(losses) < len(data.calibrations):
        raise EvaluationError(f"mask {mask}: of its recovered model, {score.failure or 'a loss is not finite'}")
    return losses


@contextmanager
def replicas_of(session: EvaluationSession) -> Iterator[Callable[[], Pool]]:
    """Yield the search's replicas, and close them after the context: the training needs their memory."""
    yield lambda: session.evaluator.pool
    session.evaluator.release_pool()


def _combined_fingerprint(calibration: str, model_files: str) -> str:
    """Return the fingerprint of a calibration for a recovered model."""
    return hashlib.sha256((calibration + model_files).encode()).hexdigest()[:32]
