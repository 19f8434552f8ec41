"""From a finished search to a recovered checkpoint, in steps that are each done once, whatever is killed."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysearch.assessment.assess import Assessable, assess_masks, check_tasks, read_assessable
from raysearch.assessment.recorded import record_assessments, record_numbers
from raysearch.calibration.windows import WindowOptions
from raysearch.core.mask import Mask
from raysearch.core.paths import as_path
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.session import prepare_data
from raysearch.evaluation.spec import identity_of
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import held
from raysearch.models.export import check_destination
from raysearch.models.loading import load_tokenizer, quiet
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery.checkpoint import Evidence, write_card, write_checkpoint, written_by
from raysearch.recovery.progress import Pace, timed
from raysearch.recovery.prompts import LeftOut, Measured, Prompts, Row, answered, check_enough, draw_prompts, n_within
from raysearch.recovery.record import RecoveryRecord, recoveries_of, write_recovery
from raysearch.recovery.responses import write_answers
from raysearch.recovery.results import Recovered, RecoveryCost
from raysearch.recovery.spec import RecoverSpec
from raysearch.recovery.teacher import teach
from raysearch.recovery.training import Lesson, all_threads, first_scored, held_out, make_trainer, steps, train
from raysearch.search.export import export_search
from raysearch.search.observer import Observer
from raysearch.search.record import SearchRecord
from raysearch.search.spec import SearchSpec

_ROWS, _CARD = "rows.jsonl", "rows.json"
_COPIES = 3  # of a model in float32, that the disk must hold: pruned, merged, a checkpoint
_UNITS = 64  # jobs of the dense model, about: enough for any number of replicas to be of use


@dataclass(frozen=True)
class _Rows:
    """The rows of a training, as they are kept."""

    rows: tuple[Row, ...]
    left_out: Mapping[str, int]
    answers_written: int


@dataclass(frozen=True)
class _Recovery:
    """A recovery, checked and named."""

    run: SearchRecord
    search: SearchSpec
    spec: RecoverSpec
    mask: Mask
    what: Assessable
    name: str
    folder: Path
    on_gpu: bool

    @property
    def fingerprint(self) -> str:
        """The dense model's fingerprint."""
        return self.what.texts.files.fingerprint

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, apart from the one that others use."""
        return load_tokenizer(self.what.info.model)


def recover_search(
    run: SearchRecord,
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
        run: The search's record.
        ledger: Where that is; what is kept of the recovery lies beside it, in ``recoveries/``.
        search: What it was made of, built from `run.config`.
        spec: What to train on, how, and what to assess.
        out: The folder of the recovered checkpoint.
        remove: The best mask of so many layers; None for the mask that the search found, 0 for the dense model.
        overwrite: Whether a checkpoint that is there is replaced.
        observer: Watches, and records.

    Raises:
        UserError: Something the user named is not there, too small, or does not fit together.
        EvaluationError: Something failed for good.
    """
    this = _prepare(run, ledger, search, spec, remove)
    result = _recover(this, ledger, as_path("--out", out).absolute(), overwrite, observer)
    record = _record(this, ledger, result, "", observer)
    if this.mask == run.found.mask:
        record_numbers(ledger, [(run, record.named)], observer)
    return result


def recover_in_study(
    run: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    way: str,
    *,
    remove: int | None,
    observer: Observer,
) -> RecoveryRecord:
    """Recover a mask for its numbers alone, once; of the models only an adapter is kept.

    Args:
        run: The search's record.
        ledger: Where that is.
        search: What it was made of.
        spec: What to train on, how, and what to assess.
        way: The study's label of that.
        remove: 0 for the dense model, None for the mask that the search found.
        observer: Watches, and records.

    Raises:
        UserError: As `recover_search`.
        EvaluationError: As `recover_search`.
    """
    this = _prepare(run, ledger, search, spec, remove)
    for known in recoveries_of(ledger, this.fingerprint, [this.mask]):
        if known.recovery_id == this.name:
            return write_recovery(ledger, this.fingerprint, replace(known, way=way))
    out = this.folder / "recovered"
    record = _record(this, ledger, _recover(this, ledger, out, True, observer), way, observer)
    for folder in (out, this.folder / "pruned", *([this.folder / "trained"] if spec.options.method == "full" else [])):
        shutil.rmtree(folder)
    return record


def _recover(this: _Recovery, ledger: Ledger, out: Path, overwrite: bool, observer: Observer) -> Recovered:
    """Train, write and assess a model; what was done before is not done again."""
    pace, spec, run = Pace(), this.spec, this.run
    if written_by(out) != this.name:
        check_destination(replace(locate(this.search.evaluation.model)), out, overwrite)
        _check_room(this, out)
    check_tasks(this.what, ledger)
    stages: dict[str, float] = {}
    with held(ledger, this.name, "RECOVERY"):
        this.folder.mkdir(parents=True, exist_ok=True)
        with _replicas(this) as replicas:
            with timed(stages, "data"):
                found = _rows(this, ledger, replicas, observer)
            pruned = this.folder / "pruned"
            if not pruned.is_dir():
                observer.assessing("writing the pruned checkpoint")
                with timed(stages, "checkpoints"):
                    export_search(run, this.search, pruned, remove=len(this.mask))
            taught = None
            if spec.options.loss == "distill" and not (this.folder / "trained").is_dir():
                starts = first_scored(found.rows, spec.options.completion_only)
                folder = this.folder / "teacher"
                with timed(stages, "logits"):
                    taught = teach(found.rows, starts, spec.options.top_k, folder, replicas, observer.assessing)
        lesson = Lesson.of(found.rows, spec.options, taught)
        with timed(stages, "training"):
            training = train(
                *(pruned, this.tokenizer, lesson, spec.options, this.folder, spec.cluster),
                on_gpu=this.on_gpu,
                on_progress=observer.assessing,
                warn=observer.warn,
            )
        shutil.rmtree(this.folder / "teacher", ignore_errors=True)
        evidence = Evidence(
            recovery_id=this.name,
            search_id=run.search_id,
            model=this.search.evaluation.model.name,
            mask=this.mask,
            n_layers_dense=this.what.info.n_layers,
            method=spec.options,
            rows=len(found.rows),
            data=_described(spec),
            left_out=found.left_out,
            training=training,
            version=importlib.metadata.version("raysearch"),
        )
        if written_by(out) != this.name:
            observer.assessing("writing the recovered checkpoint")
            with timed(stages, "checkpoints"):
                write_checkpoint(pruned, this.folder / "trained", out, evidence)
        with timed(stages, "assessment"):
            result = _assess(this, ledger, found, evidence, out, observer)
        write_card(out, out.name, evidence, result.numbers)
    return replace(result, stages=stages, seconds=pace.seconds)


def _record(this: _Recovery, ledger: Ledger, result: Recovered, way: str, observer: Observer) -> RecoveryRecord:
    record = write_recovery(ledger, this.fingerprint, result.record(way))
    observer.recovered(this.run, this.name, record.training.points, {**record.costs, **record.named})
    return record


def recovery_cost(
    run: SearchRecord, ledger: Ledger, search: SearchSpec, spec: RecoverSpec, remove: int | None
) -> RecoveryCost:
    """Return what a recovery would cost, by drawing its prompts and timing a step; nothing is kept.

    Args:
        run: The search's record.
        ledger: Where that is.
        search: What it was made of.
        spec: What to train on, and how.
        remove: The best mask of so many layers; None for the mask that the search found.

    Raises:
        UserError: As `recover_search`.
    """
    import tempfile

    this, options = _prepare(run, ledger, search, spec, remove), spec.options
    prompts = _draw(this)
    if prompts.rows:
        rows, answers = list(prompts.rows), 0
    elif options.responses == "data":
        rows = [answered(one, one.answer, this.tokenizer, "a row of data") for one in prompts.questions]
        rows, answers = [row for row in rows if len(row.ids) <= options.max_tokens], 0
    else:  # the longest answers that there may be
        filler = (this.tokenizer.eos_token_id or 0,) * options.max_new_tokens
        rows = [Row((one.ids + filler)[: options.max_tokens], len(one.ids)) for one in prompts.questions]
        answers = len(rows)
    rows = rows[: n_within(rows, options.tokens)]
    check_enough(len(rows), prompts.left_out)
    n_train = len(rows) - held_out(len(rows), options)
    n_steps = steps(n_train, options)
    with tempfile.TemporaryDirectory(dir=ledger.path.parent) as scratch:
        pruned = Path(scratch) / "pruned"
        export_search(run, search, pruned, remove=remove)
        step_s, memory = _time_step(this, pruned, rows, Path(scratch))
    mean = sum(len(row.ids) for row in rows) / len(rows)
    return RecoveryCost(
        rows=len(rows),
        answers=answers,
        answer_tokens=answers * options.max_new_tokens,
        tokens=round(mean * n_steps * options.batch_size),
        steps=n_steps,
        step_s=step_s,
        seconds=step_s * n_steps,
        memory_bytes=memory,
        left_out=prompts.left_out,
    )


def _prepare(run: SearchRecord, ledger: Ledger, search: SearchSpec, spec: RecoverSpec, remove: int | None) -> _Recovery:
    """Check all that can be checked before anything is computed."""
    mask, evaluation = run.best_of_size(remove).mask, search.evaluation
    spec.data.check()
    what = read_assessable(spec.assess, evaluation.model, spec.cluster, evaluation.ledger)
    run.check_weights(what.texts.files.fingerprint)
    identity = {
        "model": what.texts.files.fingerprint,
        "calibrations": dict(run.fingerprints),
        "mask": list(mask),
        "options": identity_of(spec.options),
        "data": [identity_of(spec.data.rows), identity_of(spec.data.format), identity_of(spec.data.draw)],
        "files": [what.texts.files.tokenizer_fingerprint, *map(_content, spec.data.rows.files() or ())],
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    name = f"recover-m{len(mask)}-{digest[:8]}"
    return _Recovery(
        run=run,
        search=search,
        spec=spec,
        mask=mask,
        what=what,
        name=name,
        folder=ledger.path.parent / "recoveries" / name,
        on_gpu=what.info.model.on_gpu,
    )


def _rows(this: _Recovery, ledger: Ledger, replicas: Callable[[], Pool], observer: Observer) -> _Rows:
    """Return the rows to train on, drawn and answered once and then kept."""
    options, folder = this.spec.options, this.folder
    if (folder / _CARD).is_file():
        rows = [json.loads(line) for line in (folder / _ROWS).read_text(encoding="utf-8").splitlines()]
        card = json.loads((folder / _CARD).read_text(encoding="utf-8"))
        return _Rows(tuple(Row(tuple(one["ids"]), one["n_prompt"]) for one in rows), card["left_out"], 0)
    observer.assessing("drawing the data")
    prompts = _draw(this)
    left_out: dict[str, int] = dict(prompts.left_out)
    kept, texts, n_written = list(prompts.rows), [""] * len(prompts.rows), 0
    if prompts.questions:
        answers = [(one.answer, False) for one in prompts.questions]
        if options.responses == "self":
            written, n_written = write_answers(
                prompts.questions, options, this.what, ledger, replicas, observer.assessing
            )
            answers = [(one.text, one.cut_off) for one in written]
        for question, (answer, cut_off) in zip(prompts.questions, answers, strict=True):
            reason, row = _judged(answer, cut_off), None
            if reason is None:
                row = answered(question, answer.strip(), this.tokenizer, "a row of data")
                reason = "too long" if len(row.ids) > options.max_tokens else None
            if row is not None and reason is None:
                kept.append(row)
                texts.append(answer.strip())
            elif reason is not None:
                left_out[reason] = left_out.get(reason, 0) + 1
    order = np.random.default_rng(options.seed).permutation(len(kept)).tolist()
    n_rows = n_within((kept[place] for place in order), options.tokens)
    if n_rows < len(order):
        left_out["beyond recovery.tokens"] = len(order) - n_rows
        order = order[:n_rows]
    check_enough(n_rows, left_out)
    lines = [
        json.dumps({"ids": kept[place].ids, "n_prompt": kept[place].n_prompt, "answer": texts[place]}) + "\n"
        for place in order
    ]
    content = "".join(lines)
    card = {
        "recovery_id": this.name,
        "rows": n_rows,
        "tokens": sum(len(kept[place].ids) for place in order),
        "left_out": left_out,
        "data": _described(this.spec),
        "answered_by": this.what.texts.files.fingerprint if n_written else None,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    for file, text in ((folder / _ROWS, content), (folder / _CARD, json.dumps(card, indent=2) + "\n")):
        unfinished = file.with_name(f"{file.name}.part")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    return _Rows(tuple(kept[place] for place in order), left_out, n_written)


def _draw(this: _Recovery) -> Prompts:
    """Draw prompts or text apart from the calibration and the assessment."""
    what = this.what
    searched = prepare_data(this.search.evaluation, what.info, what.texts).calibrations
    measured = Measured([*searched, *what.calibrations], this.tokenizer)
    return draw_prompts(this.spec.data, this.spec.options, this.tokenizer, measured, what.info.max_positions)


def _assess(
    this: _Recovery, ledger: Ledger, found: _Rows, evidence: Evidence, out: Path, observer: Observer
) -> Recovered:
    """Assess dense, pruned and recovered; what the ledger knows is not computed again."""
    before = assess_masks(this.what, ledger, [this.mask], on_progress=observer.assessing)
    if this.mask == this.run.found.mask:
        record_assessments(ledger, [this.run], before, observer)
    model = this.search.evaluation.model
    healed = ModelSpec(f"{model.name} recovered", str(out), device=model.device, attention=model.attention)
    after = read_assessable(this.spec.assess, healed, this.spec.cluster, ledger.path)
    recovered = assess_masks(after, ledger, [Mask()], on_progress=observer.assessing)
    return Recovered(
        recovery_id=this.name,
        search_id=this.run.search_id,
        model=model.name,
        mask=this.mask,
        out=out,
        rows=len(found.rows),
        left_out=found.left_out,
        answers_written=found.answers_written,
        training=evidence.training,
        stages={},
        dense=before.by_mask[Mask()],
        pruned=before.by_mask[this.mask],
        recovered=recovered.by_mask[Mask()],
        seconds=0.0,
    )


def _time_step(this: _Recovery, pruned: Path, rows: list[Row], scratch: Path) -> tuple[float, int]:
    """Return the seconds of a step on rows of mean length, and the most memory that it took, in bytes."""
    options, n_workers = replace(this.spec.options, workers=1), this.spec.options.workers
    options = replace(options, loss="tokens", max_steps=2, epochs=1.0, warmup_steps=0, patience=None)
    n_rows = min(len(rows), 2 * options.batch_size + 1)
    options = replace(options, held_out=0.5 / n_rows)
    chosen = sorted(rows, key=lambda row: len(row.ids))[len(rows) // 2 :][:n_rows]
    with quiet(), all_threads():
        lesson = Lesson.of((chosen * n_rows)[:n_rows], options)
        trainer = make_trainer(
            *(pruned, this.tokenizer, lesson, options, scratch / "timed", this.spec.options.rows_at_once),
            on_gpu=this.on_gpu,
        )
        trainer.args.eval_strategy = trainer.args.save_strategy = "no"
        trainer.args.load_best_model_at_end = False
        if this.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
        timed = Pace()
        trainer.train()
    if this.on_gpu:
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return timed.seconds / 2 / n_workers, memory


@contextmanager
def _replicas(this: _Recovery) -> Iterator[Callable[[], Pool]]:
    """Give the pool of the dense model when it is first needed, closed before the training."""
    opened: list[Pool] = []

    def replicas() -> Pool:
        if not opened:
            opened.append(this.spec.cluster.open(this.what.info.model, _UNITS))
        return opened[0]

    try:
        yield replicas
    finally:
        for pool in opened:
            pool.close()


def _judged(answer: str, cut_off: bool) -> LeftOut | None:
    if not answer.strip():
        return "empty"
    return "cut off" if cut_off else None


def _described(spec: RecoverSpec) -> dict[str, Any]:
    is_text = isinstance(spec.data.draw, WindowOptions)
    return {**spec.data.rows.describe(), "responses": None if is_text else spec.options.responses}


def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _check_room(this: _Recovery, out: Path) -> None:
    """Refuse disks that cannot hold what will be written."""
    needed = _COPIES * 4 * this.what.info.parameters
    for name, folder in (("--out", out), ("store", this.folder)):
        there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise UserError(
                f"{name}={folder} is on a disk with {free / 2**30:.1f} GiB left, and a recovery may write "
                f"{needed / 2**30:.1f}; free some space, or name another folder"
            )
