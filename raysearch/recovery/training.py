"""Trains a pruned model, once. A training that was killed resumes from its last checkpoint, with the same result."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from torch.nn import Module, Parameter
from transformers import TrainerCallback
from typing_extensions import override

from raysearch.cluster.options import ClusterOptions
from raysearch.core.json import from_json, to_json
from raysearch.core.paths import write_atomically
from raysearch.errors import UserError
from raysearch.evaluation.memory import release_memory, retry_with_less_memory
from raysearch.models.loading import quiet
from raysearch.recovery.checkpoint import DONE
from raysearch.recovery.cut_training import CUTS, fit_cuts
from raysearch.recovery.loss_watch import LossWatch
from raysearch.recovery.range_test import RangeTest, range_test
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.trainer import (
    CHECKPOINTS,
    RecoveryTrainer,
    TrainingSetup,
    all_threads,
    make_trainer,
    naming_bitsandbytes,
)
from raysearch.searching.events import LossPoint
from raysearch.text.numbers import remaining

T = TypeVar("T")

_log = logging.getLogger(__name__)
TRAINED = "trained"  # the folder of the trained adapter or weights
UNFINISHED = "trained.part"  # the folder of their values until then
_RANGE_TEST = "learning_rate.json"


class _Watch(TrainerCallback):
    """Reports the progress of the training, and warns of a growing loss."""

    def __init__(self, rate: float, on_progress: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._on_progress = on_progress
        self._watch = LossWatch(rate, warn)
        self._started = time.monotonic()
        self._steps_before = 0  # that an earlier process has done
        self._held_out = ""

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._started = time.monotonic()
        self._steps_before = state.global_step

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        logs = logs or {}
        if "eval_loss" in logs:
            self._held_out = f", held-out {logs['eval_loss']:.4f}"
        if "loss" not in logs:
            return
        loss = logs["loss"]
        step = state.global_step
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        self._watch.check(losses, step, logs.get("grad_norm", 0.0))
        elapsed_s = time.monotonic() - self._started
        time_left = remaining(elapsed_s, step - self._steps_before, state.max_steps - self._steps_before)
        self._on_progress(
            f"training: step {step} of {state.max_steps}, loss {loss:.4f}{self._held_out}, {time_left} left"
        )


def train(
    setup: TrainingSetup,
    cluster: ClusterOptions,
    *,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> Training:
    """Train a checkpoint, and write its adapter or its weights to ``trained`` in the setup's folder.

    A training that has ended is not repeated; one that was killed resumes from the last checkpoint in the folder.

    Args:
        setup: The checkpoint, the rows and the options.
        cluster: The cluster, if there are several workers.
        on_progress: Receives a line after each step.
        warn: Receives a sentence for each problem that does not stop the training.

    Returns:
        The losses of the training, and its costs.

    Raises:
        UserError: Names of layers are wrong, the loss is not finite, or not even one row fits the memory.
        EvaluationError: One of several processes has died.
    """
    folder = setup.folder
    options = setup.options
    on_gpu = setup.on_gpu
    trained = folder / TRAINED
    checkpoints = folder / CHECKPOINTS
    if (earlier := read_training(folder)) is not None:
        _remove_states(folder)  # of a process that was killed here
        return earlier
    shutil.rmtree(trained, ignore_errors=True)
    started = time.monotonic()

    if options.learning_rate == "auto":
        rate = _tested_rate(setup, on_progress, warn)
        options = replace(options, learning_rate=rate)
        setup = replace(setup, options=options)

    def fit_from_last(micro_batch_size: int) -> Training:
        if options.loss == "hidden":
            with quiet(), all_threads():
                return fit_cuts(setup, micro_batch_size, folder / UNFINISHED, on_progress, warn)
        work = partial(_fit, setup, last_checkpoint(checkpoints, options.workers), micro_batch_size)
        if options.workers == 1:
            return work(on_progress, warn)
        from raysearch.recovery.workers import on_workers  # Ray takes a second to import

        return on_workers(work, options.workers, cluster, on_gpu=on_gpu, on_progress=on_progress, warn=warn)

    training = within_memory(fit_from_last, options, on_gpu, warn)
    release_memory()  # other processes need the GPU's memory
    training = replace(training, seconds=time.monotonic() - started, learning_rate=options.rate)
    end_training(folder, training)
    _remove_states(folder)
    return training


def _remove_states(folder: Path) -> None:
    """Delete the states from which a training resumes; it has ended."""
    for states in (CHECKPOINTS, CUTS):
        shutil.rmtree(folder / states, ignore_errors=True)


def end_training(folder: Path, training: Training) -> None:
    """Mark the values in the folder `UNFINISHED` as those of a training that has ended.

    Args:
        folder: The folder of the recovery.
        training: The losses and the costs.
    """
    unfinished = folder / UNFINISHED
    (unfinished / DONE).write_text(to_json(training), encoding="utf-8")
    unfinished.rename(folder / TRAINED)


def read_training(folder: Path) -> Training | None:
    """Return the training in a folder that has ended; None if none has."""
    return from_json(Training, (folder / TRAINED / DONE).read_text(encoding="utf-8")) if is_trained(folder) else None


def _tested_rate(setup: TrainingSetup, on_progress: Callable[[str], None], warn: Callable[[str], None]) -> float:
    """Return the learning rate that a range test chooses. The test is done once, and its result is kept."""
    file = setup.folder / _RANGE_TEST
    if not file.is_file():
        on_progress("training: testing learning rates")
        result = within_memory(partial(range_test, setup), setup.options, setup.on_gpu, warn)
        release_memory()
        write_atomically(file, to_json(result))
    result = from_json(RangeTest, file.read_text(encoding="utf-8"))
    on_progress(f"training: a range test has chosen the learning rate {result.rate:g}")
    return result.rate


def _fit(
    setup: TrainingSetup,
    checkpoint: str | None,
    micro_batch_size: int,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> Training:
    """Train from a checkpoint to the end, in this process or in one of several, and write the weights."""
    with quiet(), all_threads(), naming_bitsandbytes(setup.options):
        trainer = make_trainer(setup, micro_batch_size)
        sums_before = _weight_sums(trainer)
        trainer.add_callback(_Watch(setup.options.rate, on_progress, warn))
        if checkpoint is not None and _has_ended(checkpoint):  # the trainer would stop only after a further step
            trainer.args.max_steps = -1
            trainer.args.num_train_epochs = 0
        trainer.train(resume_from_checkpoint=checkpoint)
        if _weight_sums(trainer) == sums_before:
            warn(
                "the training has changed no weight, so the recovered model is the pruned one; use more steps, or "
                f"another recovery.learning_rate than {setup.options.rate:g}"
            )
        if trainer.is_world_process_zero():
            unfinished = setup.folder / UNFINISHED
            shutil.rmtree(unfinished, ignore_errors=True)
            trained: Any = trainer.accelerator.unwrap_model(trainer.model)
            for config in getattr(trained, "peft_config", {}).values():
                if not isinstance(config.target_modules, str):  # a set, whose order differs between processes
                    config.target_modules = sorted(config.target_modules)
            trained.save_pretrained(unfinished)
    return _history(trainer, micro_batch_size)


def _weight_sums(trainer: RecoveryTrainer) -> list[float]:
    """Return the sum of each trained tensor, to detect whether any has changed."""
    return [parameter.detach().double().sum().item() for parameter in _trained_parameters(trainer)]


def _trained_parameters(trainer: RecoveryTrainer) -> list[Parameter]:
    model = cast(Module, trainer.model)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def within_memory(work: Callable[[int], T], options: RecoveryOptions, on_gpu: bool, warn: Callable[[str], None]) -> T:
    """Call a function with a number of rows at once; if memory is short, again with half as many or fewer.

    Args:
        work: The function.
        options: The options of the training.
        on_gpu: Whether the training is on a GPU.
        warn: Receives a sentence when the number of rows is reduced.

    Returns:
        The result of the function.

    Raises:
        UserError: Not even one row fits the memory.
    """
    micro_batch_size = options.rows_at_once(on_gpu)

    def fewer_rows() -> None:
        nonlocal micro_batch_size
        if micro_batch_size == 1:
            raise UserError(
                f"recovery.max_tokens={options.max_tokens} is more than memory holds in training, even one row at "
                "once; use less, recovery.gradient_checkpointing=true, or recovery.method=qlora"
            )
        smaller_sizes = range(1, micro_batch_size // 2 + 1)
        micro_batch_size = max(size for size in smaller_sizes if options.batch_size % (size * options.workers) == 0)
        warn(
            f"memory does not hold so many rows at once; {micro_batch_size} of them from now on, and more gradients "
            "are accumulated"
        )

    return retry_with_less_memory(lambda: work(micro_batch_size), fewer_rows)


def is_trained(folder: Path) -> bool:
    """Return whether a training in a folder has ended."""
    return (folder / TRAINED / DONE).is_file()


def last_checkpoint(folder: Path, workers: int = 1) -> str | None:
    """Return the last complete checkpoint, and delete incomplete ones after it; None if there is none.

    Args:
        folder: The folder of the checkpoints.
        workers: The number of processes that wrote each checkpoint.

    Returns:
        The path of the checkpoint's folder, or None.
    """
    checkpoints = {int(checkpoint.name.partition("-")[2]): checkpoint for checkpoint in folder.glob("checkpoint-*")}
    for _, checkpoint in sorted(checkpoints.items(), reverse=True):
        # The first process writes its state last; every process writes its random numbers.
        has_state = (checkpoint / "trainer_state.json").is_file()
        has_all_files = has_state and len([*checkpoint.glob("rng_state*.pth")]) >= workers
        if has_all_files and all(map(_is_readable, checkpoint.iterdir())):
            _log.info("the training continues from %s", checkpoint)
            return str(checkpoint)
        _log.info("%s is incomplete, so it is deleted", checkpoint)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def _is_readable(file: Path) -> bool:
    """Return whether a file of a checkpoint is complete; after a power cut it may not be."""
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
    """Return whether the training had ended when a checkpoint was written, by its number of steps or its patience."""
    state = json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))
    return bool(state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"])


def _history(trainer: RecoveryTrainer, micro_batch_size: int) -> Training:
    points: list[LossPoint] = []
    log: list[dict[str, Any]] = trainer.state.log_history
    for entry in log:
        if "loss" in entry or "eval_loss" in entry:
            tokens = int(entry.get("num_input_tokens_seen", points[-1].tokens if points else 0))
            points.append(LossPoint(entry["step"], tokens, entry.get("loss"), entry.get("eval_loss")))
    return Training(
        points=tuple(points),
        steps=trainer.state.global_step,
        best_step=trainer.state.best_global_step or trainer.state.global_step,
        tokens=int(trainer.state.num_input_tokens_seen),
        parameters=sum(parameter.numel() for parameter in _trained_parameters(trainer)),
        seconds=0.0,  # set by `train`
        micro_batch_size=micro_batch_size,
    )
