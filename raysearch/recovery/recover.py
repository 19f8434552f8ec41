"""Recovers the mask of a search: trains the pruned model, writes, assesses and records it; or predicts the cost."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from raysearch.assessment.assess import assess_masks, check_tasks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.results import Result
from raysearch.core.cut import cuts_of
from raysearch.core.mask import Mask
from raysearch.core.paths import sizes_of_folders
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked
from raysearch.models.export import check_destination
from raysearch.models.source import gguf_file, locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery.budget import StepCosts, TimeLimit, fitting_steps
from raysearch.recovery.checkpoint import why_not_replaced, write_card, written_by
from raysearch.recovery.planned_recovery import PlannedRecovery, prepare, required_numbers
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import LeftOut, Question, TrainingRow, n_to_train_on, row_of, usable_rows
from raysearch.recovery.recovery_record import RecoveryRecord, recoveries_of, write_recovery
from raysearch.recovery.repair import n_forwards
from raysearch.recovery.results import RecoveryCost, RecoveryResult
from raysearch.recovery.spec import RecoveryOptions, RecoverySpec
from raysearch.recovery.steps import (
    RECOVERED,
    TEACHER,
    heal,
    measure_step,
    remove_copies,
    remove_models,
)
from raysearch.searching.export import export_search
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec


def recover_search(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverySpec,
    out: Path,
    *,
    remove: int | None,
    overwrite: bool,
    observer: Observer,
    limit: TimeLimit | None = None,
) -> RecoveryResult:
    """Train the model without the layers that a search removed, and write and assess it.

    Args:
        record: The search's record.
        ledger: The ledger with the record. The recovery's files are next to it, in ``recoveries/``.
        search: The search's specification, built from `record.config`.
        spec: The data, the training and the assessment.
        out: The folder of the recovered checkpoint.
        remove: Recover the best mask of so many layers; None for the search's result, 0 for the dense model.
        overwrite: Whether to replace an existing checkpoint.
        observer: Receives the progress and the record.
        limit: The time that it may take without the assessment; None for no limit.

    Returns:
        The numbers of the dense, the pruned and the recovered model, the losses of the training, and the costs.

    Raises:
        UserError: Something the user named does not exist, is too small, or does not fit together.
        EvaluationError: A step failed permanently.
    """
    if limit is not None:
        spec = replace(spec, settings={**spec.settings, "minutes": limit.minutes})
    recovery = prepare(record, ledger, search, spec, remove, limit=limit, warn=observer.warn)
    result = _recover(recovery, out.absolute(), overwrite, observer)
    _record(recovery, result, "", observer)
    remove_copies(recovery.folder, recovery.spec.options)
    model = recovery.search.evaluation.model
    folders = [recovery.folder] if model.cache is None else [recovery.folder, model.cache]
    is_gguf = gguf_file(model) is not None and model.adapter is None
    return replace(result, is_gguf=is_gguf, left=sizes_of_folders(folders))


def recover_in_study(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverySpec,
    method_label: str,
    *,
    remove: int | None,
    observer: Observer,
) -> RecoveryRecord:
    """Recover a mask for a study, once. Only the numbers are needed: the models are deleted, except for an adapter.

    Args:
        record: See `recover_search`.
        ledger: See `recover_search`.
        search: See `recover_search`.
        spec: See `recover_search`.
        method_label: The study's label of the training method.
        remove: See `recover_search`.
        observer: See `recover_search`.

    Returns:
        The record of the recovery, as it is in the ledger.
    """
    recovery = prepare(record, ledger, search, spec, remove, warn=observer.warn)
    model = recovery.assessment.fingerprint
    out = recovery.folder / RECOVERED
    earlier_records = recoveries_of(ledger, model, [recovery.mask])
    earlier = next((record for record in earlier_records if record.recovery_id == recovery.name), None)
    if earlier is not None and required_numbers(recovery.assessment).items() <= earlier.asked.items():
        written = write_recovery(ledger, model, replace(earlier, way=method_label, settings=recovery.spec.settings))
    else:
        written = _record(recovery, _recover(recovery, out, True, observer), method_label, observer)
    if out.exists():  # written for a study, by this command or by an earlier one that was killed
        remove_models(recovery.folder, recovery.spec.options)
    return written


class AssessedModels(NamedTuple):
    """The numbers of each model, by metric."""

    dense: Mapping[str, Result]
    pruned: Mapping[str, Result]
    recovered: Mapping[str, Result]


def _recover(recovery: PlannedRecovery, out: Path, overwrite: bool, observer: Observer) -> RecoveryResult:
    """Train, write and assess a model. Steps that are already done are not repeated."""
    started = time.monotonic()
    if written_by(out) != recovery.name:
        check_destination(locate(recovery.search.evaluation.model), out, overwrite)
    check_tasks(recovery.assessment, recovery.ledger)
    stages: dict[str, float] = {}
    with locked(recovery.ledger, recovery.name, "RECOVERY"):
        evidence, answers_written = heal(recovery, out, stages, observer)
        shutil.rmtree(recovery.folder / TEACHER, ignore_errors=True)
        with timed(stages, "assessment"):
            assessed = assess_models(
                recovery.assessment, recovery.mask, recovery.model_in(out, "recovered"), recovery.ledger, observer
            )
        result = RecoveryResult(
            recovery_id=recovery.name,
            search_id=recovery.record.search_id,
            model=evidence.model,
            mask=recovery.mask,
            out=out,
            rows=evidence.rows,
            left_out=evidence.left_out,
            answers_written=answers_written,
            training=evidence.training,
            stages=stages,
            dense=assessed.dense,
            pruned=assessed.pruned,
            recovered=assessed.recovered,
            seconds=time.monotonic() - started,
        )
        write_card(out, out.name, evidence, result.numbers, not_replaced=why_not_replaced(out))
    return result


def _record(recovery: PlannedRecovery, result: RecoveryResult, method_label: str, observer: Observer) -> RecoveryRecord:
    record = replace(
        result.record(method_label), asked=required_numbers(recovery.assessment), settings=recovery.spec.settings
    )
    written = write_recovery(recovery.ledger, recovery.assessment.fingerprint, record)
    observer.on_event(written.event(recovery.record))
    return written


def recovery_cost(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverySpec,
    remove: int | None,
    observer: Observer,
    limit: TimeLimit | None = None,
) -> RecoveryCost:
    """Return the expected cost of a recovery. Its prompts are drawn, a step is timed, and nothing is kept.

    Args:
        record: See `recover_search`.
        ledger: See `recover_search`.
        search: See `recover_search`.
        spec: See `recover_search`.
        remove: See `recover_search`.
        observer: See `recover_search`.
        limit: See `recover_search`.

    Returns:
        The rows, the tokens, the steps, and the expected seconds and bytes of the training.

    Raises:
        UserError: See `recover_search`.
    """
    observer.assessing("drawing the data")
    recovery = prepare(record, ledger, search, spec, remove, limit=limit, warn=observer.warn)
    check_tasks(recovery.assessment, ledger)
    spec = recovery.spec
    options = spec.options
    prompts = recovery.prompts
    left_out = Counter(prompts.left_out)
    tokenizer = recovery.tokenizer
    results: list[TrainingRow | LeftOut]
    if options.responses == "self":
        n_answers = len(prompts.questions)
        results = [_longest_row(question, options, tokenizer) for question in prompts.questions]
    else:
        n_answers = 0
        results = [row_of(question, question.answer, False, options, tokenizer) for question in prompts.questions]
    rows = [*prompts.rows, *usable_rows(results, left_out)]
    rows = rows[: n_to_train_on(rows, options, left_out, spec.data)]
    if not options.trains:
        sites = recovery.assessment.info.sites
        return RecoveryCost(
            rows=len(rows),
            answers=n_answers,
            answer_tokens=n_answers * options.max_new_tokens,
            tokens=sum(len(row.ids) for row in rows),
            steps=len(cuts_of(recovery.mask, sites.n_layers)),
            step_s=0.0,
            seconds=0.0,
            memory_bytes=0,
            left_out=dict(left_out),
            forwards=n_forwards(recovery.mask, sites, 1 - options.n_held_out(len(rows)) / len(rows)),
        )
    with tempfile.TemporaryDirectory(dir=ledger.path.parent) as scratch:
        pruned = Path(scratch) / "pruned"
        observer.assessing("writing the pruned checkpoint")
        stages: dict[str, float] = {}
        with timed(stages, "checkpoints"):
            export_search(record, search, pruned, remove=remove)
        observer.assessing("timing a step")
        step = measure_step(recovery, recovery.model_in(pruned), rows, Path(scratch) / "timing", observer.warn)
    budget = None
    if limit is not None:
        logits_row_s = step.held_out_row_s if options.needs_logits else 0.0
        costs = StepCosts(limit.spent_s, step, logits_row_s, stages["checkpoints"])
        budget = fitting_steps(limit, options, len(rows), costs)
        options = budget.limited(options)
        left_out.update(budget.left_out(len(rows)))
        rows = rows[: budget.rows]
    n_train = len(rows) - options.n_held_out(len(rows))
    mean_tokens = sum(len(row.ids) for row in rows) / len(rows)
    if options.packing:
        n_packed = math.ceil(n_train * mean_tokens / options.max_tokens)
        mean_tokens = n_train * mean_tokens / n_packed
        n_train = n_packed
    n_steps = options.n_steps(n_train)
    n_cuts = len(recovery.cuts) if options.loss == "hidden" else 1
    return RecoveryCost(
        rows=len(rows),
        answers=n_answers,
        answer_tokens=n_answers * options.max_new_tokens,
        tokens=round(mean_tokens * options.rows_seen(n_steps, n_train)) * n_cuts,
        steps=n_steps * n_cuts,
        step_s=step.step_s / n_cuts,
        seconds=step.step_s * n_steps,
        memory_bytes=step.memory_bytes,
        left_out=dict(left_out),
        budget=budget,
    )


def _longest_row(question: Question, options: RecoveryOptions, tokenizer: Any) -> TrainingRow | LeftOut:
    """Return a row with the longest answer that the dense model may write, or the reason why there is none."""
    n_prompt = len(question.ids)
    if n_prompt >= options.max_tokens:
        return "too long"
    filler = (tokenizer.eos_token_id or 0,) * options.max_new_tokens
    return TrainingRow((question.ids + filler)[: options.max_tokens], n_prompt)


def assess_models(
    assessment: AssessmentPlan, mask: Mask, recovered: ModelSpec, ledger: Ledger, observer: Observer
) -> AssessedModels:
    """Assess the dense, the pruned and the recovered model. Numbers in the ledger are not computed again.

    Args:
        assessment: The dense model, and the plan of its assessment.
        mask: What the pruned and the recovered model lack.
        recovered: The recovered model.
        ledger: The ledger.
        observer: Receives the progress.

    Returns:
        The numbers of the three models.
    """
    before = assess_masks(assessment, ledger, [mask], on_progress=observer.assessing)
    spec = assessment.spec  # includes the search's own data if they are assessed
    plan = plan_assessment(spec, recovered, assessment.cluster, ledger.path)
    after = assess_masks(plan, ledger, [Mask()], on_progress=observer.assessing)
    return AssessedModels(before.by_mask[Mask()], before.by_mask[mask], after.by_mask[Mask()])
