"""The pruned model whose cuts are repaired: its output weights, what repairs make of them, and the check of the result.

A factor a of the hidden state is merged into the later halves: what they add is divided by a. The norms that read the
hidden state ignore its size, so the model computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.core.cut import Cut, cuts_of
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.pool import Pool
from raysearch.models.layers import largest_list, plain_logits
from raysearch.models.loading import quiet
from raysearch.models.output_weights import OutputWeights
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.models.verification import tolerance
from raysearch.recovery.cut_jobs import CutRepair, LossJob, OutputsJob, Row, ScalesJob
from raysearch.recovery.linear_map import LinearMap
from raysearch.recovery.progress import run_jobs

_HALVES_PER_JOB = 8


@dataclass(frozen=True)
class RepairedModel:
    """A pruned model in repair.

    Args:
        checkpoint: The pruned checkpoint.
        mask: The removed layers and halves.
        dense: The dense model.
        replicas: Returns its replicas.
        on_progress: Receives a line after each job.
    """

    checkpoint: ModelSpec
    mask: Mask
    dense: ModelInfo
    replicas: Callable[[], Pool]
    on_progress: Callable[[str], None]

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts, in the order of the model."""
        return cuts_of(self.mask, self.dense.sites.n_layers)

    @cached_property
    def _model(self) -> PreTrainedModel:
        """The pruned model."""
        with quiet():
            loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                self.checkpoint.path, dtype="auto", trust_remote_code=self.checkpoint.trust_remote_code
            )
        return loaded.eval().requires_grad_(False)

    @cached_property
    def _block_names(self) -> dict[Half, str]:
        """The name of the layer of the pruned model that has a half of the dense model."""
        names = {module: name for name, module in self._model.named_modules()}
        blocks = zip(largest_list(self._model), self.dense.sites.blocks(self.mask), strict=True)
        return {
            Half(layer, part): names[module]
            for module, block in blocks
            for part, layer in zip(PARTS, block, strict=True)
            if layer is not None
        }

    def _tensors(self, half: Half, outputs: OutputWeights) -> dict[str, Tensor]:
        """Return the output weights of a half in the pruned model, by name within the layer."""
        layer = self._model.get_submodule(self._block_names[half])
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

    def merged(self, cut: Cut, linear_map: LinearMap) -> CutRepair:
        """Return a map as the new values of the weights before a cut, in the dtype of the checkpoint.

        Args:
            cut: The cut; a half stays before it.
            linear_map: The map.

        Returns:
            The values, without a scale.
        """
        assert cut.before is not None, "a map needs weights before the cut"
        outputs = self.outputs[cut.before]
        matrix = torch.eye(len(linear_map.matrix), dtype=torch.float64) + torch.from_numpy(linear_map.matrix).T
        values = outputs.mapped(self._tensors(cut.before, outputs), matrix)
        if outputs.bias is not None:
            bias = values[outputs.bias.name]
            values[outputs.bias.name] = (bias.double() + torch.from_numpy(linear_map.constant)).to(bias.dtype)
        return CutRepair({name: value.float().numpy() for name, value in values.items()})

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
            tensors = self._tensors(half, outputs)
            values = {name: tensor.float() for name, tensor in tensors.items()}
            if half in repair_before:
                values = {name: torch.from_numpy(value) for name, value in repair_before[half].values.items()}
            values = outputs.scaled(values, 1 / scale_of[half])
            block = self._block_names[half]
            changed |= {f"{block}.{name}": value.to(tensors[name].dtype) for name, value in values.items()}
        return changed

    def check(self, changed: Mapping[str, Tensor], repairs: Mapping[Cut, CutRepair], rows: Sequence[Row]) -> None:
        """Compare the pruned model with its changed tensors with the repaired walk, by the losses of some rows.

        Args:
            changed: The changed tensors by name.
            repairs: The repair of each cut.
            rows: The rows.

        Raises:
            UnsupportedModelError: They differ by more than rounding.
        """
        *_, cut = self.cuts
        earlier = {other: repair for other, repair in repairs.items() if other != cut}
        job = LossJob(0, tuple(rows), self.mask, cut, earlier, (repairs[cut],))
        ((_, (walked,)),) = run_jobs([job], self.replicas, "check of the repaired model", self.on_progress)
        self._model.load_state_dict(dict(changed), strict=False)
        own = [_loss(self._model, row) for row in rows]
        gap = float(np.max(np.abs(np.array(own) / walked - 1)))
        allowed = 10 * max(tolerance(self._model.dtype), tolerance(getattr(torch, self.dense.dtype)))
        if not gap <= allowed:
            raise UnsupportedModelError(
                f"the repaired model cannot be written: its losses differ by {gap:.1e} from those that were measured; "
                "use recovery.method=lora"
            )


@torch.no_grad()
def _loss(model: PreTrainedModel, row: Row) -> float:
    """Return the summed loss of a row in a plain forward, in nats."""
    ids = torch.tensor([row.ids])
    log_p = plain_logits(model, ids).double().log_softmax(-1)[0, row.start - 1 : -1]
    return -log_p.gather(-1, ids[0, row.start :, None]).sum().item()
