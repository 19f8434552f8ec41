"""A short recovery of the best masks of a search, each once, after which they are evaluated as the search does."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

from raysearch.core.digest import digest
from raysearch.core.estimate import rank_correlation
from raysearch.core.mask import Mask
from raysearch.core.options import Options
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.prepared_data import ModelFiles, PreparedData
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import held
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo
from raysearch.recovery.prompts import check_rows
from raysearch.recovery.record import Training
from raysearch.recovery.spec import RecoverSpec
from raysearch.searchers.base import Round
from raysearch.searching.observer import LossPoint, Observer, Prefixed, RecoveryHeader
from raysearch.searching.record import SearchRecord
from raysearch.searching.result import RefinedMask, Refinement
from raysearch.searching.spec import SearchSpec

if TYPE_CHECKING:  # these bring torch and trl, which a search that the ledger answers does without
    from raysearch.recovery.steps import Recovery


@dataclass(frozen=True)
class _Refined:
    """The record of a mask after its short recovery: its loss on each calibration, and what that cost."""

    recovery_id: str
    losses: tuple[float, ...]
    rows: int
    left_out: Mapping[str, int]
    training: Training
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecoveryRefiner(Options):
    """Trains the best masks of a search for a few steps on the same rows.

    Args:
        masks: How many of the best masks, by their losses.
        steps: Steps of each training; rows are seen again where they are too few.
        recover_with: What to train on, and how.
    """

    section = "refine"

    masks: Annotated[int, Field(ge=2)]
    steps: PositiveInt
    recover_with: RecoverSpec

    @property
    def spec(self) -> RecoverSpec:
        """The recovery of each mask."""
        options = replace(self.recover_with.options, max_steps=self.steps, epochs=float(self.steps))
        return replace(self.recover_with, options=options)

    def on_own_data(self, searched: EvaluationSpec, config: Mapping[str, Any]) -> RecoveryRefiner:
        """Return the same on the data of a search and its configuration, unless other data were chosen."""
        return replace(self, recover_with=self.recover_with.on_own_data(searched, config) or self.recover_with)

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that the losses after it depend on besides the masks and the calibration, JSON values."""
        return {"masks": self.masks, **self._identity_of_training}

    @property
    def _identity_of_training(self) -> dict[str, Any]:
        identity = {**self.spec.identity, "files": self.spec.digests}
        return dict(json.loads(json.dumps(identity, default=str)))

    def check(self, info: ModelInfo) -> None:
        """Refuse rows that are longer than the model takes."""
        check_rows(self.spec.data, self.spec.options, info.max_positions)

    def refine(
        self, found: Sequence[SearchRecord], search: SearchSpec, session: EvaluationSession, observer: Observer
    ) -> Refinement:
        """Train the masks that the ledger has not yet, and return them all, with their losses after it."""
        from raysearch.recovery.steps import TEACHER, remove_models  # which brings torch

        ledger, model = session.ledger, session.fingerprints["model"]
        masks = {record.found.mask: record for record in found}
        identity = [found[0].identifying, self._identity_of_training]
        name = f"refine-m{len(found[0].found.removed)}-{digest(identity, 8)}"
        known: dict[Mask, _Refined] = read_assessments(ledger, model, name, masks, _Refined)
        folder = ledger.path.parent / "recoveries"
        if len(known) < len(masks):
            with held(ledger, name, "REFINEMENT", wait=True):
                known |= read_assessments(ledger, model, name, masks, _Refined)  # of another search, meanwhile
                for mask, record in masks.items():
                    if mask not in known:
                        known[mask] = self._recover(record, search, session, folder / name, observer)
                        write_assessment(ledger, model, name, {mask: known[mask]}, _Refined)
        with suppress(UserError), held(ledger, name, "REFINEMENT"):  # else another search trains by them
            shutil.rmtree(folder / name / TEACHER, ignore_errors=True)
        refined = []
        for mask, record in masks.items():
            one = known[mask]
            remove_models(folder / one.recovery_id, self.spec.options)
            loss, training = session.evaluator.combine(one.losses), one.training
            refined.append(RefinedMask(mask, record.found.loss, loss, training.steps, training.tokens, one.seconds))
        rho = rank_correlation([one.loss for one in refined], [one.recovered_loss for one in refined])
        first = known[refined[0].mask]
        return Refinement(name, tuple(refined), first.rows, first.left_out, rho)

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Give the trainings of a search to an observer."""
        for recovered in recorded_refinement(ledger, record):
            observer.recovered(record, *recovered)

    def _recover(
        self, record: SearchRecord, search: SearchSpec, session: EvaluationSession, shared: Path, observer: Observer
    ) -> _Refined:
        """Train a mask and evaluate it."""
        from raysearch.assessment.context import AssessmentPlan
        from raysearch.recovery.steps import RECOVERED, heal, prepare

        plan = AssessmentPlan(self.spec.assess, search.evaluation.cluster, session.info, ModelFiles(session.info.model))
        recovery, stages = prepare(record, session.ledger, search, self.spec, None, plan, shared), dict[str, float]()
        out, telling = recovery.folder / RECOVERED, Prefixed(f"mask {recovery.mask}: ", observer)
        found, _ = heal(recovery, out, stages, telling, _replicas_of(session))
        telling.assessing("evaluating the recovered model")
        losses = _losses(recovery, out, session)
        seconds, settings = sum(stages.values()), self.spec.settings
        return _Refined(recovery.name, losses, found.rows, found.left_out, found.training, seconds, settings)


def recorded_refinement(
    ledger: Ledger, record: SearchRecord
) -> Iterator[tuple[RecoveryHeader, Sequence[LossPoint], Mapping[str, float]]]:
    """Yield the recoveries of a search's best masks, if it made any, with their losses and numbers, for trackers."""
    if (refinement := record.found.refinement) is None:
        return
    losses, model = {one.mask: one.recovered_loss for one in refinement.masks}, record.found.fingerprints["model"]
    for mask, one in read_assessments(ledger, model, refinement.refinement_id, losses, _Refined).items():
        numbers = {"recovery/rows": one.rows, "recovery/steps": one.training.steps, "loss": losses[mask]}
        yield RecoveryHeader(one.recovery_id, mask, "", one.settings), one.training.points, numbers


@contextmanager
def _replicas_of(session: EvaluationSession) -> Iterator[Callable[[], Pool]]:
    """Give the search's own replicas, which are then closed: the training needs their memory."""
    yield lambda: session.evaluator.pool
    session.evaluator.rest()


def _losses(recovery: Recovery, out: Path, session: EvaluationSession) -> tuple[float, ...]:
    """Return the loss of a recovered model on each calibration of the search: on the very samples of its masks."""
    evaluation = recovery.search.evaluation
    model = recovery.model_in(out, "recovered")
    info = describe(model)
    files = ModelFiles(info.model)
    calibrations = [
        replace(one, fingerprint=hashlib.sha256((one.fingerprint + files.fingerprint).encode()).hexdigest()[:32])
        for one in session.calibrations
    ]
    plain = replace(evaluation, model=model, weighting=None, screening=None)
    with closing(open_session(plain, info, lambda progress: None, PreparedData(calibrations, files))) as recovered:
        found = recovered.evaluator.evaluate(Round([Mask()]))[Mask()]
    losses = tuple(loss for loss in found.parts if loss is not None)
    if len(losses) < len(calibrations):
        raise EvaluationError(
            f"mask {recovery.mask}: of its recovered model, {found.failure or 'a loss is not finite'}"
        )
    return losses
