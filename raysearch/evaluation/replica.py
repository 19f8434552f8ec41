"""A resident model that evaluates units: losses of masks on a shard, and statistics of the dense model.

A plain class, which uses torch and not Ray. Ray actors, the inline pool, tests and benchmarks all use it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysearch.calibration.batch import Batch, Form, Inputs
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import ModelLosses, ModelObjective, Objective, StateObjective
from raysearch.calibration.packing import pack, packed_lengths
from raysearch.calibration.padding import cut_by_length
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.evaluation.costs import passes, plan_of
from raysearch.evaluation.memory import (
    describe_device,
    is_out_of_memory,
    release_memory,
    retry_with_less_memory,
    reuse_freed_memory,
)
from raysearch.evaluation.prefix import Op, PrefixPlan
from raysearch.evaluation.unit import MaskUnit, StatisticUnit, Unit, UnitResult
from raysearch.generation.score import ScoredText
from raysearch.models.layers import State
from raysearch.models.loading import load_model, load_tokenizer, spread
from raysearch.models.shared_weights import Detached, attach
from raysearch.models.spec import LocatedModel
from raysearch.models.stack import Captured, LayerStack, predicting
from raysearch.models.statistics import measure
from raysearch.models.verification import packs, rows_interact, verify, verify_images, verify_scales
from raysearch.models.weight_layout import rearrange_weights

_SHORTEST = 16  # the shortest sample, in tokens, that is tried
#: The fixed time of a layer-forward, expressed as the number of tokens that take as long. On one core, SmolLM2 computes
#: 32 to 64 tokens in that time.
_PASS_TOKENS_ON_CPU = 64
#: The fixed time of a layer-forward on a GPU, in s: the launch of the layer's kernels takes about 0.3 ms.
_PASS_S_ON_GPU = 3e-4
#: The time of a token has two parts: its matrix products, in FLOP/s, and about 150 bytes of memory traffic for each
#: element of its state, at 2.5 TB/s. Measured on an H100: 0.86 us in a layer of a model with 8B parameters.
_FLOPS_OF_GPU = 7e14
_ELEMENT_S_ON_GPU = 150 / 2.5e12


@dataclass(frozen=True)
class _Work:
    """What was computed for a unit; `UnitResult` describes the fields."""

    values: Mapping[Subject, npt.NDArray[np.float64]]
    layer_forwards: float
    head_forwards: int
    layer_tokens: float
    texts: Mapping[Subject, Sequence[ScoredText]] = field(default_factory=dict)


class Replica:
    """A resident model, with the calibrations of its units.

    Args:
        stack: The model's layers; checked against the model's own forward before anything is evaluated. On the CPU, the
            weights of a small model are copied into a faster layout.
        calibrations: The first calibrations; more can be added to the attribute `calibrations`.
        threads: CPU threads of torch; fixed, since kernels may add in another order with another number of threads.
        load_tokenizer: Loads the model's tokenizer; called when first needed.
    """

    def __init__(
        self,
        stack: LayerStack,
        calibrations: Iterable[Calibration] = (),
        threads: int = 1,
        load_tokenizer: Callable[[], Any] = lambda: None,
    ) -> None:
        torch.set_num_threads(threads)
        reuse_freed_memory()
        if not stack.compiled:
            rearrange_weights(stack.model)
        verify(stack)
        self.stack = stack
        self.calibrations = {calibration.fingerprint: calibration for calibration in calibrations}
        #: The most samples in a batch, by calibration, if memory did not hold a shard.
        self._samples_at_once: dict[str, int] = {}
        #: The most texts that a job may generate at once, if memory did not hold more.
        self.texts_at_once: int | None = None
        self._load_tokenizer = load_tokenizer
        self._packing: dict[str, bool] = {}  # whether choices share their prompt, by calibration
        self._interacting: dict[str, bool] = {}  # whether a row's loss depends on other rows, by calibration
        self._with_verified_images: set[str] = set()  # calibrations
        self._scales_verified = False

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, loaded on first use."""
        return self._load_tokenizer()

    def evaluate(self, unit: Unit) -> UnitResult:
        """Evaluate a unit's masks on its shard, or measure its statistic.

        If memory is not enough, the number of samples in a batch is halved until it is, and this number is remembered.
        The last bits of a loss may differ then, as they do on another kind of device.

        Args:
            unit: The unit; its calibration must be in `calibrations`.

        Raises:
            UserError: Memory does not hold a single sample.
        """
        calibration = self.calibrations[unit.calibration]
        with self.stack.compiling():
            return retry_with_less_memory(
                lambda: self._evaluate(unit, calibration), lambda: self._halve(unit, calibration)
            )

    def _evaluate(self, unit: Unit, calibration: Calibration) -> UnitResult:
        """Evaluate with as many samples in a batch as memory has held so far."""
        started = time.perf_counter()
        self._verify_images(calibration)
        self.stack.by_length = self._rows_interact(calibration)
        packed = self._is_packed(unit, calibration)
        batches = self._batches(unit, calibration, bool(packed))
        match unit, calibration.objective:
            case StatisticUnit(statistic=statistic), objective:
                work = self._measure(statistic, objective, batches)
            case MaskUnit() as mask_unit, StateObjective() as objective:
                self._verify_scales(mask_unit)
                work = self._walk_masks(mask_unit, objective, batches, bool(packed))
            case MaskUnit() as mask_unit, ModelObjective() as objective:
                self._verify_scales(mask_unit)
                work = self._run_masks(mask_unit, objective, batches)
            case _:
                raise TypeError(f"{calibration.objective!r} is neither a StateObjective nor a ModelObjective")
        return UnitResult(
            values=work.values,
            layer_forwards=work.layer_forwards,
            head_forwards=work.head_forwards,
            layer_tokens=round(work.layer_tokens),
            packed=packed,
            seconds=time.perf_counter() - started,
            samples_at_once=self._samples_at_once.get(calibration.fingerprint),
            texts=work.texts,
        )

    def _is_packed(self, unit: Unit, calibration: Calibration) -> bool | None:
        """Return whether choices share their prompt; None if there are no choices."""
        objective = calibration.objective
        if not isinstance(unit, MaskUnit) or not isinstance(objective, StateObjective):
            return None
        if objective.form is not Form.CHOICES:
            return None
        return not self.stack.by_length and self._packs(calibration)

    def _batches(self, unit: Unit, calibration: Calibration, packed: bool) -> list[Batch]:
        """Return the batches of a unit's samples: of similar lengths, and with as many samples as memory has held."""
        batches = unit.batches(calibration)
        if not isinstance(calibration.objective, ModelObjective) and not self._packs_together(packed):
            batches = [part for batch in batches for part in cut_by_length(batch, packed, self._pass_tokens)]
        at_once = self._samples_at_once.get(calibration.fingerprint)
        return [part for batch in batches for part in batch.at_most(at_once)]

    def _packs_together(self, packed: bool) -> bool:
        """Return whether the packed items of a shard share rows, whatever their lengths."""
        return packed and self._on_gpu

    def _measure(self, statistic: Statistic, objective: Objective, batches: Sequence[Batch]) -> _Work:
        """Measure a statistic of the dense model."""
        layers = statistic.passes * self.stack.sites.total_cost
        return _Work(
            values={statistic: measure(statistic, self.stack, batches, objective)},
            layer_forwards=layers,
            head_forwards=int(statistic.needs_gradients),
            layer_tokens=layers * sum(batch.input_ids.size for batch in batches),
        )

    def _walk_masks(self, unit: MaskUnit, objective: StateObjective, batches: Sequence[Batch], packed: bool) -> _Work:
        """Evaluate masks in one walk over their shared prefixes."""
        masks = unit.masks
        together = self._packs_together(packed)
        inputs = [pack(batch, together) if packed else batch.inputs for batch in batches]
        plan = plan_of(objective, masks, self.stack.sites_for(masks), unit.scales)
        walks = [
            self._walk(plan, set(masks), batch, batch_inputs, objective)
            for batch, batch_inputs in zip(batches, inputs, strict=True)
        ]
        masks_in_order = list(walks[0])
        # One copy from a GPU for all masks.
        losses = torch.stack([torch.cat([walk[mask] for walk in walks]) for mask in masks_in_order]).cpu().numpy()
        return _Work(
            values=dict(zip(masks_in_order, losses, strict=True)),
            layer_forwards=plan.layer_forwards,
            head_forwards=objective.heads * len(masks),
            layer_tokens=plan.layer_forwards * sum(batch_inputs.n_tokens for batch_inputs in inputs),
        )

    def _run_masks(self, unit: MaskUnit, objective: ModelObjective, batches: Sequence[Batch]) -> _Work:
        """Evaluate masks one after another, each by runs of the masked model."""
        masks = unit.masks
        runs = [self._run(unit, batch, objective) for batch in batches]
        values: dict[Subject, npt.NDArray[np.float64]] = {}
        texts: dict[Subject, list[ScoredText]] = {}
        layer_tokens = 0.0
        sites = self.stack.sites_for(masks)
        for mask in masks:
            values[mask] = np.concatenate([run[mask].losses.numpy() for run in runs])
            if mask_texts := [text for run in runs for text in run[mask].texts]:
                texts[mask] = mask_texts
            layer_tokens += sites.remaining_cost(mask) * sum(run[mask].n_tokens for run in runs)
        layers, heads = passes(objective, masks, sites)
        return _Work(values, layers, heads, layer_tokens, texts)

    def _halve(self, unit: Unit, calibration: Calibration) -> None:
        """Halve the number of samples in a batch of a calibration; refuse if it is 1 already."""
        batches = unit.batches(calibration)
        largest = max(batch.n_samples for batch in batches)
        at_once = min(largest, self._samples_at_once.get(calibration.fingerprint, largest))
        if at_once > 1:
            self._samples_at_once[calibration.fingerprint] = at_once // 2
            return
        longest = max(batch.input_ids.shape[1] for batch in batches)
        fitting = self._fitting_length(unit, calibration, longest)
        remedy = f"{fitting} tokens fit, so use data.seq_len={fitting}" if fitting else "use a smaller data.seq_len"
        if batches[0].images is not None:
            remedy = "use smaller images"
        device = describe_device(self.stack.model.device)
        raise UserError(
            f"a single sample of {longest} tokens is more than {device} holds in addition to the model; {remedy}, or "
            "model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        )

    def _fitting_length(self, unit: Unit, calibration: Calibration, too_long: int) -> int | None:
        """Return a length in tokens at which a sample of text fits, by halving; None if there is none to try."""
        (first, *_) = unit.batches(calibration)
        is_text = first.choices is None and first.answers is None and first.images is None
        if not isinstance(unit, MaskUnit) or not is_text:
            return None
        longest = int(first.lengths.argmax())
        length = too_long // 2
        while length >= _SHORTEST:
            shorter = replace(calibration, shards=(first.samples(longest, longest + 1).beginnings(length),))
            try:
                self._evaluate(replace(unit, shard=0), shorter)
                return length
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            release_memory()
            length //= 2
        return None

    @torch.no_grad()  # not inference mode: gradients may later use tensors that the model caches in a walk
    def _walk(
        self, plan: PrefixPlan, masks: Container[Mask], batch: Batch, inputs: Inputs, objective: StateObjective
    ) -> dict[Mask, Tensor]:
        """Return the losses of masks, [B], on the device; the plan may score the dense model in addition to them."""
        captured = self.stack.capture(inputs)
        self._check_image_layers(plan.masks, captured)
        state = captured.embedded
        held: list[State] = []
        dense: Tensor | None = None
        losses: dict[Mask, Tensor] = {}
        for step in plan.steps:
            match step.op:
                case Op.RUN:
                    state = self.stack.run(step.run, state, captured)
                case Op.SCALE:
                    state = state.scaled(step.factor)
                case Op.HOLD:
                    held.append(state.clone())  # a layer may write into its input
                case Op.RESTORE:
                    state = held.pop()
                case Op.SCORE:
                    mask = plan.masks[step.index]
                    states = predicting(state.hidden, inputs).to(self.stack.last_device)
                    if objective.compares and mask == Mask():  # the plan scores it first
                        dense = states
                    if mask in masks:
                        losses[mask] = _checked(objective, objective.losses(states, batch, self.stack, dense), batch)
        return losses

    def _check_image_layers(self, masks: Iterable[Mask], captured: Captured) -> None:
        """Refuse masks that remove a layer, or a half of it, at whose place the model adds features of images."""
        needed = captured.layers_with_features
        if (mask := next((mask for mask in masks if {*needed} & {*mask.touched_layers}), None)) is not None:
            raise UnsupportedModelError(
                f"{self.stack.kind} adds features of images to the outputs of its layers {needed}, so {mask} cannot be "
                f"judged on images; use protect={needed}"
            )

    def _verify_images(self, calibration: Calibration) -> None:
        """Compare the stack with the model's own forward on the first row of a calibration with images."""
        first = calibration.shards[0].samples(0, 1)
        if first.images is not None and calibration.fingerprint not in self._with_verified_images:
            verify_images(self.stack, first)
            self._with_verified_images.add(calibration.fingerprint)

    def _verify_scales(self, unit: MaskUnit) -> None:
        """Check, before the first masks that are repaired by their scales, that weights can hold these factors."""
        if unit.scales is not None and not self._scales_verified:
            verify_scales(self.stack)
            self._scales_verified = True

    @torch.no_grad()
    def _run(self, unit: MaskUnit, batch: Batch, objective: ModelObjective) -> dict[Mask, ModelLosses]:
        losses = {}
        for mask in unit.masks:
            scales = () if unit.scales is None else unit.scales.of_mask(mask)
            with self.stack.bypassed(mask, scales) as model:
                losses[mask] = objective.model_losses(model, self.tokenizer, batch)
                _checked(objective, losses[mask].losses, batch)
        return losses

    @functools.cached_property
    def _pass_tokens(self) -> int:
        """The fixed time of a layer-forward, expressed as the number of tokens that take as long."""
        if not self._on_gpu:
            return _PASS_TOKENS_ON_CPU
        weights = sum(parameter.numel() for parameter in self.stack.layers[0].parameters())
        state = (weights / 12) ** 0.5  # the elements of a token's state, estimated for a Transformer layer
        return int(_PASS_S_ON_GPU / (2 * weights / _FLOPS_OF_GPU + state * _ELEMENT_S_ON_GPU))

    @property
    def _on_gpu(self) -> bool:
        return self.stack.last_device.type != "cpu"

    def _rows_interact(self, calibration: Calibration) -> bool:
        """Whether rows of different lengths must not share a batch; tested with three rows.

        Some models compute differently beyond a certain length. The shortest row is below that length, if any row is.
        The two longest rows have the most tokens beyond it.
        """
        name = calibration.fingerprint
        if name not in self._interacting:
            # A model objective generates, and generation is tested separately. A row with images always runs alone.
            runs_alone = isinstance(calibration.objective, ModelObjective) or calibration.shards[0].images is not None
            shards = () if runs_alone else calibration.shards
            by_length: dict[int, npt.NDArray[np.int64]] = {}
            for shard in shards:
                for row, length in zip(shard.input_ids, shard.lengths.tolist(), strict=True):
                    by_length.setdefault(length, row[:length])
            lengths = sorted(by_length)
            rows = [by_length[length] for length in sorted({*lengths[:1], *lengths[-2:]})]
            try:
                self._interacting[name] = len(rows) > 1 and rows_interact(self.stack, rows)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._interacting[name] = True  # the safe answer
        return self._interacting[name]

    def _packs(self, calibration: Calibration) -> bool:
        """Whether choices may share their prompt; tested on the items with the longest row, plain and packed."""
        name = calibration.fingerprint
        if name not in self._packing:
            items = [shard.samples(item, item + 1) for shard in calibration.shards for item in range(shard.n_samples)]
            packed = np.concatenate([packed_lengths(shard) for shard in calibration.shards])
            longest_row = max(items, key=lambda item: item.input_ids.shape[1])
            longest_packed = items[packed.argmax()]
            largest = [longest_row] if longest_packed is longest_row else [longest_row, longest_packed]
            self._packing[name] = all(packs(self.stack, item) for item in largest)
        return self._packing[name]


def _checked(objective: Objective, losses: Any, batch: Batch) -> Tensor:
    """Return the losses of an objective, which a user may have written; refuse all but a loss per sample."""
    is_tensor = isinstance(losses, Tensor)
    if not is_tensor or losses.dtype != torch.float64 or losses.shape != (batch.n_samples,):
        description = f"{losses.dtype} of shape {list(losses.shape)}" if is_tensor else repr(losses)
        raise UserError(
            f"{type(objective).__name__} returned {description} for {batch.n_samples} samples; return a float64 "
            "tensor of one loss a sample"
        )
    return losses


def make_replica(
    model: LocatedModel, threads: int, tokenizer: Any = None, over_gpus: bool = False, detached: Detached | None = None
) -> Replica:
    """Make a replica in this process.

    Args:
        model: The model, and its device.
        threads: CPU threads of torch.
        tokenizer: The model's tokenizer; None to read it on first use.
        over_gpus: Whether the layers are spread over all GPUs of the machine.
        detached: The weights in shared memory; None to read them from disk.

    Returns:
        The replica, with the model in memory.

    Raises:
        UserError: The device does not hold the model.
    """
    device = "cpu" if over_gpus else model.device
    load = functools.partial(load_tokenizer, model) if tokenizer is None else lambda: tokenizer
    try:
        module = load_model(model, device) if detached is None else torch.nn.Module.to(attach(*detached), device)
        module = spread(module, model.name) if over_gpus else module
        return Replica(LayerStack(module, model.compile, model.fused_head), (), threads, load)
    except Exception as error:
        if not is_out_of_memory(error.__cause__ or error):  # the stack's check may have raised another error from it
            raise
        raise UserError(
            f"{describe_device(torch.device('cuda' if over_gpus else device))} does not hold model={model.name}; use "
            "model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        ) from error
