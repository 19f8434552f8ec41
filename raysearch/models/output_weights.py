"""Finds the weights that a half of a layer ends in, by the half's behaviour.

A half adds ``f(h)`` to the hidden state. Its output weights are those that f is proportional to: the projection of an
attention or an MLP, with its bias if it has one; those of all experts; or the weight of a norm that comes after it.
Whoever changes them can scale what the half adds, or map it by a matrix, and the model keeps its form:

    scaled by c      f(h) -> c f(h)      each output weight times c
    mapped by T      f(h) -> T f(h)      each projection W -> T W, each bias b -> T b; impossible for a norm
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raysearch.core.mask import Half
from raysearch.core.site import Run
from raysearch.errors import UnsupportedModelError
from raysearch.models.layers import State
from raysearch.models.stack import Captured, LayerStack
from raysearch.models.verification import tolerance

_FACTOR = 2.0  # exact in floating point


@dataclass(frozen=True)
class OutputWeight:
    """A weight that what a half adds is proportional to.

    Args:
        name: Its name within the layer.
        axis: Its axis of the hidden dimension, counted from the last; None for the weight of a norm.
        offset: What is added to a norm's weight before it is multiplied: 1 in the norms of Gemma, otherwise 0.
    """

    name: str
    axis: int | None
    offset: float = 0.0

    def scaled(self, values: Tensor, factor: float) -> Tensor:
        """Return the values with which the half adds `factor` times as much.

        Args:
            values: The values.
            factor: The factor.

        Returns:
            The new values, with the shape and the dtype of `values`; computed in float64.
        """
        return (factor * (values.double() + self.offset) - self.offset).to(values.dtype)

    def mapped(self, values: Tensor, matrix: Tensor) -> Tensor:
        """Return the values with which the half adds T f in place of f.

        Args:
            values: The values; not those of a norm.
            matrix: T, float64, [d, d].

        Returns:
            The new values, with the shape and the dtype of `values`; computed in float64.
        """
        assert self.axis is not None, "a norm computes each dimension by itself"
        moved = values.double().movedim(self.axis, -1)
        return (moved @ matrix.to(moved.device).T).movedim(-1, self.axis).to(values.dtype).contiguous()


@dataclass(frozen=True)
class OutputWeights:
    """The output weights of a half.

    Args:
        weights: The weights; each of them in every expert.
    """

    weights: tuple[OutputWeight, ...]

    @property
    def can_be_mapped(self) -> bool:
        """Whether a matrix can be merged into the weights: they are projections, and no norm comes after them."""
        return all(weight.axis is not None for weight in self.weights)

    @property
    def bias(self) -> OutputWeight | None:
        """The bias of the projection; None if it has none."""
        return next((weight for weight in self.weights if weight.name.endswith("bias")), None)

    def scaled(self, values: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
        """Return the values with which the half adds `factor` times as much.

        Args:
            values: The layer's tensors by name.
            factor: The factor.

        Returns:
            The new values of the output weights by name.
        """
        return {weight.name: weight.scaled(values[weight.name], factor) for weight in self.weights}

    def mapped(self, values: Mapping[str, Tensor], matrix: Tensor) -> dict[str, Tensor]:
        """Return the values with which the half adds T f in place of f.

        Args:
            values: The layer's tensors by name.
            matrix: T, float64, [d, d].

        Returns:
            The new values of the output weights by name.
        """
        return {weight.name: weight.mapped(values[weight.name], matrix) for weight in self.weights}


@contextmanager
def with_values(layer: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a layer compute from other values of some of its weights within the context.

    The weights themselves are not written to: they may be shared with other processes.

    Args:
        layer: The layer.
        values: The values by name within the layer.
    """
    with ExitStack() as stack:
        for name, value in values.items():
            module_name, _, attribute = name.rpartition(".")
            module = layer.get_submodule(module_name)
            before = getattr(module, attribute)
            forward = vars(module).pop("forward", None)  # it may compute from a rearranged copy of the weight
            setattr(module, attribute, nn.Parameter(value.to(before.device, before.dtype), requires_grad=False))
            stack.callback(_restore, module, attribute, before, forward)
        yield


def _restore(module: nn.Module, attribute: str, before: Any, forward: Callable[..., Any] | None) -> None:
    """Give a module its weight and its replaced forward back."""
    setattr(module, attribute, before)
    if forward is not None:
        vars(module)["forward"] = forward


@torch.no_grad()
def find_output_weights(stack: LayerStack, half: Half, state: State, captured: Captured) -> OutputWeights:
    """Find the output weights of a half by running it.

    Args:
        stack: The layers of the model.
        half: The half.
        state: A state to run it on.
        captured: The input of the layers for the same rows.

    Returns:
        The weights.

    Raises:
        UnsupportedModelError: No weights were found that what the half adds is proportional to.
    """
    layer = stack.layers[half.layer]
    tensors = dict(layer.named_parameters())

    def run(values: Mapping[str, Tensor]) -> Tensor:
        """Return what the half adds with other values of some weights, float32 [B, T, d]."""
        with with_values(layer, values):
            after = stack.run(Run(half.layer, half.part), state.clone(), captured, compiled=False)
        return after.hidden.float() - state.hidden.float().to(after.hidden.device)

    added = run({})
    largest_gap = 10 * tolerance(state.hidden.dtype)
    width = added.shape[-1]
    noise = torch.randn(width, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.eye(width, dtype=torch.float64) + noise / width**0.5
    projections: list[OutputWeight] = []
    for name in reversed(_parameters_in_order(layer, lambda: run({}))):
        values = tensors[name]
        if values.ndim == 1 and not name.endswith("bias"):
            norms = [OutputWeight(name, None, offset) for offset in (0.0, 1.0)]
            gaps = [_gap(run({name: norm.scaled(values, _FACTOR)}), _FACTOR * added, added) for norm in norms]
            if min(gaps) <= largest_gap:
                return OutputWeights((norms[gaps.index(min(gaps))],))
            continue
        probe = values if values.any() else torch.ones_like(values)  # a bias may be 0
        without = run({name: torch.zeros_like(values)})
        share = run({name: probe}) - without
        expected = without + share @ matrix.float().to(share.device).T
        for axis in (-2, -1) if share.any() else ():
            weight = OutputWeight(name, axis)
            if values.ndim < -axis or values.shape[axis] != width:
                continue
            if _gap(run({name: weight.mapped(probe, matrix)}), expected, share) <= largest_gap:
                projections += [OutputWeight(other_name, axis) for other_name in _in_all_experts(name, tensors)]
                break
        weights = OutputWeights(tuple(projections))
        if projections and _gap(run(weights.scaled(tensors, _FACTOR)), _FACTOR * added, added) <= largest_gap:
            return weights
    raise UnsupportedModelError(
        f"{stack.kind} has no weights that scale what {half} adds to the hidden state; use recovery.method=lora"
    )


def _gap(values: Tensor, expected: Tensor, relative_to: Tensor) -> float:
    """Return the size of the difference of two tensors, relative to the size of a third."""
    return ((values - expected).norm() / relative_to.norm()).item()


def _in_all_experts(name: str, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of a tensor in all experts, which are numbered modules; else the name alone."""
    pattern = re.compile(re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(f".{name}")))
    return [other for other in tensors if pattern.fullmatch(f".{other}")]


def _parameters_in_order(layer: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Run a layer, and return the names of its parameters in the order in which their modules end."""
    ended: dict[nn.Module, None] = {}
    with ExitStack() as hooks:
        for module in layer.modules():
            hooks.callback(module.register_forward_hook(lambda ended_module, *_: ended.setdefault(ended_module)).remove)
        run()
    names = {module: name for name, module in layer.named_modules()}
    return [
        f"{names[module]}.{name}".lstrip(".") for module in ended for name, _ in module.named_parameters(recurse=False)
    ]
