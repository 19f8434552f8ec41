"""Opens a session: an evaluator, with the model's shape, its calibrations and the ledger, from an `EvaluationSpec`.

Replicas start when something must be computed for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.evaluation.costs import head_cost, n_units
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import JoinedCluster, Pool
from raysearch.evaluation.prepared_data import PreparedData, joint_fingerprint, prepare_data
from raysearch.evaluation.progress import Progress
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.file_cache import FileCache
from raysearch.models.spec import ModelInfo


@dataclass(frozen=True)
class EvaluationSession:
    """A model with its calibrations, ready to evaluate masks.

    Args:
        spec: How masks are evaluated.
        info: The model.
        calibrations: The calibrations.
        fingerprints: The fingerprints of the ``calibration``, the ``model`` and the ``text``. A weighted calibration
            has ``parts``, too: the fingerprints of its calibrations, under which evaluations are stored, joined by
            spaces.
        ledger: The ledger.
        evaluator: The evaluator.
        cluster: The cluster of its replicas; None if the replicas outlive the session.
        converts_gguf: Whether the replicas convert a GGUF file. The samples can be cached only after that.
    """

    spec: EvaluationSpec
    info: ModelInfo
    calibrations: Sequence[Calibration]
    fingerprints: dict[str, str]
    ledger: Ledger
    evaluator: Evaluator
    cluster: JoinedCluster | None = None
    converts_gguf: bool = False

    @property
    def measure(self) -> Measure:
        """The unit of a mask's loss."""
        return self.spec.measure

    @property
    def fingerprint(self) -> str:
        """The fingerprint of everything, besides the mask, that a loss depends on."""
        return self.fingerprints["calibration"]

    @property
    def n_tokens(self) -> int:
        """The scored tokens of all calibrations."""
        return sum(calibration.n_tokens for calibration in self.calibrations)

    @property
    def n_samples(self) -> int:
        """The number of samples of all calibrations."""
        return sum(calibration.n_samples for calibration in self.calibrations)

    def delta_errors(self, masks: Sequence[Mask]) -> list[float | None]:
        """Return the standard errors of masks' losses minus the dense model's; None if several losses are combined."""
        if len(self.calibrations) > 1:
            return [None for _ in masks]
        return standard_errors(self.calibrations[0], self.ledger, masks, Mask())

    def update_cache(self) -> None:
        """Delete values of the cache that have not been used for long; cache the samples of a converted GGUF file."""
        FileCache(self.info.model.cache).trim()
        if not self.converts_gguf:
            return
        of_files = [calibration for calibration in self.spec.calibrations if calibration.data.rows.files() is not None]
        with suppress(UserError):  # files may have been deleted or changed since
            info = describe(self.spec.model)  # of the safetensors that the GGUF file was converted to
            prepare_data(replace(self.spec, calibrations=of_files), info)

    def close(self) -> None:
        """Close the evaluator and the ledger, and leave the cluster. Closing twice is harmless."""
        with closing(self.ledger), ExitStack() as stack:
            if self.cluster is not None:
                stack.enter_context(closing(self.cluster))
            self.evaluator.close()


def open_session(
    spec: EvaluationSpec,
    info: ModelInfo,
    on_progress: Callable[[Progress], None],
    prepared: PreparedData | None = None,
    make_pool: Callable[[], Pool] | None = None,
    n_passes: float = 1,
    removable: Sites | None = None,
) -> EvaluationSession:
    """Read the data, unless they are prepared, then open the ledger; no weights are loaded.

    After an error, nothing stays open.

    Args:
        spec: How masks are evaluated.
        info: The model.
        on_progress: Called whenever something has been computed.
        prepared: The data, if they are prepared already.
        make_pool: Returns the pool of replicas; None to open the pool of `spec.cluster`.
        n_passes: The cost of the largest round on each shard, in forwards of the whole model. It decides how many
            replicas are opened if `spec.cluster` does not.
        removable: The sites that masks remove; None for the layers.

    Returns:
        The session, which the caller closes.

    Raises:
        UserError: The cluster does not answer, or the data are missing, too small, or do not fit the model.
    """
    spec.cluster.check_model(info.model)
    converts_gguf = prepared is None and info.model.gguf is not None and info.model.cache is not None
    with ExitStack() as on_error:
        cluster = None
        if make_pool is None:
            cluster = on_error.enter_context(closing(spec.cluster.join()))  # first: it may not answer
        prepared = prepared or prepare_data(spec, info)
        calibrations = prepared.calibrations
        ledger = on_error.enter_context(closing(Ledger(spec.ledger)))

        def open_pool() -> Pool:
            assert cluster is not None, "without a pool from the caller, the cluster is joined"
            if info.model.gguf is not None:
                how_often = "each time" if info.model.copy_folder is None else "once"
                on_progress(Progress(loading=f"reading and converting {info.model.gguf} ({how_often})"))
            elif info.model.is_hub:
                message = f"reading the weights of {info.model.name}, downloading them if they are new"
                on_progress(Progress(loading=message))
            return cluster.open(info, n_units(calibrations, n_passes))

        evaluator = Evaluator(
            calibrations=calibrations,
            sites=info.sites,
            ledger=ledger,
            make_pool=make_pool or open_pool,
            weighting=spec.weighting,
            head_cost=head_cost(info),
            screening=spec.screening,
            removable=removable,
            on_progress=on_progress,
        )
        on_error.pop_all()
    fingerprints = {
        "calibration": joint_fingerprint([calibration.fingerprint for calibration in calibrations], spec.weighting),
        "model": prepared.files.fingerprint,
        "text": joint_fingerprint([calibration.text_fingerprint for calibration in calibrations], spec.weighting),
    }
    if spec.weighting is not None:
        fingerprints["parts"] = " ".join(calibration.fingerprint for calibration in calibrations)

    return EvaluationSession(spec, info, calibrations, fingerprints, ledger, evaluator, cluster, converts_gguf)
