"""Runs the stages of a search that removes layers and recovers the model in turns. Each stage is done once.

Stage k searches the recovered model of stage k - 1 on the samples of the whole search, and recovers it without the
layers that it found. All stages train on the same rows. The original model is their teacher.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from raysearch.assessment.assess import check_tasks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.overlap import SeenTexts
from raysearch.checkpoints.adapter import ADAPTER_FOLDER
from raysearch.core.digest import digest
from raysearch.core.mask import Mask
from raysearch.core.versions import VERSION
from raysearch.evaluation.prepared_data import ModelFiles, PreparedData
from raysearch.evaluation.session import EvaluationSession
from raysearch.models.description import describe
from raysearch.models.export import replacing
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.recovery.checkpoint import RecoveryEvidence, why_not_replaced, write_card, written_by
from raysearch.recovery.planned_recovery import check_first_gpu, has_rows, prepare, required_numbers
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import draw_prompts
from raysearch.recovery.recover import assess_models
from raysearch.recovery.recovered_losses import data_for, recovered_losses, replicas_of
from raysearch.recovery.recovery_record import (
    RecoveryRecord,
    RepairedCut,
    Training,
    side_by_side,
    write_recovery,
)
from raysearch.recovery.spec import RecoverySpec
from raysearch.recovery.stage_record import StageRecord, read_stage, write_stage
from raysearch.recovery.steps import (
    RECOVERED,
    TEACHER,
    describe_data,
    heal,
    remove_copies,
    remove_models,
)
from raysearch.searching.events import LossPoint
from raysearch.searching.observer import Observer, Prefixed
from raysearch.searching.result import SearchResult
from raysearch.searching.run import StudyContext, search_stage
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.searching.stage_progress import StageProgress
from raysearch.searching.stages import Stage, StagedResult, protected_after

_NAME = "healed"  # of the model on its card: the folder to which the closing lines of a search export it


@dataclass(frozen=True)
class StagedSearch:
    """A search in stages that has been checked and named.

    Args:
        schedule: The number of layers that each stage removes.
        spec: The recovery of each stage; its assessment is of the last stage's model.
        record: The record of the search.
        search: The specification of the search.
        session: Evaluates masks of the original model; its replicas are the teacher's, too.
        observer: Receives the progress.
        teacher: The original model, and the plan of its assessment.
        name: The id of the recovery as a whole.
        records: The finished stages, in order.
    """

    schedule: Sequence[int]
    spec: RecoverySpec
    record: SearchRecord
    search: SearchSpec
    session: EvaluationSession
    observer: Observer
    teacher: AssessmentPlan
    name: str
    records: list[StageRecord] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        schedule: Sequence[int],
        spec: RecoverySpec,
        record: SearchRecord,
        search: SearchSpec,
        session: EvaluationSession,
        observer: Observer,
    ) -> StagedSearch:
        """Check everything that can be checked before anything is computed, and name the recovery.

        Args:
            schedule: See the class.
            spec: See the class.
            record: See the class.
            search: See the class.
            session: See the class.
            observer: See the class.

        Returns:
            The search in stages, ready to run.

        Raises:
            UserError: The data or the assessment do not fit the model, or too few rows are left to train on.
        """
        evaluation = search.evaluation
        check_first_gpu(evaluation.model.device)
        teacher = plan_assessment(
            spec.assess, evaluation.model, evaluation.cluster, evaluation.ledger, searched=evaluation
        )
        check_tasks(teacher, session.ledger)
        for note in teacher.notes:
            observer.warn(note)
        measured = sorted(calibration.text_fingerprint for calibration in teacher.calibrations)
        name = f"stages-m{sum(schedule)}-{digest([record.search_id, measured], 8)}"
        staged = cls(schedule, spec, record, search, session, observer, teacher, name)
        if not has_rows(staged.folder):
            observer.assessing("drawing the data")
            seen = SeenTexts([*session.calibrations, *teacher.calibrations], teacher.files.tokenizer)
            draw_prompts(spec.data, spec.options, teacher.files.tokenizer, seen, teacher.info.max_positions)
        return staged

    @property
    def folder(self) -> Path:
        """The folder of the rows and logits of all stages, and of the last stage's model."""
        return self._recoveries / self.name

    @property
    def _recoveries(self) -> Path:
        return self.session.ledger.path.absolute().parent / "recoveries"

    def run(self) -> StagedResult:
        """Run the stages that the ledger does not contain, write the final model, and record its numbers."""
        ledger = self.session.ledger
        model = self.teacher.fingerprint
        stages: list[Stage] = []
        for number in range(1, len(self.schedule) + 1):
            stage = read_stage(ledger, model, self.name, number)
            is_recorded = stage is not None
            if stage is None:
                stage = self._run_stage(number)
                write_stage(ledger, model, self.name, number, stage)
            self.records.append(stage)
            self._remove_models(number - 1)  # the next stage needs this one's model alone
            stages.append(self._summary(number, is_recorded))
        self._write_final_model(stages)
        for number in range(1, len(self.schedule) + 1):
            self._remove_models(number)
        shutil.rmtree(self.folder / TEACHER, ignore_errors=True)
        last = self.records[-1]
        return StagedResult(self.name, tuple(stages), last.rows, last.left_out)

    def _run_stage(self, number: int) -> StageRecord:
        """Search and recover; the stages before this one are done.

        Args:
            number: The number of the stage, 1-based.
        """
        title = self._title(number)
        inputs = self._inputs(number)
        labels = {"stage": str(number), "remove": str(inputs.spec.remove)}
        context = StudyContext(inputs.info, inputs.data, labels)
        result = search_stage(inputs.spec, context, StageProgress(title, self.observer))
        mask = self._removed_by(number - 1).then(result.mask)
        self.observer.assessing(f"{title}: {mask} is removed so far")
        seconds: dict[str, float] = {}
        evidence = self._heal(number, result, seconds)
        self.observer.assessing(f"{title}: evaluating the recovered model")
        model = self._recovered_model(number, evidence.recovery_id)
        return StageRecord(
            search=result,
            mask=mask,
            recovery_id=evidence.recovery_id,
            losses=recovered_losses(model, mask, self.session),
            rows=evidence.rows,
            left_out=evidence.left_out,
            training=evidence.training,
            seconds=seconds,
            settings=self.spec.settings,
        )

    def _heal(self, number: int, result: SearchResult, seconds: dict[str, float]) -> RecoveryEvidence:
        """Recover a stage's model without the layers that its search found, or write the recovered model again.

        Args:
            number: The number of the stage.
            result: The result of its search.
            seconds: The seconds of each step; those of this call are added.
        """
        inputs = self._inputs(number)
        config = inputs.spec.config
        record = SearchRecord(result.search_id, config, "finished", None, result, "", result.fingerprints)
        assessment = AssessmentPlan(AssessSpec(), self.spec.cluster, inputs.info, inputs.data.files)
        observer = Prefixed(f"{self._title(number)}: ", self.observer)
        recovery = prepare(
            record,
            self.session.ledger,
            inputs.spec,
            self.spec,
            None,
            assessment,
            self.folder,
            self.teacher,
            warn=observer.warn,
        )
        out = recovery.folder / RECOVERED
        evidence, _ = heal(recovery, out, seconds, observer, replicas_of(self.session))
        remove_copies(recovery.folder, self.spec.options)
        return evidence

    def _inputs(self, number: int) -> _StageInputs:
        """Return what a stage searches; a recovered model of the stage before that is gone is written again."""
        evaluation = self.search.evaluation
        removed = self._removed_by(number - 1)
        if number == 1:
            model = evaluation.model
            info = self.session.info
            data = PreparedData(self.session.calibrations, self.teacher.files)
        else:
            earlier = self.records[number - 2]
            model = self._recovered_model(number - 1, earlier.recovery_id)
            if written_by(Path(model.path)) != earlier.recovery_id:
                self._heal(number - 1, earlier.search, {})
            info = describe(model)
            data = data_for(ModelFiles(info.model), self.session)
        n_remove = self.schedule[number - 1]
        protect = protected_after(self.search.problem(self.session.info).protected, removed)
        config = {
            **self.search.config,
            "model": {**self.search.config["model"], "name": model.name, "path": model.path},
            "remove": n_remove,
            "protect": protect,
            "schedule": [],
            "heal": {"recover_with": None},
        }
        spec = replace(
            self.search,
            evaluation=replace(evaluation, model=model),
            remove=n_remove,
            protect=protect,
            healer=None,
            config=config,
        )
        return _StageInputs(spec, info, data)

    def _recovered_model(self, number: int, recovery_id: str) -> ModelSpec:
        """Return the recovered model of a stage, in the dtype of the whole search."""
        model = self.search.evaluation.model
        return replace(
            model,
            name=f"{model.label} after stage {number}",
            path=str(self._recoveries / recovery_id / RECOVERED),
            dtype=self.session.info.dtype,
            revision=None,
            adapter=None,
        )

    def _removed_by(self, number: int) -> Mask:
        """Return the layers that are removed after a stage; none after stage 0."""
        return self.records[number - 1].mask if number else Mask()

    def _title(self, number: int) -> str:
        return f"stage {number} of {len(self.schedule)}"

    def _summary(self, number: int, is_recorded: bool) -> Stage:
        """Return a finished stage as a part of the result.

        Args:
            number: The number of the stage.
            is_recorded: Whether the ledger contained it before this call.
        """
        stage = self.records[number - 1]
        work = stage.search.work
        return Stage(
            mask=stage.mask,
            removed=stage.mask.without(self._removed_by(number - 1)),
            searched_mask=stage.search.mask,
            loss=stage.search.loss,
            recovered_loss=self.session.evaluator.combine(stage.losses),
            steps=stage.training.steps,
            tokens=stage.training.tokens,
            seconds=sum(stage.seconds.values()),
            work=work.from_ledger if is_recorded else work,
        )

    def _write_final_model(self, stages: Sequence[Stage]) -> None:
        """Write the model of the last stage with a card on all stages, and record its numbers."""
        final = self.folder / RECOVERED
        last = self.records[-1]
        number = len(self.records)
        mask = last.mask
        training = joined([stage.training for stage in self.records])
        evidence = RecoveryEvidence(
            recovery_id=self.name,
            search_id=self.record.search_id,
            model=self.search.evaluation.model.label,
            mask=mask,
            n_layers_dense=self.teacher.info.sites.n_layers,
            method=replace(self.spec.options, learning_rate=training.learning_rate or self.spec.options.learning_rate),
            rows=last.rows,
            data=describe_data(self.spec),
            left_out=last.left_out,
            training=training,
            version=VERSION,
            stages=tuple(stages),
        )
        if written_by(final) != self.name:
            source = Path(self._recovered_model(number, last.recovery_id).path)
            if written_by(source) != last.recovery_id:
                self._heal(number, last.search, {})
            self.observer.assessing("writing the recovered checkpoint")
            with replacing(final) as folder:
                shutil.copytree(source, folder, dirs_exist_ok=True)
                shutil.rmtree(folder / ADAPTER_FOLDER, ignore_errors=True)  # it fits the last stage's model alone
                write_card(folder, _NAME, evidence, (), not_replaced=why_not_replaced(source))
        model = replace(self._recovered_model(number, self.name), name=f"{evidence.model} recovered", dtype="auto")
        seconds: dict[str, float] = {}
        with timed(seconds, "assessment"):
            assessed = assess_models(self.teacher, mask, model, self.session.ledger, self.observer)
        numbers = side_by_side(assessed.dense, assessed.pruned, assessed.recovered)
        write_card(final, _NAME, evidence, numbers, not_replaced=why_not_replaced(final))
        recovery = RecoveryRecord(
            recovery_id=self.name,
            search_id=self.record.search_id,
            mask=mask,
            way="",
            rows=last.rows,
            left_out=last.left_out,
            training=evidence.training,
            seconds=seconds | dict(sum((Counter(stage.seconds) for stage in self.records), Counter())),
            numbers=numbers,
            asked=required_numbers(self.teacher),
            settings=self.spec.settings,
            out=str(final),
        )
        write_recovery(self.session.ledger, self.teacher.fingerprint, recovery)

    def _remove_models(self, number: int) -> None:
        """Delete the models of a finished stage that no later one needs; an adapter stays."""
        if number:
            remove_models(self._recoveries / self.records[number - 1].recovery_id, self.spec.options)


class _StageInputs(NamedTuple):
    """The search of a stage, and its model.

    Args:
        spec: The search.
        info: The model: the original one, or that of the stage before.
        data: The samples of the whole search, under fingerprints of the model.
    """

    spec: SearchSpec
    info: ModelInfo
    data: PreparedData


def joined(trainings: Sequence[Training]) -> Training:
    """Return one training of several that follow each other: steps, tokens and times add up.

    Args:
        trainings: The trainings, in order; at least one.

    Returns:
        The losses of all steps, and all repaired cuts. Parameters and best step are those of the last training.
    """
    points: list[LossPoint] = []
    cuts: list[RepairedCut] = []
    steps = tokens = 0
    for number, training in enumerate(trainings, start=1):
        cuts += [replace(cut, cut=f"{cut.cut} of the model of stage {number}") for cut in training.cuts]
        points += [replace(point, step=steps + point.step, tokens=tokens + point.tokens) for point in training.points]
        steps += training.steps
        tokens += training.tokens
    last = trainings[-1]
    return replace(
        last,
        points=tuple(points),
        steps=steps,
        best_step=steps - last.steps + last.best_step,
        tokens=tokens,
        seconds=sum(training.seconds for training in trainings),
        cuts=tuple(cuts),
    )
