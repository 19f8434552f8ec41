"""Finds a model's layers, and how each of them is called, by one small forward."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.errors import UnsupportedModelError


@dataclass(frozen=True)
class LayerCall:
    """The arguments of one layer beside the hidden state."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Convention:
    """How one layer takes and returns the hidden state.

    Args:
        keyword: The name of its argument; None for the first positional one.
        container: tuple or list when the layer returns one, hidden state first; None when it returns the tensor.
        length: How many values the container holds.
    """

    keyword: str | None
    container: type | None
    length: int

    @classmethod
    def of(cls, args: tuple[Any, ...], output: Any) -> Convention:
        """Return the convention of one call and its output."""
        keyword = None if args else "hidden_states"
        if isinstance(output, (tuple, list)):
            return cls(keyword, list if isinstance(output, list) else tuple, len(output))
        return cls(keyword, None, 1)

    def split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, LayerCall]:
        """Split the arguments into the hidden state and the rest."""
        if self.keyword is None:
            return args[0], LayerCall(args[1:], kwargs)
        return kwargs[self.keyword], LayerCall(args, {name: v for name, v in kwargs.items() if name != self.keyword})

    def wrap(self, hidden: Tensor) -> Any:
        """Return the hidden state in the layer's container."""
        return hidden if self.container is None else self.container([hidden] + [None] * (self.length - 1))


def layer_lists(model: PreTrainedModel) -> list[nn.ModuleList]:
    """Return the lists of as many blocks as the text config has layers: the stack is one of them.

    Raises:
        UnsupportedModelError: The model has no such list.
    """
    kind, n_layers = model.config.model_type, getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == n_layers]
    if not lists:
        raise UnsupportedModelError(
            f"{kind} has no list of num_hidden_layers={n_layers} layers; use a decoder with one stack"
        )
    return lists


@torch.no_grad()
def find_stack(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], tuple[Convention, ...]]:
    """Run two tokens through the model to find the list that is the stack, and how its layers are called.

    Returns:
        The layers in order, and each one's convention.
    """
    kind, lists = model.config.model_type, layer_lists(model)
    called: dict[int, list[tuple[nn.Module, Convention]]] = {index: [] for index in range(len(lists))}

    def watch(index: int) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            called[index].append((layer, Convention.of(args, output)))

        return hook

    with contextlib.ExitStack() as hooks:
        for index, blocks in enumerate(lists):
            for block in dict.fromkeys(blocks):
                hooks.callback(block.register_forward_hook(watch(index), with_kwargs=True).remove)
        plain_logits(model, torch.zeros(1, 2, dtype=torch.int64, device=model.device))
    stacks = [index for index, blocks in enumerate(lists) if [layer for layer, _ in called[index]] == list(blocks)]
    stacks = [index for index in stacks if len(set(lists[index])) == len(lists[index])]
    if len(stacks) != 1:
        found = "more than one stack of layers" if stacks else "no stack whose layers each run once and in order"
        raise UnsupportedModelError(f"{kind} has {found}; use a plain decoder")
    layers, conventions = zip(*called[stacks[0]], strict=True)
    return layers, conventions


def plain_logits(model: PreTrainedModel, input_ids: Tensor, read: bool = True, **inputs: Tensor | None) -> Tensor:
    """Return the logits, [B, T, vocabulary], of the model's own forward without a cache; maybe fewer if not `read`.

    They are on the device of `input_ids`, also if the model is spread over several.
    """
    given = {name: value.to(model.device) for name, value in inputs.items() if value is not None}
    options: dict[str, Any] = {"use_cache": False, **given}
    if not read and "logits_to_keep" in inspect.signature(model.forward).parameters:
        # The head runs on one position of each row: an index, since a slice would have the head copied. It is a list,
        # since accelerate moves tensors to the first of several devices, and the states are on the last.
        options["logits_to_keep"] = [0]
    if getattr(model.config, "output_router_logits", False):
        options["output_router_logits"] = False  # a loss over the layers' routers, which may not run
    logits: Tensor = model(input_ids=input_ids, **options).logits
    return logits
