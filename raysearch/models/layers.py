"""Finds a model's layers, and how each of them is called, by one small forward."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from raysearch.errors import UnsupportedModelError

#: The settings that may hold a decoder's number of layers; those that a config has under another name come first.
_DEPTHS = (
    "num_hidden_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "num_blocks",
)


@dataclass(frozen=True)
class LayerCall:
    """The arguments of one layer beside the hidden state."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Convention:
    """How one layer takes and returns the hidden state."""

    positional: bool  #: whether it is the first argument, and not the keyword ``hidden_states``
    #: tuple or list when the layer returns one, hidden state first; None when it returns the tensor.
    container: type | None
    length: int  #: how many values the container holds

    @classmethod
    def of(cls, args: tuple[Any, ...], output: Any) -> Convention:
        """Return the convention of one call and its output."""
        container = next((kind for kind in (tuple, list) if isinstance(output, kind)), None)
        return cls(bool(args), container, 1 if container is None else len(output))

    def stand_in(self, compute: Callable[[Tensor, LayerCall], Tensor]) -> Callable[..., Any]:
        """Return a forward of this convention, which returns what is computed from the hidden state and the rest."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            given, *rest = args or [kwargs.pop("hidden_states")]
            hidden = compute(given, LayerCall(tuple(rest), kwargs))
            return hidden if self.container is None else self.container([hidden] + [None] * (self.length - 1))

        return forward


def layer_lists(model: PreTrainedModel) -> list[nn.ModuleList]:
    """Return the lists of as many blocks as the text config has layers, at least one: the stack is one of them.

    Where the config does not give that number, it is the list with the most parameters.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not lists:
        raise UnsupportedModelError(f"{model.config.model_type} has no list of layers; use a decoder with one stack")
    for n_layers in depths(model.config.get_text_config()).values():
        if right := [part for part in lists if len(part) == n_layers]:
            return right
    return [max(lists, key=lambda part: sum(weights.numel() for weights in part.parameters()))]


def depth_names(config: PreTrainedConfig) -> list[str]:
    """Return the names of settings that may hold the number of a decoder's layers, as a config or its file has them.

    A name that stands for the number of another part's layers, as of an encoder, is left out.
    """
    return [name for name in _DEPTHS if "encoder" not in config.attribute_map.get(name, name)]


def depths(config: PreTrainedConfig) -> dict[str, int]:
    """Return what a config says about the number of a decoder's layers, by the name of the setting."""
    return {name: value for name in depth_names(config) if type(value := getattr(config, name, None)) is int}


@torch.no_grad()
def find_stack(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], tuple[Convention, ...]]:
    """Run two tokens through the model to find its layers, in order, and how each of them is called."""
    kind, lists = model.config.model_type, layer_lists(model)
    called: list[tuple[nn.Module, Convention]] = []

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if hasattr(output, "_fields"):  # a named tuple, whose values the model reads by their names
            raise UnsupportedModelError(
                f"{kind} passes {' and '.join(output._fields)} from layer to layer, not the hidden state alone; use "
                "another architecture"
            )
        called.append((layer, Convention.of(args, output)))

    with contextlib.ExitStack() as hooks:
        for block in dict.fromkeys(itertools.chain(*lists)):
            hooks.callback(block.register_forward_hook(note, with_kwargs=True).remove)
        plain_logits(model, torch.zeros(1, 2, dtype=torch.int64, device=model.device))
    stacks = []
    for blocks in lists:
        own = set(blocks)
        calls = [(layer, convention) for layer, convention in called if layer in own]
        if [layer for layer, _ in calls] == list(blocks) and len(own) == len(blocks):
            stacks.append(calls)
    if len(stacks) != 1:
        found = "more than one stack of layers" if stacks else "no stack whose layers each run once and in order"
        raise UnsupportedModelError(f"{kind} has {found}; use a plain decoder")
    layers, conventions = zip(*stacks[0], strict=True)
    return layers, conventions


@contextlib.contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within the context functions compute in place of modules."""
    # A module may have a forward of its own already (accelerate's hooks, or that of an enclosing context).
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            vars(module).pop("forward", None)
            if own is not None:
                vars(module)["forward"] = own


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
    return model(input_ids=input_ids, **options).logits
