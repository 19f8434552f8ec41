"""Turns a mask into a trained, merged checkpoint. Each step is done once, even if a process is killed."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from raysearch.assessment.assess import plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.own_data import name_of
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.windows import WindowOptions
from raysearch.checkpoints.card import RECORD
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.core.digest import digest
from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.paths import write_atomically
from raysearch.core.space import LAYERS
from raysearch.core.versions import VERSION
from raysearch.errors import UserError
from raysearch.evaluation.memory import release_memory
from raysearch.evaluation.pool import Pool, opening
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.loading import load_tokenizer
from raysearch.models.spec import ModelSpec
from raysearch.recovery.adapter import check_trainable
from raysearch.recovery.budget import Budget, StepCosts, TimeLimit, fitting_steps
from raysearch.recovery.checkpoint import RecoveryEvidence, write_checkpoint, written_by
from raysearch.recovery.layer_cuts import LayerCut, layer_cuts
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import Prompts, TrainingRow, draw_prompts, n_to_train_on, row_of, usable_rows
from raysearch.recovery.repair import repair
from raysearch.recovery.responses import write_answers
from raysearch.recovery.spec import RecoveryOptions, RecoverySpec
from raysearch.recovery.step_time import StepTime, time_step
from raysearch.recovery.teacher import TopLogits, top_logits_of
from raysearch.recovery.trainer import TrainingRows, TrainingSetup
from raysearch.recovery.training import DONE, TRAINED, is_trained, train, within_memory
from raysearch.searching.export import export_search
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.text.numbers import count, size
from raysearch.text.redaction import redacted

TEACHER = "teacher"  # the folder of the dense model's logits
RECOVERED = "recovered"  # the folder of the recovered checkpoint, if the user names none
_PRUNED = "pruned"
_BUDGET = "budget.json"  # what fits into --minutes
_ROWS = "rows.jsonl"
_CARD = "rows.json"  # describes the rows
_N_CHECKPOINTS = 3  # that exist at the same time
_CHECKPOINT_BYTES_PER_WEIGHT = 12  # a float32 weight and AdamW's two moments
_N_WARM_UP_ROWS = 8  # rows of the dense model before its logits are timed: one job
_N_TIMED_ROWS = 40  # these, and those that are timed: four jobs
_N_JOBS = 64  # about the number of jobs for the dense model; more than any number of replicas

#: Returns the pool of the dense model, which starts on the first call. The context ends before the training.
Replicas = AbstractContextManager[Callable[[], Pool]]


@dataclass(frozen=True)
class PlannedRecovery:
    """A recovery that has been checked and named.

    Args:
        record: The search that found the mask.
        ledger: The ledger.
        search: The specification of the search.
        spec: The specification of the recovery.
        mask: The mask.
        assessment: The dense model, and the plan of its assessment.
        teacher: The model that writes answers and whose logits are learned, and the texts that it is assessed on: the
            dense model, another one, or the original model of a search in stages.
        name: The id of the recovery.
        folder: The folder for the results of its steps.
        shared: The folder for the rows and the dense model's logits, which several masks may share.
        on_gpu: Whether the training is on a GPU.
        limit: The time that it may take; None for no limit.
    """

    record: SearchRecord
    ledger: Ledger
    search: SearchSpec
    spec: RecoverySpec
    mask: Mask
    assessment: AssessmentPlan
    teacher: AssessmentPlan
    name: str
    folder: Path
    shared: Path
    on_gpu: bool
    limit: TimeLimit | None = None

    @property
    def size(self) -> int:
        """The size of the mask, as ``remove=`` counts it."""
        return self.record.finished_result.space.size_of(self.mask)

    def model_in(self, folder: Path, suffix: str = "") -> ModelSpec:
        """Return the searched model with the weights of a folder.

        Args:
            folder: The folder of a checkpoint.
            suffix: A suffix for the model's name, if it is to be measured.

        Returns:
            The specification of the model, in the dtype of the folder's config.
        """
        model = self.search.evaluation.model
        has_code = not KeptBlocks.without(self.mask, self.assessment.info.sites).are_complete  # written by raysearch
        return replace(
            model,
            name=f"{model.label} {suffix}".rstrip(),
            path=str(folder),
            dtype="auto",
            revision=None,
            adapter=None,
            halves=False,
            trust_remote_code=model.trust_remote_code or has_code,
        )

    def setup(self, model: ModelSpec, data: TrainingRows, options: RecoveryOptions, folder: Path) -> TrainingSetup:
        """Return the training of the pruned model.

        Args:
            model: The pruned checkpoint.
            data: The rows.
            options: The options of the training.
            folder: The folder of the training's files.

        Returns:
            The training, with the dense model if that runs beside it.
        """
        setup = TrainingSetup(model, self.tokenizer, data, options, folder, self.on_gpu)
        if options.needs_dense:
            setup = replace(setup, dense=self.teacher.info.model)
        return replace(setup, cuts=self.cuts) if options.loss == "hidden" else setup

    @property
    def cuts(self) -> tuple[LayerCut, ...]:
        """The cuts of the mask, which has whole layers."""
        return layer_cuts(self.mask, self.assessment.info.sites.n_layers)

    @functools.cached_property
    def prompts(self) -> Prompts:
        """The prompts or text to train on, without those of the calibration and the assessment."""
        plan = self.assessment
        searched = prepare_data(self.search.evaluation, plan.info, plan.files).calibrations
        measured = SeenTexts([*searched, *measured_texts(plan, self.teacher)], self.tokenizer)
        return draw_prompts(self.spec.data, self.spec.options, self.tokenizer, measured, plan.info.max_positions)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """A separate instance of the model's tokenizer, which the training may change."""
        return load_tokenizer(self.assessment.info.model)


def required_numbers(plan: AssessmentPlan) -> dict[str, str]:
    """Return the name of each number of an assessment, except speeds, with a digest of its inputs."""
    texts = (*plan.spec.texts, *plan.spec.generation)
    numbers = {name: calibration.fingerprint for name, calibration in zip(texts, plan.calibrations, strict=True)}
    numbers |= {source.name: plan.name_of(source) for source in plan.sources}
    if plan.problems:
        numbers["probe"] = plan.named({"probe": [problem.prompt for problem in plan.problems]})
    return numbers


def prepare(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverySpec,
    remove: int | None,
    plan: AssessmentPlan | None = None,
    shared: Path | None = None,
    teacher: AssessmentPlan | None = None,
    limit: TimeLimit | None = None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> PlannedRecovery:
    """Check everything that can be checked before anything is computed, and name the recovery.

    Args:
        record: See `recover_search`.
        ledger: See `recover_search`.
        search: See `recover_search`.
        spec: See `recover_search`.
        remove: See `recover_search`.
        plan: The dense model and the plan of its assessment; None to read the model now.
        shared: A folder for rows and logits that several masks share; None for the recovery's own folder.
        teacher: The teacher of a search in stages and the plan of its assessment; None for `spec.teacher`, or else for
            the dense model.
        limit: The time that the recovery may take; None for no limit.
        warn: Receives a sentence if the search's own data are too few to train on, or a part of the mask has no layer
            to train.

    Returns:
        The recovery, ready to run.

    Raises:
        UserError: See `recover_search`.
    """
    evaluation = search.evaluation
    search.check_unrepaired("recover", "search with repair=none, and recover that")
    check_first_gpu(evaluation.model.device)
    spec.data.check()
    if plan is None:
        plan = plan_assessment(spec.assess, evaluation.model, spec.cluster, evaluation.ledger, searched=evaluation)
    record.check_weights(plan.fingerprint)
    check_trainable(plan.info.model, spec.options)
    if spec.options.loss == "hidden" and (teacher is not None or spec.teacher is not None):
        raise UserError(
            "recovery.loss=hidden learns the states of the model whose layers are removed, not of another teacher; use "
            "recovery.loss=distill"
        )
    if spec.options.loss == "hidden":
        check_cuts(record.best_of_size(remove).mask, plan.info.sites.n_layers, warn)
    if not spec.options.trains and not record.best_of_size(remove).mask:
        raise UserError(
            "recovery.method=closed_form repairs the cuts of a mask, and the dense model has none; use "
            "recovery.method=lora for this control, or study.unpruned=false in a study"
        )
    if limit is not None and not spec.options.trains:
        raise UserError(
            f"--minutes={limit.minutes:g} is not offered with recovery.method=closed_form, which has no steps; use a "
            "smaller data.samples"
        )
    if limit is not None and spec.options.packing:
        raise UserError(
            f"--minutes={limit.minutes:g} is not offered with recovery.packing=true; use recovery.max_steps=…"
        )
    for note in plan.notes:
        warn(note)
    if teacher is None and spec.teacher is not None:
        teacher = teacher_plan(spec.teacher, spec, plan)
    named = functools.partial(
        _named, record, ledger, search, remove=remove, plan=plan, shared=shared, teacher=teacher or plan, limit=limit
    )
    with_default_data = named(spec)
    own_data_spec = spec.on_own_data(evaluation, search.config)
    if own_data_spec is None:
        return with_default_data
    with_own_data = named(own_data_spec)
    if has_rows(with_own_data.shared):  # drawn earlier
        return with_own_data
    try:
        prompts = with_own_data.prompts
    except UserError as error:
        if not own_data_spec.data.rows.is_local:  # the cause may be the network
            raise
        reason = str(error)
    else:
        n_rows = len(prompts.rows or prompts.questions)
        if n_rows > spec.options.batch_size:
            return with_own_data
        reason = f"{name_of(own_data_spec.data)} holds {count(n_rows, 'row')} besides what was measured"
    warn(
        f"the search's own data are too few to train on ({reason}); State of the Union addresses are used instead; "
        "for other text: data=file data.path=…"
    )
    return with_default_data


def _named(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverySpec,
    *,
    remove: int | None,
    plan: AssessmentPlan,
    shared: Path | None,
    teacher: AssessmentPlan,
    limit: TimeLimit | None,
) -> PlannedRecovery:
    """Return a recovery, named by a digest of everything that it depends on."""
    mask = record.best_of_size(remove).mask
    size = record.finished_result.space.size_of(mask)
    measured = sorted(calibration.text_fingerprint for calibration in measured_texts(plan, teacher))
    identity = {
        "model": plan.fingerprint,
        "calibrations": record.identifying,
        "mask": mask.parts,
        **spec.identity,
        **({"measured": measured} if measured else {}),  # the rows share no text with these
        "files": [plan.files.tokenizer_fingerprint, *spec.digests],
        **({} if limit is None else {"minutes": limit.minutes}),
    }
    if teacher is not plan:
        identity["teacher"] = teacher.fingerprint
        if spec.teacher is None:  # a stage of a search, which deletes the recovery's folder when it is no longer needed
            identity["stage_of"] = shared and shared.name
    name = f"recover-m{size}-{digest(identity, 8)}"
    folder = ledger.path.absolute().parent / "recoveries" / name  # workers have other current folders
    return PlannedRecovery(
        record, ledger, search, spec, mask, plan, teacher, name, folder, shared or folder, plan.info.model.on_gpu, limit
    )


def check_cuts(mask: Mask, n_layers: int, warn: Callable[[str], None]) -> None:
    """Refuse a mask without a cut that hidden states can mend.

    Args:
        mask: The mask.
        n_layers: N, the layers of the dense model.
        warn: Receives a sentence if only a part of the mask can be mended.

    Raises:
        UserError: No kept layer comes before a removed one, or the mask has single halves.
    """
    if not layer_cuts(mask, n_layers):
        raise UserError(
            f"recovery.loss=hidden trains the layer before each run of removed layers, and {mask} leaves none; use "
            "recovery.loss=distill"
        )
    if 0 in mask.layers:
        warn(
            "no layer comes before the removed layer 0, so what the first removed layers did is not trained; "
            "recovery.loss=distill trains all layers"
        )


def check_first_gpu(device: str) -> None:
    """Refuse a search on another GPU than the first: transformers trains on the first."""
    _, _, index = device.partition(":")
    if int(index or 0):
        raise UserError(
            f"model.device={device} of the search names one GPU, but a training takes the first; search with "
            f"model.device=cuda and CUDA_VISIBLE_DEVICES={index} in the environment, and recover that search likewise"
        )


def heal(
    recovery: PlannedRecovery, out: Path, stages: dict[str, float], observer: Observer, replicas: Replicas | None = None
) -> tuple[RecoveryEvidence, int]:
    """Train a model and write it to `out`. Steps that are already done are not repeated.

    Args:
        recovery: The recovery.
        out: The folder of the recovered checkpoint.
        stages: The seconds of each stage; those of this call are added.
        observer: Receives the progress.
        replicas: Replicas of the teacher; None to start some if they are needed.

    Returns:
        The evidence for the model card, and the number of answers that the dense model wrote now.
    """
    spec = recovery.spec
    record = recovery.record
    pruned = recovery.folder / _PRUNED
    is_written = written_by(out) == recovery.name
    if not is_written and not [*recovery.folder.glob(f"{TRAINED}/*.safetensors")]:
        (recovery.folder / TRAINED / DONE).unlink(missing_ok=True)  # the weights are only in a checkpoint elsewhere
    model = recovery.model_in(pruned)
    if not recovery.folder.exists():
        check_room(recovery)
    recovery.folder.mkdir(parents=True, exist_ok=True)
    recovery.shared.mkdir(parents=True, exist_ok=True)
    with replicas or opening(spec.cluster, recovery.teacher.info, _N_JOBS) as pool:
        with timed(stages, "data"):
            prepared = _prepare_rows(recovery, pool, observer)
        if not (pruned / RECORD).is_file() and not (is_written and is_trained(recovery.folder)):
            shutil.rmtree(pruned, ignore_errors=True)
            observer.assessing("writing the pruned checkpoint")
            with timed(stages, "checkpoints"):
                export_search(record, recovery.search, pruned, remove=recovery.size)
        options = spec.options
        rows = prepared.rows
        left_out = prepared.left_out
        if recovery.limit is not None:
            with timed(stages, "planning"):
                budget = _budget(recovery, recovery.limit, model, rows, stages.get("checkpoints", 0.0), pool, observer)
            options = budget.limited(options)
            if budget.rows < len(rows):
                left_out = {**left_out, "beyond --minutes": len(rows) - budget.rows}
            rows = rows[: budget.rows]
        data = TrainingRows.of(rows, options)
        if options.needs_logits and not is_trained(recovery.folder):
            with timed(stages, "logits"):
                data = replace(data, top_logits=_top_logits(recovery, data, pool, observer))
    setup = recovery.setup(model, data, options, recovery.folder)
    if not options.trains:
        dense = recovery.assessment.info
        with timed(stages, "repair"), opening(spec.cluster, dense, _N_JOBS) as pool:
            training = repair(setup, recovery.mask, dense, pool, observer.assessing)
    else:
        with timed(stages, "training"):
            observer.assessing("training: loading the model, then step 1")
            training = train(setup, spec.cluster, on_progress=observer.assessing, warn=observer.warn)
    evidence = RecoveryEvidence(
        size=None if recovery.search.space is LAYERS else recovery.size,
        recovery_id=recovery.name,
        search_id=record.search_id,
        model=recovery.search.evaluation.model.label,
        mask=recovery.mask,
        n_layers_dense=recovery.assessment.info.sites.n_layers,
        method=replace(
            options,
            learning_rate=training.learning_rate or options.learning_rate,
            teacher=None if spec.teacher is None else spec.teacher.label,
        ),
        rows=len(rows),
        data=describe_data(spec),
        left_out=left_out,
        training=training,
        version=VERSION,
    )
    if not is_written:
        observer.assessing("writing the recovered checkpoint")
        with timed(stages, "checkpoints"):
            write_checkpoint(model, recovery.folder / TRAINED, out, evidence)
    return evidence, prepared.n_new_answers


def _budget(
    recovery: PlannedRecovery,
    limit: TimeLimit,
    model: ModelSpec,
    rows: Sequence[TrainingRow],
    write_s: float,
    replicas: Callable[[], Pool],
    observer: Observer,
) -> Budget:
    """Return how many steps fit into the time. The choice is made once, and kept in the recovery's folder.

    Args:
        recovery: The recovery.
        limit: The time.
        model: The pruned checkpoint.
        rows: The rows.
        write_s: The seconds of writing the pruned checkpoint.
        replicas: Returns the pool of the dense model, whose logits on some rows are timed.
        observer: Receives the choice.

    Returns:
        The steps and the rows.
    """
    file = recovery.folder / _BUDGET
    if not file.is_file():
        options = recovery.spec.options
        observer.assessing("timing a step")
        step = measure_step(recovery, model, rows, recovery.folder / "timing", observer.warn)
        logits_row_s = 0.0
        if options.needs_logits:
            data = TrainingRows.of(rows, options)
            _top_logits(recovery, data.part(0, _N_WARM_UP_ROWS), replicas, observer)  # starts the replicas
            started = time.monotonic()
            n_timed = len(_top_logits(recovery, data.part(0, _N_TIMED_ROWS), replicas, observer)) - _N_WARM_UP_ROWS
            logits_row_s = (time.monotonic() - started) / max(1, n_timed)
        costs = StepCosts(limit.spent_s, step, logits_row_s, write_s)
        write_atomically(file, to_json(fitting_steps(limit, options, len(rows), costs)))
    budget = from_json(Budget, file.read_text(encoding="utf-8"))
    observer.warn(str(budget))
    return budget


def measure_step(
    recovery: PlannedRecovery,
    model: ModelSpec,
    rows: Sequence[TrainingRow],
    folder: Path,
    warn: Callable[[str], None],
) -> StepTime:
    """Time a step of a training, on half as many rows at once if memory is short.

    Args:
        recovery: The recovery.
        model: The pruned checkpoint.
        rows: The rows.
        folder: A folder in which nothing is kept.
        warn: Receives a sentence when the number of rows is reduced.

    Returns:
        The time, in which `recovery.workers` share the rows of a step.
    """
    options = recovery.spec.options
    setup = recovery.setup(model, TrainingRows.of(rows, options), options, folder)
    time_rows_at_once = functools.partial(time_step, setup, recovery.assessment.info.vocab_size)
    step = within_memory(time_rows_at_once, options, recovery.on_gpu, warn)
    release_memory()
    shutil.rmtree(folder, ignore_errors=True)
    return replace(step, step_s=step.step_s / options.workers)


def _top_logits(
    recovery: PlannedRecovery, data: TrainingRows, replicas: Callable[[], Pool], observer: Observer
) -> list[TopLogits]:
    """Return the dense model's likeliest tokens on rows; those in the recovery's folder are not computed again."""
    top_k = recovery.spec.options.top_k
    assert top_k != "all", "see RecoveryOptions.needs_logits"
    folder = recovery.shared / TEACHER
    return top_logits_of(data.rows, data.starts, top_k, folder, replicas, observer.assessing)


def remove_models(folder: Path, options: RecoveryOptions) -> None:
    """Delete the models in a recovery's folder; an adapter stays. Called when the numbers are recorded.

    Args:
        folder: The recovery's folder.
        options: The options of the training.
    """
    trained = [folder / TRAINED / DONE] if options.method == "full" else []
    for marker in (*trained, folder / _PRUNED / RECORD, folder / RECOVERED / RECORD):
        marker.unlink(missing_ok=True)  # first: if this process is killed, the rest must not look complete
        shutil.rmtree(marker.parent, ignore_errors=True)


def remove_copies(folder: Path, options: RecoveryOptions) -> None:
    """Delete the models in a recovery's folder that are no longer needed after the checkpoint; an adapter stays.

    Args:
        folder: The recovery's folder.
        options: The options of the training.
    """
    (folder / _PRUNED / RECORD).unlink(missing_ok=True)  # first, see `remove_models`
    shutil.rmtree(folder / _PRUNED, ignore_errors=True)
    if options.method == "full":
        for weights in (folder / TRAINED).glob("*.safetensors"):
            weights.unlink()


def measured_texts(plan: AssessmentPlan, teacher: AssessmentPlan) -> list[Calibration]:
    """Return the texts that models are assessed on, besides the samples of the search.

    Args:
        plan: The plan of the dense model's assessment.
        teacher: The plan of the teacher's assessment, which may be the same.

    Returns:
        The texts and the tasks of both plans.
    """
    return [*plan.calibrations] if teacher is plan else [*plan.calibrations, *teacher.calibrations]


def teacher_plan(model: ModelSpec, spec: RecoverySpec, plan: AssessmentPlan) -> AssessmentPlan:
    """Return the teacher that the user named, after checking that its tokens are those of the dense model.

    Args:
        model: The teacher.
        spec: The specification of the recovery.
        plan: The dense model and the plan of its assessment.

    Returns:
        The teacher, with nothing to assess.

    Raises:
        UserError: The teacher does not exist, or has another vocabulary.
    """
    info = describe(model)
    spec.cluster.check_model(info.model)
    files = ModelFiles(info.model)
    if files.tokenizer.get_vocab() != plan.files.tokenizer.get_vocab() or info.vocab_size != plan.info.vocab_size:
        raise UserError(
            f"recovery.teacher={spec.options.teacher} has another vocabulary than {plan.info.model.name}, and learning "
            "its tokens needs the same one; name a teacher of the same family, or leave it out"
        )
    return AssessmentPlan(AssessSpec(), spec.cluster, info, files)


def has_rows(folder: Path) -> bool:
    """Return whether the rows to train on were drawn earlier and are in a recovery's folder."""
    return (folder / _CARD).is_file()


class _PreparedRows(NamedTuple):
    """The rows to train on.

    Args:
        rows: The rows.
        left_out: The number of rows that are left out, by the reason.
        n_new_answers: The number of answers that the dense model wrote now.
    """

    rows: list[TrainingRow]
    left_out: Mapping[str, int]
    n_new_answers: int


def _prepare_rows(recovery: PlannedRecovery, replicas: Callable[[], Pool], observer: Observer) -> _PreparedRows:
    """Return the rows from the recovery's files, or draw and answer them and write the files."""
    options = recovery.spec.options
    folder = recovery.shared
    if (folder / _CARD).is_file() and (folder / _ROWS).is_file():
        card = json.loads((folder / _CARD).read_text(encoding="utf-8"))
        lines = (folder / _ROWS).read_bytes()
        if card["sha256"] == hashlib.sha256(lines).hexdigest():
            entries = map(json.loads, lines.splitlines())
            rows = [TrainingRow(tuple(entry["ids"]), entry["n_prompt"], entry["answer"]) for entry in entries]
            return _PreparedRows(rows, card["left_out"], 0)
    observer.assessing("drawing the data")
    prompts = recovery.prompts
    left_out = Counter(prompts.left_out)
    n_new_answers = 0
    answers = [(question.answer, False) for question in prompts.questions]
    if options.responses == "self":
        texts, n_new_answers = write_answers(
            prompts.questions, options, recovery.teacher, recovery.ledger, replicas, observer.assessing
        )
        answers = [(text.text.strip(), text.cut_off) for text in texts]
    results = [
        row_of(question, answer, cut_off, options, recovery.tokenizer)
        for question, (answer, cut_off) in zip(prompts.questions, answers, strict=True)
    ]
    rows = [*prompts.rows, *usable_rows(results, left_out)]
    rows = [rows[index] for index in np.random.default_rng(options.seed).permutation(len(rows))]
    rows = rows[: n_to_train_on(rows, options, left_out, recovery.spec.data)]
    content = "".join(json.dumps(vars(row)) + "\n" for row in rows)
    card = {
        "recovery_id": folder.name,
        "rows": len(rows),
        "tokens": sum(len(row.ids) for row in rows),
        "left_out": left_out,
        "data": describe_data(recovery.spec),
        "answered_by": recovery.teacher.fingerprint if prompts.questions and options.responses == "self" else None,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    write_atomically(folder / _ROWS, content)
    write_atomically(folder / _CARD, json.dumps(redacted(card), indent=2) + "\n")
    return _PreparedRows(rows, dict(left_out), n_new_answers)


def describe_data(spec: RecoverySpec) -> dict[str, Any]:
    """Return the description of the data for cards."""
    is_text = isinstance(spec.data.draw, WindowOptions)
    description = {**spec.data.rows.describe(), "responses": None if is_text else spec.options.responses}
    if "path" in description:  # a card may be public, and must not show folders of this machine
        description["path"] = Path(description["path"]).name
    return description


def check_room(recovery: PlannedRecovery) -> None:
    """Refuse a disk that cannot hold the models of a recovery. Adapters and logits are small, and not counted."""
    info = recovery.assessment.info
    n_parameters = info.parameters - info.sites.parameters(recovery.mask)
    itemsize = getattr(torch, info.dtype).itemsize
    trained_bytes = itemsize  # the trained values, until the recovered model has them
    options = recovery.spec.options
    if options.method == "full" and options.loss != "hidden":  # checkpoints, which are deleted before that
        trained_bytes = _N_CHECKPOINTS * _CHECKPOINT_BYTES_PER_WEIGHT + 4
    store = recovery.ledger.path.parent
    needed_bytes = n_parameters * (2 * itemsize + trained_bytes)  # the pruned and the recovered model, too
    free_bytes = shutil.disk_usage(store).free
    if free_bytes < needed_bytes:
        raise UserError(
            f"store={store} has {size(free_bytes)} left, and this recovery needs {size(needed_bytes)}; free some "
            "space, or use another store=…"
        )
