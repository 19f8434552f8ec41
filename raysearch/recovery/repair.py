"""Repairs a pruned model in closed form, without training: cut by cut, on the model that is repaired before the cut.

At each cut, what can lower the loss is tried, and is taken only if the loss on held-out rows falls by more than its
standard error:

    linear   a matrix, merged into the last projection before the cut, that predicts what the removed layers added
    bias     a constant in place of the matrix, where that projection has a bias
    scale    then a factor of the hidden state: its mean growth in the removed layers, or the square of that

A factor a of the hidden state is merged into the later halves: what they add is divided by a. The norms that read the
hidden state ignore its size, so the model computes the same.

Sources: ReplaceMe (arXiv 2505.02819) for the matrix; Prune&Comp (arXiv 2507.18212) for the factor; FLAP (arXiv
2312.11983) for the bias.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.core.cut import Cut, cuts_of
from raysearch.core.json import from_json, to_json
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.paths import atomic_file
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.pool import Pool
from raysearch.models.layers import largest_list, plain_logits
from raysearch.models.loading import quiet
from raysearch.models.output_weights import OutputWeights
from raysearch.models.spec import ModelInfo
from raysearch.models.verification import tolerance
from raysearch.recovery.checkpoint import CHANGED
from raysearch.recovery.cut_jobs import CutRepair, LossJob, OutputsJob, Row, ScalesJob, SumsJob
from raysearch.recovery.linear_map import CutSums, LinearMap, solve, solve_constant
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.recovery_record import RepairedCut, Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.trainer import TrainingSetup
from raysearch.recovery.training import UNFINISHED, end_training, read_training
from raysearch.searching.events import LossPoint
from raysearch.stats.estimates import mean

_MOST_ROWS = 8  # of a job
_LEAST_JOBS = 8  # for rows that are fewer; enough for several replicas
_HALVES_PER_JOB = 8
_N_TRIED = 4  # at most, at each cut: a matrix, a constant, and two scales
_LOSSES = "losses of the held-out rows"  # the name of the array beside those of parameters
_CHECKED_ROWS = 2  # on which the repaired checkpoint is compared with the walk that was measured
_FOLDER = "repair"  # of the sums and the repairs of cuts, until the end

#: The loss of each row in nats, [rows].
Losses: TypeAlias = npt.NDArray[np.float64]


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
    if (earlier := read_training(setup.folder)) is not None:
        return earlier
    started = time.monotonic()
    work = _Repair(setup, mask, dense, replicas, on_progress)
    work.folder.mkdir(exist_ok=True)
    repairs: dict[Cut, CutRepair] = {}
    records: list[RepairedCut] = []
    losses: Losses | None = None
    for cut in work.cuts:
        repaired = work.repaired(cut, repairs, losses)
        repairs[cut] = repaired.repair
        records.append(repaired.record)
        losses = repaired.losses
    changed = work.changed_tensors(repairs)
    work.check(changed, repairs)
    unfinished = setup.folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    save_file(changed, unfinished / CHANGED)
    training = work.training(records, changed, time.monotonic() - started)
    end_training(setup.folder, training)
    shutil.rmtree(work.folder)
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
    return ends + (1 + len(cuts) * _N_TRIED) * (1 - fitted_share)


@dataclass(frozen=True)
class _RepairedCut:
    """A cut that is repaired, or left as it is, with the losses of the held-out rows."""

    repair: CutRepair
    record: RepairedCut
    losses: Losses


@dataclass(frozen=True)
class _Repair:
    """A repair in progress; see `repair` for the arguments."""

    setup: TrainingSetup
    mask: Mask
    dense: ModelInfo
    replicas: Callable[[], Pool]
    on_progress: Callable[[str], None]

    @property
    def options(self) -> RecoveryOptions:
        return self.setup.options

    @property
    def folder(self) -> Path:
        """The folder of the sums and the repairs of cuts."""
        return self.setup.folder / _FOLDER

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        return cuts_of(self.mask, self.dense.sites.n_layers)

    @cached_property
    def _rows(self) -> list[Row]:
        """All rows; those that are held out come first."""
        data = self.setup.data
        return [Row(tuple(row.ids), start) for row, start in zip(data.rows, data.starts, strict=True)]

    @cached_property
    def held_out(self) -> list[Row]:
        return self._rows[: self.options.n_held_out(len(self._rows))]

    @cached_property
    def fitted(self) -> list[Row]:
        return self._rows[len(self.held_out) :]

    @cached_property
    def pruned(self) -> PreTrainedModel:
        """The pruned model."""
        model = self.setup.model
        with quiet():
            loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                model.path, dtype="auto", trust_remote_code=model.trust_remote_code
            )
        return loaded.eval().requires_grad_(False)

    @cached_property
    def _block_names(self) -> dict[Half, str]:
        """The name of the layer of the pruned model that has a half of the dense model."""
        names = {module: name for name, module in self.pruned.named_modules()}
        blocks = zip(largest_list(self.pruned), self.dense.sites.blocks(self.mask), strict=True)
        return {
            Half(layer, part): names[module]
            for module, block in blocks
            for part, layer in zip(PARTS, block, strict=True)
            if layer is not None
        }

    def tensors(self, half: Half, outputs: OutputWeights) -> dict[str, Tensor]:
        """Return the output weights of a half in the pruned model, by name within the layer.

        Args:
            half: The half.
            outputs: Its output weights in the dense model.

        Returns:
            The values.
        """
        layer = self.pruned.get_submodule(self._block_names[half])
        return {weight.name: layer.get_parameter(weight.name).data for weight in outputs.weights}

    @cached_property
    def outputs(self) -> dict[Half, OutputWeights]:
        """The output weights of each half before a cut."""
        return self._find_outputs([cut.before for cut in self.cuts if cut.before is not None])

    def _find_outputs(self, halves: Sequence[Half]) -> dict[Half, OutputWeights]:
        """Return the output weights of halves of the dense model."""
        starts = range(0, len(halves), _HALVES_PER_JOB)
        jobs = [OutputsJob(tuple(halves[start : start + _HALVES_PER_JOB])) for start in starts]
        outputs: dict[Half, OutputWeights] = {}
        for _, outputs_of_job in run_jobs(jobs, self.replicas, "output weights of the layers", self.on_progress):
            outputs |= outputs_of_job
        return outputs

    @cached_property
    def ignores_size(self) -> bool:
        """Whether the layers ignore the size of the hidden state, so that a scale can be merged into weights."""
        ((_, ignores_size),) = run_jobs([ScalesJob()], self.replicas, "the size of the hidden state", self.on_progress)
        return bool(ignores_size)

    def repaired(self, cut: Cut, repairs: Mapping[Cut, CutRepair], losses_before: Losses | None) -> _RepairedCut:
        """Return the repair of a cut: the one of an earlier process, or one that is found now.

        Args:
            cut: The cut.
            repairs: The repairs of the cuts before it.
            losses_before: The loss of each held-out row with these repairs; None if it is not known.

        Returns:
            The repair, its record, and the losses with it.
        """
        file = self.folder / f"cut-{cut.removed[0].position}.safetensors"
        if file.is_file():
            with safe_open(file, "np") as saved:
                record = from_json(RepairedCut, saved.metadata()["record"])
                values = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 it is no dict
            losses = values.pop(_LOSSES)
            return _RepairedCut(CutRepair(values, record.scale), record, losses)
        repaired = self._find(cut, repairs, losses_before)
        arrays: dict[str, npt.NDArray[Any]] = {**repaired.repair.values, _LOSSES: repaired.losses}
        with atomic_file(file) as unfinished:
            save_arrays(arrays, unfinished, {"record": to_json(repaired.record)})
        return repaired

    def _find(self, cut: Cut, repairs: Mapping[Cut, CutRepair], losses_before: Losses | None) -> _RepairedCut:
        """Try what may repair a cut, and return what lowers the loss on the held-out rows."""
        no_map = self._why_no_map(cut)
        no_scale = self._why_no_scale(cut)
        fitted = self._sums(cut, repairs, "fitted", self.fitted)
        held_out = self._sums(cut, repairs, "held-out", self.held_out)
        maps = []
        if cut.before is not None and not no_map:
            maps = self._maps(self.outputs[cut.before], fitted, held_out)
        candidates = [CutRepair(), *(self._merged(cut, linear_map) for linear_map, _ in maps)]
        losses = self._losses(cut, repairs, candidates, [] if losses_before is None else [losses_before])
        best = _best(losses)
        chosen = candidates[best]
        chosen_losses = losses[best]
        not_tried = "; ".join(filter(None, [no_map, no_scale]))
        record = RepairedCut(str(cut), self._per_token(losses[0]), self._per_token(chosen_losses), not_tried=not_tried)
        if best > 0:
            linear_map, ridge = maps[best - 1]
            explained = None if ridge is None else 1 - held_out.error(linear_map)
            record = replace(record, ridge=ridge, explained=explained, has_bias=bool(linear_map.constant.any()))
        if "scale" in self.options.repairs and not no_scale:
            growth = fitted.mean_growth
            candidates = [chosen, *(replace(chosen, scale=scale) for scale in (growth, growth**2))]
            losses = self._losses(cut, repairs, candidates, [chosen_losses])
            best = _best(losses)
            chosen = candidates[best]
            chosen_losses = losses[best]
            record = replace(record, scale=chosen.scale, held_out=self._per_token(chosen_losses))
        return _RepairedCut(chosen, record, chosen_losses)

    def _why_no_map(self, cut: Cut) -> str:
        """Return why no matrix and no constant can be tried at a cut; empty if they can."""
        if not {"linear", "bias"}.intersection(self.options.repairs):
            return ""
        if cut.before is None:
            return "no layer stays before it to hold a map"
        if not self.outputs[cut.before].can_be_mapped:
            return f"a norm follows the projection of {cut.before}, so no map can be merged into it"
        return ""

    def _why_no_scale(self, cut: Cut) -> str:
        """Return why no scale can be tried at a cut; empty if one can."""
        if "scale" not in self.options.repairs:
            return ""
        if cut.after is None:
            return "the norm after it ignores a scale"
        return "" if self.ignores_size else "the layers do not begin with a norm, so no weights can hold a scale"

    def _maps(self, outputs: OutputWeights, fitted: CutSums, held_out: CutSums) -> list[tuple[LinearMap, float | None]]:
        """Return the maps to try, each with its ridge; a constant alone has none.

        Args:
            outputs: The weights before the cut.
            fitted: The sums to fit.
            held_out: The sums by which the ridge is chosen.

        Returns:
            At most a matrix and a constant.
        """
        has_bias = outputs.bias is not None and "bias" in self.options.repairs
        maps: list[tuple[LinearMap, float | None]] = []
        if "linear" in self.options.repairs:
            solutions = [(solve(fitted, ridge, has_bias), ridge) for ridge in self.options.ridges]
            maps.append(min(solutions, key=lambda solution: held_out.error(solution[0])))
        if has_bias:
            maps.append((solve_constant(fitted), None))
        return maps

    def _merged(self, cut: Cut, linear_map: LinearMap) -> CutRepair:
        """Return a map as the new values of the weights before a cut, in the dtype of the checkpoint."""
        assert cut.before is not None, "a map needs weights before the cut"
        outputs = self.outputs[cut.before]
        matrix = torch.eye(len(linear_map.matrix), dtype=torch.float64) + torch.from_numpy(linear_map.matrix).T
        values = outputs.mapped(self.tensors(cut.before, outputs), matrix)
        if outputs.bias is not None:
            bias = values[outputs.bias.name]
            values[outputs.bias.name] = (bias.double() + torch.from_numpy(linear_map.constant)).to(bias.dtype)
        return CutRepair({name: value.float().numpy() for name, value in values.items()})

    def _sums(self, cut: Cut, repairs: Mapping[Cut, CutRepair], name: str, rows: Sequence[Row]) -> CutSums:
        """Return the sums over rows at a cut. Those of each job are kept until the cut is repaired."""
        jobs = [SumsJob(first, part, self.mask, cut, repairs) for first, part in _parts(rows)]
        files = {job: self.folder / f"{name}-{cut.removed[0].position}-{job.first}-{len(job.rows)}.npz" for job in jobs}
        missing = [job for job in jobs if not files[job].is_file()]
        for job, sums in run_jobs(missing, self.replicas, f"sums at {cut}", self.on_progress):
            with atomic_file(files[job]) as unfinished, unfinished.open("wb") as stream:
                np.savez(stream, **asdict(sums))
        return CutSums.total(map(_read_sums, files.values()))

    def _losses(
        self,
        cut: Cut,
        repairs: Mapping[Cut, CutRepair],
        candidates: Sequence[CutRepair],
        known: Sequence[Losses],
    ) -> npt.NDArray[np.float64]:
        """Return the loss of each held-out row with each of several repairs of a cut, in nats, [candidates, rows].

        Args:
            cut: The cut.
            repairs: The repairs of the cuts before it.
            candidates: The repairs to compare.
            known: The losses with the first of them, which are not computed again.

        Returns:
            The losses.
        """
        unknown = tuple(candidates[len(known) :])
        if not unknown:
            return np.vstack(known)
        parts = _parts(self.held_out)
        jobs = [LossJob(first, part, self.mask, cut, repairs, unknown) for first, part in parts]
        by_job = dict(run_jobs(jobs, self.replicas, f"losses at {cut}", self.on_progress))
        return np.vstack([*known, np.concatenate([by_job[job] for job in jobs], axis=1)])

    def _per_token(self, losses: Losses) -> float:
        """Return the summed loss of the held-out rows in nats per token."""
        return float(losses.sum() / sum(len(row.ids) - row.start for row in self.held_out))

    def changed_tensors(self, repairs: Mapping[Cut, CutRepair]) -> dict[str, Tensor]:
        """Return the new values of tensors of the pruned model by name, in its dtype.

        Args:
            repairs: The repair of each cut.

        Returns:
            The output weights before the cuts, and of all halves after a scale.
        """
        repair_before = {cut.before: repair for cut, repair in repairs.items() if repair.values}
        scale_at = {cut.after: repair.scale for cut, repair in repairs.items()}
        scale_of: dict[Half, float] = {}  # of the state that enters each half
        scale = 1.0
        for half in sorted(self._block_names):
            scale *= scale_at.get(half, 1.0)
            scale_of[half] = scale
        changed_halves = [half for half, scale in scale_of.items() if scale != 1 or half in repair_before]
        outputs_of = self.outputs | self._find_outputs([half for half in changed_halves if half not in self.outputs])
        changed: dict[str, Tensor] = {}
        for half in changed_halves:
            outputs = outputs_of[half]
            tensors = self.tensors(half, outputs)
            values = {name: tensor.float() for name, tensor in tensors.items()}
            if half in repair_before:
                values = {name: torch.from_numpy(value) for name, value in repair_before[half].values.items()}
            values = outputs.scaled(values, 1 / scale_of[half])
            block = self._block_names[half]
            changed |= {f"{block}.{name}": value.to(tensors[name].dtype) for name, value in values.items()}
        return changed

    def check(self, changed: Mapping[str, Tensor], repairs: Mapping[Cut, CutRepair]) -> None:
        """Compare the pruned model with its changed tensors with the repaired walk, by the losses of some rows.

        Args:
            changed: The changed tensors by name.
            repairs: The repair of each cut.

        Raises:
            UnsupportedModelError: They differ by more than rounding.
        """
        *_, cut = self.cuts
        earlier = {other: repair for other, repair in repairs.items() if other != cut}
        rows = tuple(self.held_out[:_CHECKED_ROWS])
        job = LossJob(0, rows, self.mask, cut, earlier, (repairs[cut],))
        ((_, (walked,)),) = run_jobs([job], self.replicas, "check of the repaired model", self.on_progress)
        self.pruned.load_state_dict(dict(changed), strict=False)
        own = [_loss(self.pruned, row) for row in rows]
        gap = float(np.max(np.abs(np.array(own) / walked - 1)))
        allowed = 10 * max(tolerance(self.pruned.dtype), tolerance(getattr(torch, self.dense.dtype)))
        if not gap <= allowed:
            raise UnsupportedModelError(
                f"the repaired model cannot be written: its losses differ by {gap:.1e} from those that were measured; "
                "use recovery.method=lora"
            )

    def training(self, records: Sequence[RepairedCut], changed: Mapping[str, Tensor], seconds: float) -> Training:
        """Return the record of the repair; each cut counts as a step.

        Args:
            records: What was done at each cut.
            changed: The changed tensors by name.
            seconds: The time of this process.

        Returns:
            The record.
        """
        n_tokens = sum(len(row.ids) for row in self.fitted)
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


def _parts(rows: Sequence[Row]) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield the rows of each job, with the index of its first row."""
    n_rows = min(_MOST_ROWS, math.ceil(len(rows) / _LEAST_JOBS))
    for first in range(0, len(rows), n_rows):
        yield first, tuple(rows[first : first + n_rows])


def _best(losses: npt.NDArray[np.float64]) -> int:
    """Return the repair with the lowest loss; 0 if it is not lower than that of repair 0 by more than a standard error.

    Args:
        losses: The loss of each row with each repair, [repairs, rows].

    Returns:
        The index of the repair.
    """
    best = int(losses.sum(axis=1).argmin())
    gain = mean([float(difference) for difference in losses[0] - losses[best]])
    return best if gain.value > (gain.error or 0.0) else 0


def _read_sums(file: Path) -> CutSums:
    with np.load(file) as saved:
        return CutSums(
            saved["inputs"], saved["products"], float(saved["targets"]), float(saved["growth"]), int(saved["n_tokens"])
        )


@torch.no_grad()
def _loss(model: PreTrainedModel, row: Row) -> float:
    """Return the summed loss of a row in a plain forward, in nats."""
    ids = torch.tensor([row.ids])
    log_p = plain_logits(model, ids).double().log_softmax(-1)[0, row.start - 1 : -1]
    return -log_p.gather(-1, ids[0, row.start :, None]).sum().item()
