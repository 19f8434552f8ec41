"""Finds a model's layers, and how each of them is called, by one forward of two tokens."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.checkpoints.config_rules import depths
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError


@dataclass(frozen=True)
class LayerCall:
    """The arguments of one layer besides the hidden state."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Convention:
    """How the hidden state is passed to a layer and returned by it."""

    positional: bool  #: whether the hidden state is the first positional argument, not the keyword ``hidden_states``
    #: tuple or list, if the layer returns one, whose first value is the hidden state; None if it returns the tensor.
    container: type | None
    length: int  #: the number of values in the container

    @classmethod
    def of(cls, args: tuple[Any, ...], output: Any) -> Convention:
        """Return the convention of one call.

        Args:
            args: The positional arguments.
            output: The output of the layer.

        Returns:
            The convention.
        """
        container = next((kind for kind in (tuple, list) if isinstance(output, kind)), None)
        return cls(bool(args), container, 1 if container is None else len(output))

    def stand_in(self, compute: Callable[[Tensor, LayerCall], Tensor]) -> Callable[..., Any]:
        """Return a forward of this convention; `compute` returns its hidden state."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            before, *other_args = args or [kwargs.pop("hidden_states")]
            after = compute(before, LayerCall(tuple(other_args), kwargs))
            return after if self.container is None else self.container([after] + [None] * (self.length - 1))

        return forward


def layer_lists(model: PreTrainedModel) -> list[nn.ModuleList]:
    """Return the lists of modules that may be the stack of layers, at least one.

    They have as many modules as the text config has layers. If the config does not give that number, the result is the
    list with the most parameters.

    Raises:
        UnsupportedModelError: The model has no list of modules.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not lists:
        raise UnsupportedModelError(f"{model.config.model_type} has no list of layers; use a decoder with one stack")
    for n_layers in depths(model.config.get_text_config()).values():
        if candidates := [part for part in lists if len(part) == n_layers]:
            return candidates
    return [max(lists, key=lambda part: sum(weights.numel() for weights in part.parameters()))]


def sites_of(layers: Iterable[nn.Module]) -> Sites:
    """Return what a mask can remove from a stack of layers; parameters that a layer shares are counted once."""
    return Sites.of_layers(sum(weights.numel() for weights in layer.parameters()) for layer in layers)


@torch.no_grad()
def find_stack(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], tuple[Convention, ...]]:
    """Run two tokens through the model to find its layers, and how each of them is called.

    Returns:
        The layers in order, and the convention of each.

    Raises:
        UnsupportedModelError: The model has not exactly one stack whose layers run once and in order, or its layers
            pass more than the hidden state on.
    """
    kind = model.config.model_type
    lists = layer_lists(model)
    called: list[tuple[nn.Module, Convention]] = []

    def record_call(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if hasattr(output, "_fields"):  # a named tuple, whose fields the model reads by name
            raise UnsupportedModelError(
                f"{kind} passes {' and '.join(output._fields)} from layer to layer, not the hidden state alone; use "
                "another architecture"
            )
        called.append((layer, Convention.of(args, output)))

    with contextlib.ExitStack() as hooks:
        for block in dict.fromkeys(itertools.chain(*lists)):
            hooks.callback(block.register_forward_hook(record_call, with_kwargs=True).remove)
        plain_logits(model, torch.zeros(1, 2, dtype=torch.int64, device=model.device))
    stacks = []
    for blocks in lists:
        distinct_blocks = set(blocks)
        calls = [(layer, convention) for layer, convention in called if layer in distinct_blocks]
        if [layer for layer, _ in calls] == list(blocks) and len(distinct_blocks) == len(blocks):
            stacks.append(calls)
    if len(stacks) != 1:
        problem = "more than one stack of layers" if stacks else "no stack whose layers each run once and in order"
        raise UnsupportedModelError(f"{kind} has {problem}; use a plain decoder")
    layers, conventions = zip(*stacks[0], strict=True)
    return layers, conventions


@contextlib.contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forwards of modules by functions within the context."""
    # A module may already have a replaced forward (by accelerate's hooks, or by an enclosing context).
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, old_forward in before.items():
            vars(module).pop("forward", None)
            if old_forward is not None:
                vars(module)["forward"] = old_forward


def plain_logits(
    model: PreTrainedModel, input_ids: Tensor, read: bool | Sequence[int] = True, **inputs: Tensor | None
) -> Tensor:
    """Run the model's own forward without a cache.

    Args:
        model: The model.
        input_ids: The tokens, int64, [B, T].
        read: Whether the logits of all positions are needed; or the positions whose logits are needed.
        inputs: Further arguments of the forward; those that are None are left out.

    Returns:
        The logits, [B, T, vocabulary]; of fewer positions if not `read`; of the positions of `read`. They are on the
        device of `input_ids`, even if the model is spread over several devices.
    """
    arguments = {name: value.to(model.device) for name, value in inputs.items() if value is not None}
    options: dict[str, Any] = {"use_cache": False, **arguments}
    positions = [] if read is True else [*read] if read else [0]
    selects = bool(positions) and "logits_to_keep" in inspect.signature(model.forward).parameters
    if selects:
        # The head then runs on these positions of each row alone. They are given by indices, since with a slice the
        # head would be copied; and by a list, since accelerate would move a tensor to the first device, but the states
        # are on the last one.
        options["logits_to_keep"] = positions
    if getattr(model.config, "output_router_logits", False):
        # Else the model computes a loss of the layers' routers, which may not have run.
        options["output_router_logits"] = False
    logits: Tensor = model(input_ids=input_ids, **options).logits
    return logits[:, positions] if positions and not selects else logits
