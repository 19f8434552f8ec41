"""Times a step of a training, without keeping anything."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch.nn import Module

from raysearch.assessment.speed import PeakMemory
from raysearch.models.loading import quiet
from raysearch.recovery.hidden import CutTrainer
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.teacher import TopLogits
from raysearch.recovery.trainer import TrainingRows, TrainingSetup, all_threads, make_trainer, naming_bitsandbytes


@dataclass(frozen=True)
class StepTime:
    """The cost of a training, measured on one step with rows of at least median length.

    Args:
        step_s: The seconds of a step; with ``recovery.loss=hidden``, of a step at every cut.
        tested_step_s: The seconds of a step of a range test; with ``hidden``, of a step at the first cut.
        held_out_row_s: The seconds of the loss on one held-out row; with ``hidden``, at every cut.
        load_s: The seconds of loading the model.
        memory_bytes: The peak memory of the step.
    """

    step_s: float
    tested_step_s: float
    held_out_row_s: float
    load_s: float
    memory_bytes: int


def time_step(setup: TrainingSetup, vocab_size: int, micro_batch_size: int) -> StepTime:
    """Time a step of a training in this process.

    Args:
        setup: The pruned checkpoint, the rows and the options. The logits of the rows are not needed.
        vocab_size: The size of the model's vocabulary.
        micro_batch_size: The number of rows at once.

    Returns:
        The seconds and the memory; those of a step are divided among `recovery.workers`.
    """
    n_steps = 2 if setup.on_gpu else 1  # on a CPU a step takes long, and the first takes as long as the next
    options = replace(setup.options, workers=1, max_steps=n_steps, epochs=1.0, warmup_steps=0, patience=None)
    if options.learning_rate == "auto":
        options = replace(options, learning_rate=1e-6)
    rows = sorted(setup.data.rows, key=lambda row: len(row.ids))[len(setup.data.rows) // 2 :]
    n_rows = min(len(setup.data.rows), n_steps * options.batch_size + 1)
    options = replace(options, held_out=0.5 / n_rows)  # one row
    data = TrainingRows.of((rows * n_rows)[:n_rows], options)
    setup = replace(setup, data=data, options=options)
    with quiet(), all_threads(), naming_bitsandbytes(options):
        if options.loss == "hidden":
            return _time_cuts(setup, micro_batch_size)
        if options.needs_logits:  # the time does not depend on the values of the logits
            setup = replace(setup, data=replace(data, top_logits=_uniform_logits(data, options, vocab_size)))
        return _time_trainer(setup, micro_batch_size)


def _uniform_logits(data: TrainingRows, options: RecoveryOptions, vocab_size: int) -> list[TopLogits]:
    k = vocab_size if options.top_k == "all" else min(options.top_k, vocab_size)
    shapes = [(len(row.ids) - start, k) for row, start in zip(data.rows, data.starts, strict=True)]
    return [TopLogits(np.zeros(shape, np.int32), np.full(shape, -np.log(2 * k), np.float16)) for shape in shapes]


def _time_trainer(setup: TrainingSetup, micro_batch_size: int) -> StepTime:
    started = time.monotonic()
    trainer = make_trainer(setup, micro_batch_size)
    load_s = time.monotonic() - started
    trainer.args.eval_strategy = trainer.args.save_strategy = "no"
    trainer.args.load_best_model_at_end = False
    if setup.on_gpu:  # the first run warms up
        trainer.train()
    memory = PeakMemory.of(parameter.device for parameter in cast(Module, trainer.model).parameters())
    started = time.monotonic()
    trainer.train()
    step_s = (time.monotonic() - started) / trainer.state.global_step
    peak = memory.peak()
    started = time.monotonic()
    trainer.evaluate()
    return StepTime(step_s, step_s, time.monotonic() - started, load_s, peak)


def _time_cuts(setup: TrainingSetup, micro_batch_size: int) -> StepTime:
    started = time.monotonic()
    trainer = CutTrainer(setup, micro_batch_size)
    load_s = time.monotonic() - started
    memory = PeakMemory.of([trainer.device])
    indices = next(trainer.batches())
    steps_s = []
    held_out_s = 0.0
    for cut in trainer.cuts:
        optimizer = trainer.optimizer(cut, 1e-6)
        if setup.on_gpu:  # the first run warms up
            trainer.step(cut, indices, optimizer)
        started = time.monotonic()
        trainer.step(cut, indices, optimizer)
        if setup.on_gpu:
            torch.cuda.synchronize()
        steps_s.append(time.monotonic() - started)
        started = time.monotonic()
        trainer.held_out_loss(cut)
        held_out_s += time.monotonic() - started
    return StepTime(sum(steps_s), steps_s[0], held_out_s, load_s, memory.peak())
