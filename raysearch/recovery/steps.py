"""Turns a mask into a trained, merged checkpoint. Each step is done once, even if a process is killed."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysearch.calibration.windows import WindowOptions
from raysearch.checkpoints.card import RECORD
from raysearch.core.json import from_json, to_json
from raysearch.core.paths import write_atomically
from raysearch.core.space import LAYERS
from raysearch.core.versions import VERSION
from raysearch.evaluation.memory import release_memory
from raysearch.evaluation.pool import Pool, opening
from raysearch.models.spec import ModelSpec
from raysearch.recovery.budget import Budget, StepCosts, TimeLimit, fitting_steps
from raysearch.recovery.checkpoint import DONE, RecoveryEvidence, write_checkpoint, written_by
from raysearch.recovery.planned_recovery import ROWS_CARD, PlannedRecovery, check_room
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import TrainingRow, n_to_train_on, row_of, usable_rows
from raysearch.recovery.repair import repair
from raysearch.recovery.responses import write_answers
from raysearch.recovery.spec import RecoveryOptions, RecoverySpec
from raysearch.recovery.step_time import StepTime, time_step
from raysearch.recovery.teacher import ROWS_PER_JOB, TopLogits, top_logits_of
from raysearch.recovery.trainer import TrainingRows
from raysearch.recovery.training import TRAINED, is_trained, train, within_memory
from raysearch.searching.export import export_search
from raysearch.searching.observer import Observer
from raysearch.text.redaction import redacted

TEACHER = "teacher"  # the folder of the dense model's logits
RECOVERED = "recovered"  # the folder of the recovered checkpoint, if the user names none
_PRUNED = "pruned"
_BUDGET = "budget.json"  # what fits into --minutes
_ROWS = "rows.jsonl"
_N_JOBS = 64  # about the number of jobs for the dense model; more than any number of replicas

#: Returns the pool of the dense model, which starts on the first call. The context ends before the training.
Replicas = AbstractContextManager[Callable[[], Pool]]


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
    is_written = written_by(out) == recovery.name and is_trained(recovery.folder)
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
        if not (pruned / RECORD).is_file() and not is_written:
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
            left_out = {**left_out, **budget.left_out(len(rows))}
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
            logits_row_s = _logits_row_seconds(recovery, TrainingRows.of(rows, options), replicas, observer)
        costs = StepCosts(limit.spent_s, step, logits_row_s, write_s)
        write_atomically(file, to_json(fitting_steps(limit, options, len(rows), costs)))
    budget = from_json(Budget, file.read_text(encoding="utf-8"))
    observer.warn(str(budget))
    return budget


def _logits_row_seconds(
    recovery: PlannedRecovery, data: TrainingRows, replicas: Callable[[], Pool], observer: Observer
) -> float:
    """Return the seconds of the dense model's logits on one row, when all replicas work."""
    shutil.rmtree(recovery.shared / TEACHER, ignore_errors=True)  # of a process that was killed here
    _top_logits(recovery, data.part(0, ROWS_PER_JOB), replicas, observer)  # starts the replicas

    def busy_s() -> float:
        return sum(replica.busy_s for replica in replicas().stats.replicas)

    before_s = busy_s()  # the clock would also show how long another replica takes to load
    n_timed = len(_top_logits(recovery, data.part(0, 2 * ROWS_PER_JOB), replicas, observer)) - ROWS_PER_JOB
    n_replicas = recovery.spec.cluster.size(recovery.teacher.info, _N_JOBS).n_replicas
    return (busy_s() - before_s) / max(1, n_timed) / n_replicas


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
    if (folder / ROWS_CARD).is_file() and (folder / _ROWS).is_file():
        card = json.loads((folder / ROWS_CARD).read_text(encoding="utf-8"))
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
    write_atomically(folder / ROWS_CARD, json.dumps(redacted(card), indent=2) + "\n")
    return _PreparedRows(rows, dict(left_out), n_new_answers)


def describe_data(spec: RecoverySpec) -> dict[str, Any]:
    """Return the description of the data for cards."""
    is_text = isinstance(spec.data.draw, WindowOptions)
    description = {**spec.data.rows.describe(), "responses": None if is_text else spec.options.responses}
    if "path" in description:  # a card may be public, and must not show folders of this machine
        description["path"] = Path(description["path"]).name
    return description
