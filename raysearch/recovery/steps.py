"""From a mask to a trained, merged checkpoint, in steps that are each done once, even if a process is killed."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysearch.assessment.assess import plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.own_data import name_of
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.windows import WindowOptions
from raysearch.core.digest import digest
from raysearch.core.formatting import count, size
from raysearch.core.mask import Mask
from raysearch.core.paths import write_whole
from raysearch.core.versions import VERSION
from raysearch.errors import UserError, redacted
from raysearch.evaluation.pool import Pool, opening
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.ledger.ledger import Ledger
from raysearch.models.card import RECORD
from raysearch.models.loading import load_tokenizer
from raysearch.models.spec import ModelSpec
from raysearch.recovery.checkpoint import RecoveryEvidence, write_checkpoint, written_by
from raysearch.recovery.progress import timed
from raysearch.recovery.prompts import Prompts, Row, draw_prompts, kept_rows, n_to_train_on, row_of
from raysearch.recovery.responses import write_answers
from raysearch.recovery.spec import RecoverSpec, RecoveryOptions
from raysearch.recovery.teacher import top_logits_of
from raysearch.recovery.trainer import TrainingRows, TrainingSetup, check_targets
from raysearch.recovery.training import DONE, TRAINED, is_trained, train
from raysearch.searching.export import export_search
from raysearch.searching.observer import Observer
from raysearch.searching.record import SearchRecord
from raysearch.searching.spec import SearchSpec

TEACHER = "teacher"  # the folder of the dense model's logits
RECOVERED = "recovered"  # that of the recovered checkpoint, where nobody has named one
_PRUNED = "pruned"
_ROWS, _CARD = "rows.jsonl", "rows.json"
_CHECKPOINTS, _OF_CHECKPOINT = 3, 12  # as many are there at once; bytes of weights and of AdamW's two moments in each
_UNITS = 64  # jobs of the dense model, about: enough for any number of replicas to be of use

#: Gives the pool of the dense model when it is first needed, within a context that ends before the training.
Replicas = AbstractContextManager[Callable[[], Pool]]


@dataclass(frozen=True)
class Recovery:
    """A recovery, checked and named.

    Args:
        record: The search that found the mask.
        search: What that was made of.
        assessment: The model, and what it is assessed by.
        folder: Where its steps are kept.
        shared: Where its rows and the dense model's logits are kept.
    """

    record: SearchRecord
    ledger: Ledger
    search: SearchSpec
    spec: RecoverSpec
    mask: Mask
    assessment: AssessmentPlan
    name: str
    folder: Path
    shared: Path
    on_gpu: bool

    @property
    def asked(self) -> dict[str, str]:
        """The metrics that models are to be assessed by, speed aside: names, and all that each number depends on."""
        spec, plan = self.assessment.spec, self.assessment
        samples = zip((*spec.texts, *spec.generation), plan.calibrations, strict=True)
        probe = {"probe": plan.named({"probe": [one.prompt for one in plan.problems]})} if plan.problems else {}
        tasks = {one.name: plan.name_of(one) for one in plan.sources}
        return {name: one.fingerprint for name, one in samples} | tasks | probe

    def model_in(self, folder: Path, what: str = "") -> ModelSpec:
        """The searched model with the weights of a folder, and with another name if it is to be measured."""
        model = self.search.evaluation.model
        return replace(model, name=f"{model.label} {what}".rstrip(), path=str(folder), dtype="auto", revision=None)

    @functools.cached_property
    def prompts(self) -> Prompts:
        """The prompts or text to train on, apart from the calibration and the assessment."""
        plan, spec = self.assessment, self.spec
        searched = prepare_data(self.search.evaluation, plan.info, plan.files).calibrations
        measured = SeenTexts([*searched, *plan.calibrations], self.tokenizer)
        return draw_prompts(spec.data, spec.options, self.tokenizer, measured, plan.info.max_positions)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, apart from the one that others use."""
        return load_tokenizer(self.assessment.info.model)


def prepare(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    remove: int | None,
    plan: AssessmentPlan | None = None,
    shared: Path | None = None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Recovery:
    """Check all that can be checked before anything is computed.

    The arguments are those of `recover_search`. The model, and what it is assessed by, is read if it was not; rows and
    logits are kept in a folder that several masks share, or else in this one's own. Which data are taken instead of the
    search's own is told to `warn`.
    """
    evaluation = search.evaluation
    check_first_gpu(evaluation.model.device)
    spec.data.check()
    if plan is None:
        plan = plan_assessment(spec.assess, evaluation.model, spec.cluster, evaluation.ledger, searched=evaluation)
    record.check_weights(plan.fingerprint)
    check_targets(plan.info.model, spec.options)
    for note in plan.notes:
        warn(note)
    plain = _named(record, ledger, search, spec, remove, plan, shared)
    own = spec.on_own_data(evaluation, search.config)
    if own is None:
        return plain
    recovery, data = _named(record, ledger, search, own, remove, plan, shared), name_of(own.data)
    if (recovery.shared / _CARD).is_file():  # drawn before
        return recovery
    try:
        prompts = recovery.prompts
    except UserError as error:
        if not own.data.rows.is_local:  # it may be the network
            raise
        why_not = str(error)
    else:
        if len(prompts.rows or prompts.questions) > spec.options.batch_size:
            return recovery
        why_not = f"{data} holds {count(len(prompts.rows or prompts.questions), 'row')} besides what was measured"
    warn(
        f"the search's own data are too few to train on ({why_not}); State of the Union addresses are taken instead; "
        "for other text: data=file data.path=…"
    )
    return plain


def _named(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: RecoverSpec,
    remove: int | None,
    plan: AssessmentPlan,
    shared: Path | None,
) -> Recovery:
    """Return a recovery, named by all that it depends on."""
    mask = record.best_of_size(remove).mask
    measured = sorted(one.text_fingerprint for one in plan.calibrations)
    identity = {
        "model": plan.fingerprint,
        "calibrations": record.identifying,
        "mask": list(mask),
        **spec.identity,
        **({"measured": measured} if measured else {}),  # rows are drawn apart from it
        "files": [plan.files.tokenizer_fingerprint, *spec.digests],
    }
    name = f"recover-m{len(mask)}-{digest(identity, 8)}"
    folder = ledger.path.absolute().parent / "recoveries" / name  # workers stand in other folders
    return Recovery(record, ledger, search, spec, mask, plan, name, folder, shared or folder, plan.info.model.on_gpu)


def check_first_gpu(device: str) -> None:
    """Refuse a search on another GPU than the first, on which transformers trains."""
    _, _, index = device.partition(":")
    if int(index or 0):
        raise UserError(
            f"model.device={device} of the search names one GPU, but a training takes the first; search with "
            f"model.device=cuda and CUDA_VISIBLE_DEVICES={index} in the environment, and recover that search so"
        )


def heal(
    recovery: Recovery, out: Path, stages: dict[str, float], observer: Observer, replicas: Replicas | None = None
) -> tuple[RecoveryEvidence, int]:
    """Train a model and write it to `out`; return how it came about, and how many answers the dense model wrote now.

    What was done before is not done again. The seconds of each stage are added to `stages`. Without replicas of the
    dense model some are opened where they are needed.
    """
    spec, record = recovery.spec, recovery.record
    pruned, is_written = recovery.folder / _PRUNED, written_by(out) == recovery.name
    if not is_written and not [*recovery.folder.glob(f"{TRAINED}/*.safetensors")]:
        (recovery.folder / TRAINED / DONE).unlink(missing_ok=True)  # what was trained lay in another folder alone
    model = recovery.model_in(pruned)
    if not recovery.folder.exists():
        check_room(recovery)
    recovery.folder.mkdir(parents=True, exist_ok=True)
    recovery.shared.mkdir(parents=True, exist_ok=True)
    with replicas or opening(spec.cluster, recovery.assessment.info, _UNITS) as pool:
        with timed(stages, "data"):
            rows, left_out, n_written = _rows(recovery, pool, observer)
        if not (pruned / RECORD).is_file() and not (is_written and is_trained(recovery.folder)):
            shutil.rmtree(pruned, ignore_errors=True)
            observer.assessing("writing the pruned checkpoint")
            with timed(stages, "checkpoints"):
                export_search(record, recovery.search, pruned, remove=len(recovery.mask))
        data = TrainingRows.of(rows, spec.options)
        if spec.options.loss == "distill" and not is_trained(recovery.folder):
            with timed(stages, "logits"):
                top_k, folder = spec.options.top_k, recovery.shared / TEACHER
                top_logits = top_logits_of(data.rows, data.starts, top_k, folder, pool, observer.assessing)
            data = replace(data, top_logits=top_logits)
    setup = TrainingSetup(model, recovery.tokenizer, data, spec.options, recovery.folder, recovery.on_gpu)
    with timed(stages, "training"):
        observer.assessing("training: loading the model, then step 1")
        training = train(setup, spec.cluster, on_progress=observer.assessing, warn=observer.warn)
    evidence = RecoveryEvidence(
        recovery_id=recovery.name,
        search_id=record.search_id,
        model=recovery.search.evaluation.model.label,
        mask=recovery.mask,
        n_layers_dense=recovery.assessment.info.n_layers,
        method=spec.options,
        rows=len(rows),
        data=_described(spec),
        left_out=left_out,
        training=training,
        version=VERSION,
    )
    if not is_written:
        observer.assessing("writing the recovered checkpoint")
        with timed(stages, "checkpoints"):
            write_checkpoint(model, recovery.folder / TRAINED, out, evidence)
    return evidence, n_written


def remove_models(folder: Path, options: RecoveryOptions) -> None:
    """Remove the models that a recovery has left in its folder, once its numbers are known; an adapter stays."""
    trained = [folder / TRAINED / DONE] if options.method == "full" else []
    for marker in (*trained, folder / _PRUNED / RECORD, folder / RECOVERED / RECORD):
        marker.unlink(missing_ok=True)  # first, so that nothing takes what a killed process leaves for whole
        shutil.rmtree(marker.parent, ignore_errors=True)


def remove_copies(folder: Path, options: RecoveryOptions) -> None:
    """Remove the models that the recovered checkpoint makes needless from a recovery's folder; an adapter stays."""
    (folder / _PRUNED / RECORD).unlink(missing_ok=True)  # first, as above
    shutil.rmtree(folder / _PRUNED, ignore_errors=True)
    if options.method == "full":
        for weights in (folder / TRAINED).glob("*.safetensors"):
            weights.unlink()


def _rows(
    recovery: Recovery, replicas: Callable[[], Pool], observer: Observer
) -> tuple[list[Row], Mapping[str, int], int]:
    """Return the rows, drawn and answered once and then kept; what is left out; and how many answers are new."""
    options, folder = recovery.spec.options, recovery.shared
    if (folder / _CARD).is_file() and (folder / _ROWS).is_file():
        card, lines = json.loads((folder / _CARD).read_text(encoding="utf-8")), (folder / _ROWS).read_bytes()
        if card["sha256"] == hashlib.sha256(lines).hexdigest():
            known = map(json.loads, lines.splitlines())
            return [Row(tuple(one["ids"]), one["n_prompt"], one["answer"]) for one in known], card["left_out"], 0
    observer.assessing("drawing the data")
    prompts = recovery.prompts
    left_out, n_written = Counter(prompts.left_out), 0
    answers = [(one.answer, False) for one in prompts.questions]
    if options.responses == "self":
        how = options, recovery.assessment, recovery.ledger, replicas, observer.assessing
        written, n_written = write_answers(prompts.questions, *how)
        answers = [(one.text.strip(), one.cut_off) for one in written]
    asked = zip(prompts.questions, answers, strict=True)
    found = [row_of(question, answer, cut, options, recovery.tokenizer) for question, (answer, cut) in asked]
    rows = [*prompts.rows, *kept_rows(found, left_out)]
    rows = [rows[place] for place in np.random.default_rng(options.seed).permutation(len(rows))]
    rows = rows[: n_to_train_on(rows, options, left_out, recovery.spec.data)]
    content = "".join(json.dumps(vars(row)) + "\n" for row in rows)
    card = {
        "recovery_id": folder.name,
        "rows": len(rows),
        "tokens": sum(len(row.ids) for row in rows),
        "left_out": left_out,
        "data": _described(recovery.spec),
        "answered_by": recovery.assessment.fingerprint if prompts.questions and options.responses == "self" else None,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    write_whole(folder / _ROWS, content)
    write_whole(folder / _CARD, json.dumps(redacted(card), indent=2) + "\n")
    return rows, dict(left_out), n_written


def _described(spec: RecoverSpec) -> dict[str, Any]:
    is_text = isinstance(spec.data.draw, WindowOptions)
    described = {**spec.data.rows.describe(), "responses": None if is_text else spec.options.responses}
    if "path" in described:  # the card may be read by anybody
        described["path"] = Path(described["path"]).name
    return described


def check_room(recovery: Recovery) -> None:
    """Refuse a disk that cannot hold the models that a recovery writes; adapters and logits are small beside them."""
    info = recovery.assessment.info
    left = info.parameters - sum(info.layer_parameters[layer] for layer in recovery.mask)
    of_weight = 2 * getattr(torch, info.dtype).itemsize  # pruned and recovered
    if recovery.spec.options.method == "full":
        of_weight += _CHECKPOINTS * _OF_CHECKPOINT + 4
    store, needed = recovery.ledger.path.parent, left * of_weight
    if (free := shutil.disk_usage(store).free) < needed:
        raise UserError(
            f"store={store} has {size(free)} left, and this recovery needs {size(needed)}; free some space, or use "
            "another store=…"
        )
