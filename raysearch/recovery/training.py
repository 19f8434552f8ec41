"""Trains a pruned model, once: one that was killed goes on from its last checkpoint as if nothing had happened."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from torch.nn import Module
from transformers import TrainerCallback
from typing_extensions import override

from raysearch.cluster.options import ClusterOptions
from raysearch.core.formatting import remaining
from raysearch.core.json import from_json, to_json
from raysearch.errors import UserError
from raysearch.evaluation.replica import in_memory, release
from raysearch.models.loading import quiet
from raysearch.recovery.record import Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.trainer import (
    CHECKPOINTS,
    RecoveryTrainer,
    TrainingSetup,
    all_threads,
    make_trainer,
    naming_bitsandbytes,
)
from raysearch.searching.observer import LossPoint

T = TypeVar("T")

_DIVERGED = 1.5  # times the loss of the first steps
_FIRST = 3  # steps whose mean loss others are compared with
TRAINED, DONE = "trained", "history.json"
_UNFINISHED = "trained.part"


class _Watch(TrainerCallback):
    """Says how far the training is, and notices a loss that grows."""

    def __init__(self, rate: float, on_progress: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._rate, self._on_progress, self._warn = rate, on_progress, warn
        self._started, self._done_before, self._warned = time.monotonic(), 0, False
        self._held_out = ""

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._started, self._done_before = time.monotonic(), state.global_step

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        logs = logs or {}
        if "eval_loss" in logs:
            self._held_out = f", held-out {logs['eval_loss']:.4f}"
        if "loss" not in logs:
            return
        loss, step = logs["loss"], state.global_step
        if not math.isfinite(loss) or not math.isfinite(logs.get("grad_norm", 0.0)):
            raise UserError(
                f"the training has diverged at step {step}: its loss is not finite; use a lower "
                f"recovery.learning_rate than {self._rate:g}"
            )
        losses = [one["loss"] for one in state.log_history if "loss" in one]
        first, recent = losses[:_FIRST], losses[-_FIRST:]
        if len(recent) == _FIRST < step and min(recent) > _DIVERGED * sum(first) / len(first) and not self._warned:
            self._warned = True
            self._warn(
                f"the training's loss grows ({loss:.3f} at step {step}, from {first[0]:.3f}); use a lower "
                f"recovery.learning_rate than {self._rate:g}"
            )
        passed_s, before = time.monotonic() - self._started, self._done_before
        left = remaining(passed_s, step - before, state.max_steps - before)
        self._on_progress(f"training: step {step} of {state.max_steps}, loss {loss:.4f}{self._held_out}, {left} left")


def train(
    setup: TrainingSetup,
    cluster: ClusterOptions,
    *,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> Training:
    """Train a checkpoint, and write its adapter or its weights to ``trained`` in its folder; nothing is done twice.

    A folder that has checkpoints goes on from the last. Several processes run on the cluster. What is wrong but stops
    nothing is told to `warn` in a sentence.

    Raises:
        UserError: Names of layers are wrong, the loss is not finite, or not even one row fits the memory.
        EvaluationError: One of several processes has died.
    """
    folder, options, on_gpu = setup.folder, setup.options, setup.on_gpu
    done, checkpoints = folder / TRAINED, folder / CHECKPOINTS
    if is_trained(folder):
        return from_json(Training, (done / DONE).read_text(encoding="utf-8"))
    shutil.rmtree(done, ignore_errors=True)
    started = time.monotonic()

    def fit_from_last(micro: int) -> Training:
        work = partial(_fit, setup, last_checkpoint(checkpoints, options.workers), micro)
        if options.workers == 1:
            return work(on_progress, warn)
        from raysearch.recovery.workers import on_workers  # Ray takes a second to import

        return on_workers(work, options.workers, cluster, on_gpu=on_gpu, on_progress=on_progress, warn=warn)

    training = within_memory(fit_from_last, options, on_gpu, warn)
    release()  # the GPU is other processes' now
    training = replace(training, seconds=time.monotonic() - started)
    unfinished = folder / _UNFINISHED
    (unfinished / DONE).write_text(to_json(training), encoding="utf-8")
    unfinished.rename(done)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return training


def _fit(
    setup: TrainingSetup,
    last: str | None,
    micro: int,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> Training:
    """Train from a checkpoint to the end, in this process or as one of several, and write the weights."""
    with quiet(), all_threads(), naming_bitsandbytes(setup.options):
        trainer = make_trainer(setup, micro)
        before = _sums(trainer)
        trainer.add_callback(_Watch(setup.options.learning_rate, on_progress, warn))
        if last is not None and _has_ended(last):  # the trainer asks only after a step, so it must have none left
            trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
        trainer.train(resume_from_checkpoint=last)
        if _sums(trainer) == before:
            warn(
                "the training has changed no weight, so the recovered model is the pruned one; use more steps, or "
                f"another recovery.learning_rate than {setup.options.learning_rate:g}"
            )
        if trainer.is_world_process_zero():
            unfinished = setup.folder / _UNFINISHED
            shutil.rmtree(unfinished, ignore_errors=True)
            trained: Any = trainer.accelerator.unwrap_model(trainer.model)
            for config in getattr(trained, "peft_config", {}).values():  # a set, whose order differs between processes
                if not isinstance(config.target_modules, str):  # a pattern
                    config.target_modules = sorted(config.target_modules)
            trained.save_pretrained(unfinished)
    return _history(trainer, micro)


def _sums(trainer: RecoveryTrainer) -> list[float]:
    """Return the sum of each trained weight, by which a change is noticed."""
    model = cast(Module, trainer.model)
    return [one.detach().double().sum().item() for one in model.parameters() if one.requires_grad]


def within_memory(work: Callable[[int], T], options: RecoveryOptions, on_gpu: bool, warn: Callable[[str], None]) -> T:
    """Return what work with so many rows at once returns; where memory is short, half as many, or the next fewer."""
    micro = options.rows_at_once(on_gpu)

    def fewer_rows() -> None:
        nonlocal micro
        if micro == 1:
            raise UserError(
                f"recovery.max_tokens={options.max_tokens} is more than memory holds in training, even one row at "
                "once; use less, recovery.gradient_checkpointing=true, or recovery.method=qlora"
            )
        fewer = range(1, micro // 2 + 1)
        micro = max(one for one in fewer if options.batch_size % (one * options.workers) == 0)
        warn(f"memory does not hold so many rows at once; {micro} of them from here on, and more steps are summed")

    return in_memory(lambda: work(micro), fewer_rows)


def is_trained(folder: Path) -> bool:
    """Return whether a training in a folder has ended."""
    return (folder / TRAINED / DONE).is_file()


def last_checkpoint(folder: Path, workers: int = 1) -> str | None:
    """Return the last checkpoint that is whole, and remove what a killed process left of others; None for none."""
    found = {int(one.name.partition("-")[2]): one for one in folder.glob("checkpoint-*")}
    for _, one in sorted(found.items(), reverse=True):
        # The first process writes its state last, every process its random numbers.
        written = (one / "trainer_state.json").is_file() and len([*one.glob("rng_state*.pth")]) >= workers
        if written and all(map(_can_be_read, one.iterdir())):
            return str(one)
        shutil.rmtree(one, ignore_errors=True)
    return None


def _can_be_read(file: Path) -> bool:
    """Return whether an archive or JSON of a checkpoint is whole, which a power cut may leave it not."""
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt"):
                return True
        if file.suffix in (".pt", ".pth"):
            with ZipFile(file) as parts:
                return parts.testzip() is None
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError, BadZipFile):
        return False
    return True


def _has_ended(checkpoint: str) -> bool:
    """Return whether a training was at its end when a checkpoint was written: by its steps, or by its patience."""
    state = json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))
    return bool(state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"])


def _history(trainer: RecoveryTrainer, micro: int) -> Training:
    points, model = list[LossPoint](), cast(Module, trainer.model)
    log: list[dict[str, Any]] = trainer.state.log_history
    for one in log:
        if "loss" in one or "eval_loss" in one:
            tokens = int(one.get("num_input_tokens_seen", points[-1].tokens if points else 0))
            points.append(LossPoint(one["step"], tokens, one.get("loss"), one.get("eval_loss")))
    return Training(
        points=tuple(points),
        steps=trainer.state.global_step,
        best_step=trainer.state.best_global_step or trainer.state.global_step,
        tokens=int(trainer.state.num_input_tokens_seen),
        parameters=sum(one.numel() for one in model.parameters() if one.requires_grad),
        seconds=0.0,  # known to `train`
        micro_batch_size=micro,
    )
