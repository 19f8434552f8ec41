"""Refines a search: recovers each of its best masks briefly, once, and evaluates the recovered models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from raysearch.core.digest import digest
from raysearch.core.mask import Mask
from raysearch.core.options import Options
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import ModelFiles
from raysearch.evaluation.session import EvaluationSession
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked
from raysearch.models.spec import ModelInfo
from raysearch.recovery.prompts import check_rows
from raysearch.recovery.recovered_losses import recovered_losses, replicas_of
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.spec import RecoverySpec
from raysearch.searching.events import MaskRecovered, RecoveryHeader
from raysearch.searching.observer import Observer, Prefixed
from raysearch.searching.refinement import RefinedMask, Refinement
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.stats.rank import rank_correlation


@dataclass(frozen=True)
class _RecoveredLosses:
    """The record of a mask after its short recovery: its loss on each calibration, and the cost."""

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
        masks: The number of masks: those with the lowest losses.
        steps: The number of steps of each training; rows are repeated if there are too few.
        recover_with: The data and options of the training.
    """

    section = "refine"

    masks: Annotated[int, Field(ge=2)]
    steps: PositiveInt
    recover_with: RecoverySpec

    @property
    def spec(self) -> RecoverySpec:
        """The recovery of each mask."""
        options = replace(self.recover_with.options, max_steps=self.steps, epochs=float(self.steps))
        return replace(self.recover_with, options=options)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the refined losses, besides the calibration, as JSON values."""
        return {"masks": self.masks, **self._training_identity}

    @property
    def _training_identity(self) -> dict[str, Any]:
        identity = {**self.spec.identity, "files": self.spec.digests}
        return dict(json.loads(json.dumps(identity, default=str)))

    def check(self, info: ModelInfo) -> None:
        """Refuse rows that are longer than the model supports."""
        check_rows(self.spec.data, self.spec.options, info.max_positions)

    def refine(
        self, records: Sequence[SearchRecord], search: SearchSpec, session: EvaluationSession, observer: Observer
    ) -> Refinement:
        """Recover each mask that the ledger does not contain yet, and return all of them with their refined losses.

        Args:
            records: A record for each of the best masks.
            search: The specification of the search.
            session: The session of the search, with its replicas and ledger.
            observer: Receives the progress.

        Returns:
            The masks with their losses before and after, and the rank correlation of both.
        """
        from raysearch.recovery.steps import TEACHER, remove_models  # imports torch

        ledger = session.ledger
        model = session.fingerprints["model"]
        record_by_mask = {record.finished_result.mask: record for record in records}
        identity = [records[0].identifying, self._training_identity]
        name = f"refine-m{records[0].finished_result.n_removed}-{digest(identity, 8)}"
        refined_by_mask: dict[Mask, _RecoveredLosses] = read_assessments(
            ledger, model, name, record_by_mask, _RecoveredLosses
        )
        folder = ledger.path.parent / "recoveries"
        if len(refined_by_mask) < len(record_by_mask):
            with locked(ledger, name, "REFINEMENT", wait=True):
                # while this process waited, another search may have refined some
                refined_by_mask |= read_assessments(ledger, model, name, record_by_mask, _RecoveredLosses)
                for mask, record in record_by_mask.items():
                    if mask not in refined_by_mask:
                        refined_by_mask[mask] = self._recover(record, search, session, folder / name, observer)
                        write_assessment(ledger, model, name, {mask: refined_by_mask[mask]}, _RecoveredLosses)
        with suppress(UserError), locked(ledger, name, "REFINEMENT"):  # if held, another search needs the logits
            shutil.rmtree(folder / name / TEACHER, ignore_errors=True)
        masks = []
        for mask, record in record_by_mask.items():
            refined = refined_by_mask[mask]
            remove_models(folder / refined.recovery_id, self.spec.options)
            loss = session.evaluator.combine(refined.losses)
            training = refined.training
            masks.append(
                RefinedMask(mask, record.finished_result.loss, loss, training.steps, training.tokens, refined.seconds)
            )
        rho = rank_correlation([mask.loss for mask in masks], [mask.recovered_loss for mask in masks])
        first = refined_by_mask[masks[0].mask]
        return Refinement(name, tuple(masks), first.rows, first.left_out, rho)

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Pass the trainings of a search to an observer.

        Args:
            record: The search.
            ledger: The ledger.
            observer: The observer.
        """
        for event in recorded_refinement(ledger, record):
            observer.on_event(event)

    def _recover(
        self, record: SearchRecord, search: SearchSpec, session: EvaluationSession, shared: Path, observer: Observer
    ) -> _RecoveredLosses:
        """Train a mask and evaluate it."""
        from raysearch.assessment.context import AssessmentPlan
        from raysearch.recovery.planned_recovery import prepare
        from raysearch.recovery.steps import RECOVERED, heal

        plan = AssessmentPlan(self.spec.assess, search.evaluation.cluster, session.info, ModelFiles(session.info.model))
        recovery = prepare(record, session.ledger, search, self.spec, None, plan, shared)
        stages: dict[str, float] = {}
        out = recovery.folder / RECOVERED
        mask_observer = Prefixed(f"mask {recovery.mask}: ", observer)
        replicas = None if self.spec.teacher is not None else replicas_of(session)
        evidence, _ = heal(recovery, out, stages, mask_observer, replicas)
        mask_observer.assessing("evaluating the recovered model")
        return _RecoveredLosses(
            recovery_id=recovery.name,
            losses=recovered_losses(recovery.model_in(out, "recovered"), recovery.mask, session),
            rows=evidence.rows,
            left_out=evidence.left_out,
            training=evidence.training,
            seconds=sum(stages.values()),
            settings=self.spec.settings,
        )


def recorded_refinement(ledger: Ledger, record: SearchRecord) -> Iterator[MaskRecovered]:
    """Yield the event of each recovery of a search's refinement.

    Args:
        ledger: The ledger.
        record: The search.

    Yields:
        The event of one mask.
    """
    if (refinement := record.finished_result.refinement) is None:
        return
    losses = {refined.mask: refined.recovered_loss for refined in refinement.masks}
    model = record.finished_result.fingerprints["model"]
    for mask, refined in read_assessments(ledger, model, refinement.refinement_id, losses, _RecoveredLosses).items():
        numbers = {"recovery/rows": refined.rows, "recovery/steps": refined.training.steps, "loss": losses[mask]}
        header = RecoveryHeader(
            refined.recovery_id, mask, "", refined.settings, record.finished_result.space.size_of(mask)
        )
        yield MaskRecovered(record, header, refined.training.points, numbers)
