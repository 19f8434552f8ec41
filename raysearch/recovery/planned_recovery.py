"""Checks and names a recovery before anything is computed."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raysearch.assessment.assess import plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.own_data import name_of
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.overlap import SeenTexts
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.core.digest import digest
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.loading import load_tokenizer
from raysearch.models.spec import ModelSpec
from raysearch.recovery.adapter import check_trainable
from raysearch.recovery.budget import TimeLimit
from raysearch.recovery.layer_cuts import LayerCut, layer_cuts
from raysearch.recovery.prompts import Prompts, draw_prompts
from raysearch.recovery.spec import RecoveryOptions, RecoverySpec
from raysearch.recovery.trainer import TrainingRows, TrainingSetup
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.text.numbers import count, size

ROWS_CARD = "rows.json"  # the file that describes the rows, in the folder that masks share
_N_CHECKPOINTS = 3  # that exist at the same time
_CHECKPOINT_BYTES_PER_WEIGHT = 12  # a float32 weight and AdamW's two moments


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
    return (folder / ROWS_CARD).is_file()


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
