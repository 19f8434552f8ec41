"""Repairs a pruned model in closed form, without training: cut by cut, on the model that is repaired before the cut."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor

from raysearch.core.cut import Cut, cuts_of
from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.paths import atomic_file
from raysearch.core.site import Sites
from raysearch.evaluation.pool import Pool
from raysearch.models.spec import ModelInfo
from raysearch.recovery.checkpoint import CHANGED
from raysearch.recovery.cut_choice import MOST_TRIED, CutChoice, CutChooser, Losses
from raysearch.recovery.cut_jobs import CutRepair, Row
from raysearch.recovery.recovery_record import RepairedCut, Training
from raysearch.recovery.repaired_model import RepairedModel
from raysearch.recovery.trainer import TrainingSetup
from raysearch.recovery.training import UNFINISHED, end_training, read_training
from raysearch.searching.events import LossPoint

_LOSSES = "losses of the held-out rows"  # the name of the array beside those of parameters
_CHECKED_ROWS = 2  # on which the repaired checkpoint is compared with the walk that was measured
_FOLDER = "repair"  # of the sums and the repairs of cuts, until the end


def repair(
    setup: TrainingSetup,
    mask: Mask,
    dense: ModelInfo,
    replicas: Callable[[], Pool],
    on_progress: Callable[[str], None],
) -> Training:
    """Repair a pruned checkpoint, and write the changed values to ``trained`` in the setup's folder.

    A cut that is repaired is not repaired again, and sums over rows are not computed again.

    Args:
        setup: The pruned checkpoint, the rows and the options.
        mask: The removed layers and halves.
        dense: The dense model.
        replicas: Returns its replicas.
        on_progress: Receives a line after each job.

    Returns:
        The losses, and what was done at each cut.

    Raises:
        UnsupportedModelError: The layers have no halves, no weights were found that a repair can change, or the
            repaired checkpoint is not the model that was measured.
    """
    folder = setup.folder / _FOLDER
    if (earlier := read_training(setup.folder)) is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed here
        return earlier
    started = time.monotonic()
    folder.mkdir(exist_ok=True)
    model = RepairedModel(setup.model, mask, dense, replicas, on_progress)
    chooser = CutChooser(model, setup.data, setup.options, folder)
    repairs: dict[Cut, CutRepair] = {}
    records: list[RepairedCut] = []
    losses: Losses | None = None
    for cut in model.cuts:
        file = folder / f"cut-{cut.removed[0].position}.safetensors"
        if file.is_file():
            choice = _read(file)
        else:
            choice = chooser.choose(cut, repairs, losses)
            _write(choice, file)
        chooser.remove_sums(cut)
        repairs[cut] = choice.repair
        records.append(choice.record)
        losses = choice.losses
    changed = model.changed_tensors(repairs)
    model.check(changed, repairs, chooser.held_out[:_CHECKED_ROWS])
    unfinished = setup.folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    save_file(changed, unfinished / CHANGED)
    training = _training(records, chooser.fitted, changed, time.monotonic() - started)
    end_training(setup.folder, training)
    shutil.rmtree(folder)
    return training


def n_forwards(mask: Mask, sites: Sites, fitted_share: float) -> float:
    """Return the number of forwards of the dense model over all rows that a repair takes, about.

    Args:
        mask: The removed layers and halves.
        sites: The layers of the dense model.
        fitted_share: The share of the rows that the maps are fitted to; the others are held out.

    Returns:
        The number: for each cut, all rows up to its end once, and the held-out rows through all layers for each
        repair that is tried; and the held-out rows once more, without any repair.
    """
    cuts = cuts_of(mask, sites.n_layers)
    ends = sum((cut.removed[-1].position + 1) / (2 * sites.n_layers) for cut in cuts)
    return ends + (1 + len(cuts) * MOST_TRIED) * (1 - fitted_share)


def _write(choice: CutChoice, file: Path) -> None:
    """Keep the choice for a cut, so that it is not made again."""
    arrays: dict[str, npt.NDArray[Any]] = {**choice.repair.values, _LOSSES: choice.losses}
    with atomic_file(file) as unfinished:
        save_arrays(arrays, unfinished, {"record": to_json(choice.record)})


def _read(file: Path) -> CutChoice:
    """Return the choice for a cut that an earlier process made."""
    with safe_open(file, "np") as saved:
        record = from_json(RepairedCut, saved.metadata()["record"])
        values = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 it is no dict
    losses = values.pop(_LOSSES)
    return CutChoice(CutRepair(values, record.scale), record, losses)


def _training(
    records: Sequence[RepairedCut], fitted: Sequence[Row], changed: Mapping[str, Tensor], seconds: float
) -> Training:
    """Return the record of the repair; each cut counts as a step."""
    n_tokens = sum(len(row.ids) for row in fitted)
    points = [LossPoint(0, 0, None, records[0].held_out_before)]
    points += [LossPoint(step, step * n_tokens, None, cut.held_out) for step, cut in enumerate(records, start=1)]
    return Training(
        points=tuple(points),
        steps=len(records),
        best_step=len(records),
        tokens=n_tokens,
        parameters=sum(tensor.numel() for tensor in changed.values()),
        seconds=seconds,
        micro_batch_size=0,
        cuts=tuple(records),
    )
