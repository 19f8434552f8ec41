"""From an `EvaluationSpec` to an evaluator, with the model's shape, its calibrations and the ledger.

Replicas start when something has to be computed for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import UserError
from raysearch.evaluation.costs import head_cost, n_units
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.prepared_data import PreparedData, joint_fingerprint, prepare_data
from raysearch.evaluation.progress import Progress
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.models.file_cache import FileCache
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo


@dataclass(frozen=True)
class EvaluationSession:
    """A model with its calibrations, ready to evaluate masks."""

    info: ModelInfo
    calibrations: Sequence[Calibration]
    measure: Measure
    #: Of ``calibration``, ``model`` and ``text``; of a weighted calibration its ``parts`` too, by whose fingerprints
    #: evaluations are kept, with spaces between them.
    fingerprints: dict[str, str]
    ledger: Ledger
    evaluator: Evaluator
    #: Keeps what follows from files, of a GGUF file as it is kept by then; called after a search.
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


def open_session(
    spec: EvaluationSpec,
    info: ModelInfo,
    on_progress: Callable[[Progress], None],
    prepared: PreparedData | None = None,
    make_pool: Callable[[], Pool] | None = None,
    n_passes: float = 1,
) -> EvaluationSession:
    """Read the data, unless they are prepared, then open the ledger; no weights are loaded.

    Nothing is left behind if something is wrong.

    Args:
        spec: What is evaluated, and where.
        info: The model.
        on_progress: Called whenever something has been computed.
        prepared: The data, where they are prepared.
        make_pool: Gives the replicas; None to open a pool as `spec.cluster` says.
        n_passes: Runs of the whole model on each shard that the largest round is worth. They keep as many replicas
            busy, and so many are opened where `spec.cluster` leaves the number open.

    Raises:
        UserError: Something the user named is not there, too small, or does not fit together.
    """
    spec.cluster.check_model(info.model)
    spec.cluster.check_cluster()
    cache = FileCache(info.model.cache)
    is_kept = prepared is not None or cache.folder is None or info.model.gguf is None
    prepared = prepared or prepare_data(spec, info)
    calibrations = prepared.calibrations

    def open_pool() -> Pool:
        if info.model.gguf is not None:
            often = "each time" if info.model.keep_in is None else "once"
            on_progress(Progress(loading=f"reading and converting {info.model.gguf} ({often})"))
        elif info.model.is_hub:
            on_progress(Progress(loading=f"reading the weights of {info.model.name}, downloading them if they are new"))
        return spec.cluster.open(info, n_units(calibrations, n_passes))

    with ExitStack() as unless_it_opens:
        ledger = unless_it_opens.enter_context(closing(Ledger(spec.ledger)))
        evaluator = Evaluator(
            calibrations=calibrations,
            n_layers=info.n_layers,
            ledger=ledger,
            make_pool=make_pool or open_pool,
            weighting=spec.weighting,
            head_cost=head_cost(info),
            screening=spec.screening,
            on_progress=on_progress,
        )
        unless_it_opens.pop_all()
    fingerprints = {
        "calibration": joint_fingerprint([one.fingerprint for one in calibrations], spec.weighting),
        "model": prepared.files.fingerprint,
        "text": joint_fingerprint([one.text_fingerprint for one in calibrations], spec.weighting),
    }
    if spec.weighting is not None:
        fingerprints["parts"] = " ".join(one.fingerprint for one in calibrations)

    def keep() -> None:
        cache.trim()
        if is_kept:
            return
        local = [one for one in spec.calibrations if not info.model.is_hub and one.data.rows.files() is not None]
        with suppress(UserError):  # files may be gone, or have changed, since
            prepare_data(replace(spec, calibrations=local), describe(spec.model))  # of a GGUF file, as safetensors now

    return EvaluationSession(info, calibrations, spec.measure, fingerprints, ledger, evaluator, keep)
