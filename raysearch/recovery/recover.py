"""Recovers what a search found: trains it, writes, assesses and records it, or tells what that would cost."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch.nn import Module

from raysearch.assessment.assess import assess_masks, check_tasks, plan_assessment
from raysearch.assessment.results import Result
from raysearch.assessment.speed import PeakMemory
from raysearch.core.mask import Mask
from raysearch.core.paths import sizes_of_folders
from raysearch.evaluation.replica import release
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import held
from raysearch.models.export import check_destination
from raysearch.models.loading import quiet
from raysearch.models.source import gguf_file, locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery.checkpoint import write_card, written_by
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import LeftOut, Question, Row, kept_rows, n_to_train_on, row_of
from raysearch.recovery.record import RecoveryRecord, recoveries_of, write_recovery
from raysearch.recovery.results import Recovered, RecoveryCost
from raysearch.recovery.spec import RecoverSpec, RecoveryOptions
from raysearch.recovery.steps import RECOVERED, TEACHER, Recovery, heal, prepare, remove_copies, remove_models
from raysearch.recovery.teacher import TopLogits
from raysearch.recovery.trainer import TrainingRows, TrainingSetup, all_threads, make_trainer, naming_bitsandbytes
from raysearch.recovery.training import within_memory
from raysearch.searching.export import export_search
from raysearch.searching.observer import Observer
from raysearch.searching.record import SearchRecord
from raysearch.searching.spec import SearchSpec


def recover_search(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    out: Path,
    *,
    remove: int | None,
    overwrite: bool,
    observer: Observer,
) -> Recovered:
    """Train the model without the layers that a search removed, and write and assess it.

    Args:
        record: The search's record.
        ledger: Where that is; what is kept of the recovery lies beside it, in ``recoveries/``.
        search: What it was made of, built from `record.config`.
        spec: What to train on, how, and what to assess.
        out: The folder of the recovered checkpoint.
        remove: The best mask of so many layers; None for the mask that the search found, 0 for the dense model.
        overwrite: Whether a checkpoint that is there is replaced.
        observer: Watches, and records.

    Raises:
        UserError: Something the user named is not there, too small, or does not fit together.
        EvaluationError: Something failed for good.
    """
    recovery = prepare(record, ledger, search, spec, remove, warn=observer.warn)
    result = _recover(recovery, out.absolute(), overwrite, observer)
    _record(recovery, result, "", observer)
    remove_copies(recovery.folder, recovery.spec.options)
    model = recovery.search.evaluation.model
    places = [recovery.folder, *([] if model.cache is None else [model.cache])]
    return replace(result, is_gguf=gguf_file(model) is not None, left=sizes_of_folders(places))


def recover_in_study(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    way: str,
    *,
    remove: int | None,
    observer: Observer,
) -> RecoveryRecord:
    """Recover a mask for its numbers alone, once; of the models only an adapter is kept.

    The arguments are those of `recover_search`, and the study's label of the way in which a model is trained.
    """
    recovery = prepare(record, ledger, search, spec, remove, warn=observer.warn)
    model, out = recovery.assessment.fingerprint, recovery.folder / RECOVERED
    known = {one.recovery_id: one for one in recoveries_of(ledger, model, [recovery.mask])}.get(recovery.name)
    if known is not None and recovery.asked.items() <= known.asked.items():
        kept = write_recovery(ledger, model, replace(known, way=way, settings=recovery.spec.settings))
    else:
        kept = _record(recovery, _recover(recovery, out, True, observer), way, observer)
    if out.exists():  # made for a study, by this command or by one that was killed before it came here
        remove_models(recovery.folder, recovery.spec.options)
    return kept


def _recover(recovery: Recovery, out: Path, overwrite: bool, observer: Observer) -> Recovered:
    """Train, write and assess a model; what was done before is not done again."""
    started = time.monotonic()
    if written_by(out) != recovery.name:
        check_destination(locate(recovery.search.evaluation.model), out, overwrite)
    check_tasks(recovery.assessment, recovery.ledger)
    stages: dict[str, float] = {}
    with held(recovery.ledger, recovery.name, "RECOVERY"):
        evidence, answers_written = heal(recovery, out, stages, observer)
        shutil.rmtree(recovery.folder / TEACHER, ignore_errors=True)
        with timed(stages, "assessment"):
            dense, pruned, recovered = _assess(recovery, out, observer)
        result = Recovered(
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
            dense=dense,
            pruned=pruned,
            recovered=recovered,
            seconds=time.monotonic() - started,
        )
        write_card(out, out.name, evidence, result.numbers)
    return result


def _record(recovery: Recovery, result: Recovered, way: str, observer: Observer) -> RecoveryRecord:
    record = replace(result.record(way), asked=recovery.asked, settings=recovery.spec.settings)
    kept = write_recovery(recovery.ledger, recovery.assessment.fingerprint, record)
    observer.recovered(recovery.record, *kept.told)
    return kept


def recovery_cost(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    remove: int | None,
    observer: Observer,
) -> RecoveryCost:
    """Return what a recovery, as of `recover_search`, would cost: its prompts are drawn, a step timed, nothing kept."""
    observer.assessing("drawing the data")
    recovery = prepare(record, ledger, search, spec, remove, warn=observer.warn)
    check_tasks(recovery.assessment, ledger)
    spec = recovery.spec
    options = spec.options
    prompts = recovery.prompts
    left_out, writes = Counter(prompts.left_out), options.responses == "self"
    tokenizer = recovery.tokenizer
    found = [
        _longest(one, options, tokenizer) if writes else row_of(one, one.answer, False, options, tokenizer)
        for one in prompts.questions
    ]
    rows = [*prompts.rows, *kept_rows(found, left_out)]
    rows = rows[: n_to_train_on(rows, options, left_out, spec.data)]
    answers = len(prompts.questions) if writes else 0
    n_train = len(rows) - options.n_held_out(len(rows))
    mean = sum(len(row.ids) for row in rows) / len(rows)
    if options.packing:
        n_packed = math.ceil(n_train * mean / options.max_tokens)
        n_train, mean = n_packed, n_train * mean / n_packed
    n_steps = options.n_steps(n_train)
    with tempfile.TemporaryDirectory(dir=ledger.path.parent) as scratch:
        pruned = Path(scratch) / "pruned"
        observer.assessing("writing the pruned checkpoint")
        export_search(record, search, pruned, remove=remove)
        time_step = partial(_time_step, recovery, recovery.model_in(pruned), rows, Path(scratch))
        observer.assessing("timing a step")
        step_s, memory = within_memory(time_step, options, recovery.on_gpu, observer.warn)
        release()
    return RecoveryCost(
        rows=len(rows),
        answers=answers,
        answer_tokens=answers * options.max_new_tokens,
        tokens=round(mean * options.rows_seen(n_steps, n_train)),
        steps=n_steps,
        step_s=step_s,
        seconds=step_s * n_steps,
        memory_bytes=memory,
        left_out=dict(left_out),
    )


def _longest(question: Question, options: RecoveryOptions, tokenizer: Any) -> Row | LeftOut:
    """Return a row with the longest answer that the dense model may write, or why there can be none."""
    n_prompt = len(question.ids)
    if n_prompt >= options.max_tokens:
        return "too long"
    filler = (tokenizer.eos_token_id or 0,) * options.max_new_tokens
    return Row((question.ids + filler)[: options.max_tokens], n_prompt)


def _assess(recovery: Recovery, out: Path, observer: Observer) -> list[Mapping[str, Result]]:
    """Assess dense, pruned and recovered, each by metric; what the ledger knows is not computed again."""
    ledger, cluster = recovery.ledger, recovery.spec.cluster
    before = assess_masks(recovery.assessment, ledger, [recovery.mask], on_progress=observer.assessing)
    spec = recovery.assessment.spec  # with the search's own data, if those are assessed
    plan = plan_assessment(spec, recovery.model_in(out, "recovered"), cluster, ledger.path)
    after = assess_masks(plan, ledger, [Mask()], on_progress=observer.assessing)
    return [before.by_mask[Mask()], before.by_mask[recovery.mask], after.by_mask[Mask()]]


def _time_step(recovery: Recovery, model: ModelSpec, rows: list[Row], folder: Path, at_once: int) -> tuple[float, int]:
    """Return the seconds of a step on rows of mean length, and the most memory that it took, in bytes."""
    n_steps = 2 if recovery.on_gpu else 1  # on a CPU a step takes long, and the first as long as the next
    options = replace(recovery.spec.options, workers=1, max_steps=n_steps, epochs=1.0, warmup_steps=0, patience=None)
    n_rows = min(len(rows), n_steps * options.batch_size + 1)
    options = replace(options, held_out=0.5 / n_rows)
    chosen = sorted(rows, key=lambda row: len(row.ids))[len(rows) // 2 :][:n_rows]
    with quiet(), all_threads(), naming_bitsandbytes(options):
        data = TrainingRows.of((chosen * n_rows)[:n_rows], options)
        if options.loss == "distill":  # what the dense model says takes the same time whatever it is
            k = min(options.top_k, recovery.assessment.info.vocab_size)
            sizes = [(len(row.ids) - start, k) for row, start in zip(data.rows, data.starts, strict=True)]
            made_up = [TopLogits(np.zeros(n, np.int32), np.full(n, -np.log(2 * k), np.float16)) for n in sizes]
            data = replace(data, top_logits=made_up)
        setup = TrainingSetup(model, recovery.tokenizer, data, options, folder, recovery.on_gpu)
        trainer = make_trainer(setup, at_once)
        trainer.args.eval_strategy = trainer.args.save_strategy = "no"
        trainer.args.load_best_model_at_end = False
        if recovery.on_gpu:  # once to warm up
            trainer.train()
        memory = PeakMemory.of(one.device for one in cast(Module, trainer.model).parameters())
        started = time.monotonic()
        trainer.train()
        passed_s = time.monotonic() - started
    return passed_s / trainer.state.global_step / recovery.spec.options.workers, memory.peak()
