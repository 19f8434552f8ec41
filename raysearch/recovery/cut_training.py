"""Trains the cuts of a pruned model one after another, the first one first, each once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from raysearch.core.json import from_json, to_json
from raysearch.recovery.checkpoint import CHANGED, DONE
from raysearch.recovery.hidden import CutTrainer, TrainedCut
from raysearch.recovery.loss_watch import LossWatch
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.trainer import TrainingSetup
from raysearch.searching.events import LossPoint
from raysearch.text.numbers import remaining

CUTS = "cuts"  # the folder of the trained cuts


def fit_cuts(
    setup: TrainingSetup,
    micro_batch_size: int,
    trained: Path,
    on_progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> Training:
    """Train all cuts of a pruned model, and write the trained tensors. A cut that has been trained is not repeated.

    Args:
        setup: The pruned checkpoint, the dense model, the cuts, the rows and the options.
        micro_batch_size: The number of rows at once.
        trained: The folder to write the trained tensors to.
        on_progress: Receives a line after each step.
        warn: Receives a sentence if the loss of a cut grows.

    Returns:
        The losses and the costs, without the seconds.

    Raises:
        UserError: A loss is not finite.
        UnsupportedModelError: Layers share weights.
    """
    rate = setup.options.rate
    trainer = CutTrainer(setup, micro_batch_size)
    progress = _Progress(trainer.n_steps(), len(setup.cuts), on_progress)
    values: dict[str, Tensor] = {}
    trained_cuts = []
    for cut in setup.cuts:
        progress.begin_cut(LossWatch(rate, warn))
        folder = setup.folder / CUTS / str(cut.block)
        if not folder.exists():
            trained_cut = trainer.train(cut, rate, progress.report)
            unfinished = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            save_file(trainer.values(cut), unfinished / CHANGED)
            (unfinished / DONE).write_text(to_json(trained_cut), encoding="utf-8")
            unfinished.rename(folder)
        values_of_cut = load_file(folder / CHANGED)
        trainer.set_values(values_of_cut)
        values |= values_of_cut
        trained_cuts.append(from_json(TrainedCut, (folder / DONE).read_text(encoding="utf-8")))
    shutil.rmtree(trained, ignore_errors=True)
    trained.mkdir()
    save_file(values, trained / CHANGED)
    return _history(trained_cuts, micro_batch_size)


class _Progress:
    """Reports the progress of the cuts.

    Args:
        n_steps: The steps of each cut.
        n_cuts: The number of cuts.
        on_progress: Receives a line after each step.
    """

    def __init__(self, n_steps: int, n_cuts: int, on_progress: Callable[[str], None]) -> None:
        self._n_steps = n_steps
        self._n_cuts = n_cuts
        self._on_progress = on_progress
        self._cut = 0
        self._n_done = 0  # steps of this process
        self._started = time.monotonic()

    def begin_cut(self, watch: LossWatch) -> None:
        """Begin the next cut, with a watch of its losses."""
        self._cut += 1
        self._watch = watch

    def report(self, points: Sequence[LossPoint], gradient_norm: float) -> None:
        """Report a step.

        Args:
            points: The losses of the cut so far.
            gradient_norm: The norm of the last gradient.
        """
        self._n_done += 1
        step = points[-1].step
        losses = [point.loss for point in points if point.loss is not None]
        self._watch.check(losses, step, gradient_norm)
        held_out = [point.held_out for point in points if point.held_out is not None]
        n_left = self._n_steps - step + (self._n_cuts - self._cut) * self._n_steps
        time_left = remaining(time.monotonic() - self._started, self._n_done, self._n_done + n_left)
        self._on_progress(
            f"training: step {step} of {self._n_steps} at cut {self._cut} of {self._n_cuts}, loss {losses[-1]:.4f}, "
            f"held-out {held_out[-1]:.4f}, {time_left} left"
        )


def _history(cuts: Sequence[TrainedCut], micro_batch_size: int) -> Training:
    """Return the history of a training of several cuts.

    A loss on held-out rows is the mean over the cuts: cuts that were trained before count with the loss of their best
    weights, and later ones with the loss before they are trained.

    Args:
        cuts: The trained cuts.
        micro_batch_size: The number of rows at once.

    Returns:
        The losses and the costs, without the seconds.
    """
    points: list[LossPoint] = []
    steps = tokens = best_step = 0
    for index, cut in enumerate(cuts):
        earlier_losses = [min(earlier.held_out) for earlier in cuts[:index]]
        later_losses = [later.held_out[0] for later in cuts[index + 1 :]]
        # A later cut begins with the loss at which the earlier one has ended.
        for point in cut.points if index == 0 else cut.points[1:]:
            held_out = None
            if point.held_out is not None:
                held_out = sum([*earlier_losses, point.held_out, *later_losses]) / len(cuts)
            points.append(LossPoint(steps + point.step, tokens + point.tokens, point.loss, held_out))
        best_step = steps + cut.best_step
        steps += cut.steps
        tokens += cut.tokens
    return Training(
        points=tuple(points),
        steps=steps,
        best_step=best_step,
        tokens=tokens,
        parameters=sum(cut.parameters for cut in cuts),
        seconds=0.0,  # set by `train`
        micro_batch_size=micro_batch_size,
    )
