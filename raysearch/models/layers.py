"""Finds a model's layers, and how each of them is called, by one forward of two tokens."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from raysearch.checkpoints.config_rules import depths
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError

_PROBE_SHAPE = (1, 2)  # rows x tokens of the forward that finds the layers


@dataclass(frozen=True)
class State:
    """What goes from layer to layer. The first axes of the hidden state are rows and tokens, in every model."""

    hidden: Tensor  #: the hidden state, [B, T, d], or [B, T, streams, d] in a model with several streams
    #: The values that the model passes on besides it, in the order of `Convention.extras`. For rows by length, a tuple
    #: of these for each part.
    extras: tuple[Any, ...] = ()

    def clone(self) -> State:
        """Return a copy. A layer may write into its input."""
        return State(self.hidden.clone(), _cloned(self.extras) if self.extras else ())

    def scaled(self, factor: float) -> State:
        """Return the state with the hidden state multiplied by a factor."""
        return replace(self, hidden=self.hidden * factor)

    @property
    def has_further_numbers(self) -> bool:
        """Whether an extra value has real numbers, through which the loss has gradients."""
        return _has_reals(self.extras)


def _cloned(value: Any) -> Any:
    """Return a value, or a tuple of values, with copies of its tensors."""
    if isinstance(value, tuple):
        return tuple(map(_cloned, value))
    return value.clone() if isinstance(value, Tensor) else value


def _has_reals(value: Any) -> bool:
    """Return whether a value, or a tuple of values, has a tensor of real numbers."""
    if isinstance(value, tuple):
        return any(map(_has_reals, value))
    return isinstance(value, Tensor) and value.is_floating_point()


@dataclass(frozen=True)
class Extra:
    """A value that goes from layer to layer besides the hidden state, such as the tokens chosen by an attention."""

    place: int  #: its place in the container that a layer returns
    argument: int | str  #: the next layer's argument: its name, or its place among the positional ones after the state


@dataclass(frozen=True)
class LayerCall:
    """The arguments of one layer besides the hidden state."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def value(self, extra: Extra) -> Any:
        """Return the argument that is an extra value; None if it is left out."""
        return self.args[extra.argument] if isinstance(extra.argument, int) else self.kwargs.get(extra.argument)

    def with_values(self, extras: Sequence[Extra], values: Sequence[Any]) -> LayerCall:
        """Return the call with other extra values.

        Args:
            extras: The extra values' places.
            values: A value for each of them.

        Returns:
            The call.
        """
        args = list(self.args)
        kwargs = dict(self.kwargs)
        for extra, value in zip(extras, values, strict=True):
            if isinstance(extra.argument, int):
                args[extra.argument] = value
            else:
                kwargs[extra.argument] = value
        return LayerCall(tuple(args), kwargs)


@dataclass(frozen=True)
class Convention:
    """How the state is passed to a layer and returned by it."""

    positional: bool  #: whether the hidden state is the first positional argument, not the keyword ``hidden_states``
    #: tuple or list, if the layer returns one, whose first value is the hidden state; None if it returns the tensor.
    container: type | None
    length: int  #: the number of values in the container
    rows_axis: int  #: the axis of the rows in the layer's own hidden state; the axis of the tokens comes next
    token_shape: tuple[int, ...]  #: the shape of a token's hidden state: [d], or [streams, d]
    extras: tuple[Extra, ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], output: Any, extras: tuple[Extra, ...]) -> Convention:
        """Return the convention of one call with one row of two tokens.

        Args:
            args: The positional arguments.
            output: The output of the layer.
            extras: The values that go from layer to layer besides the hidden state.

        Returns:
            The convention.
        """
        container = next((kind for kind in (tuple, list) if isinstance(output, kind)), None)
        hidden = output if container is None else output[0]
        shape = tuple(hidden.shape)
        rows_axis = next((axis for axis in range(len(shape)) if shape[axis : axis + 2] == _PROBE_SHAPE), 0)
        token_shape = shape[:rows_axis] + shape[rows_axis + 2 :]
        return cls(bool(args), container, 1 if container is None else len(output), rows_axis, token_shape, extras)

    def to_layer(self, hidden: Tensor) -> Tensor:
        """Return a hidden state with the axes in the order of the layer."""
        return hidden.movedim((0, 1), (self.rows_axis, self.rows_axis + 1)) if self.rows_axis else hidden

    def from_layer(self, hidden: Tensor) -> Tensor:
        """Return a layer's hidden state with the axes of rows and tokens first."""
        return hidden.movedim((self.rows_axis, self.rows_axis + 1), (0, 1)) if self.rows_axis else hidden

    def run(self, layer: Callable[..., Any], state: State, call: LayerCall) -> State:
        """Run a layer.

        Args:
            layer: The layer, or its compiled form.
            state: The state that enters the layer.
            call: The other arguments.

        Returns:
            The state that leaves the layer.
        """
        hidden = self.to_layer(state.hidden)
        if self.extras:
            call = call.with_values(self.extras, state.extras)
        if self.positional:
            output = layer(hidden, *call.args, **call.kwargs)
        else:
            output = layer(hidden_states=hidden, **call.kwargs)
        return self.state_of(output)

    def state_of(self, output: Any) -> State:
        """Return the state in the output of a layer."""
        values = output if isinstance(output, (tuple, list)) else (output,)
        return State(self.from_layer(values[0]), tuple(values[extra.place] for extra in self.extras))

    def stand_in(self, compute: Callable[[Tensor, LayerCall], Tensor]) -> Callable[..., Any]:
        """Return a forward of this convention; `compute` returns its hidden state. Extra values are passed on."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            before, *other_args = args or [kwargs.pop("hidden_states")]
            call = LayerCall(tuple(other_args), kwargs)
            after = self.to_layer(compute(self.from_layer(before), call))
            if self.container is None:
                return after
            values: list[Any] = [after] + [None] * (self.length - 1)
            for extra in self.extras:
                values[extra.place] = call.value(extra)
            return self.container(values)

        return forward


def layer_lists(model: PreTrainedModel) -> list[nn.ModuleList]:
    """Return the lists of modules that may be the stack of layers, at least one.

    They have as many modules as the text config has layers, and these have parts: a list of projections is no stack. If
    the config does not give that number, the result is the list with the most parameters.

    Raises:
        UnsupportedModelError: The model has no list of modules.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not lists:
        raise UnsupportedModelError(f"{model.config.model_type} has no list of layers; use a decoder with one stack")
    lists = [part for part in lists if any(any(block.children()) for block in part)] or lists
    for n_layers in depths(model.config.get_text_config()).values():
        if candidates := [part for part in lists if len(part) == n_layers]:
            return candidates
    return [max(lists, key=lambda part: sum(weights.numel() for weights in part.parameters()))]


def largest_list(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the layers of a model that has not run. A vision tower may have as many blocks, but smaller ones.

    Raises:
        UnsupportedModelError: The model has no list of modules.
    """
    lists = layer_lists(model)
    sizes = [sum(weights.numel() for weights in part.parameters()) for part in lists]
    return tuple(lists[sizes.index(max(sizes))])


def sites_of(layers: Sequence[nn.Module], text: PreTrainedConfig) -> Sites:
    """Return what a mask can remove from a stack of layers.

    Args:
        layers: The layers.
        text: The config of the language model.

    Returns:
        A site for each layer. Parameters that a layer shares are counted once.
    """
    parameters = [sum(weights.numel() for weights in layer.parameters()) for layer in layers]
    types = getattr(text, "layer_types", None) or [None] * len(layers)
    traits = [(kind, _traits(layer)) for kind, layer in zip(types, layers, strict=True)]
    return Sites.of_layers(parameters, map(list(dict.fromkeys(traits)).index, traits))


def _traits(layer: nn.Module) -> tuple[Any, ...]:
    """Return what decides the time and the memory of a layer.

    These are the classes and settings of its modules, such as a window, and the shapes of their weights.
    """
    traits: list[Any] = []
    for name, part in layer.named_modules():
        shapes = tuple((key, tuple(weights.shape)) for key, weights in part.named_parameters(recurse=False))
        settings = {key: value for key, value in vars(part).items() if not key.startswith("_")}
        switches = tuple((key, value) for key, value in settings.items() if isinstance(value, (bool, str, NoneType)))
        traits.append((name, type(part), shapes, switches, settings.get("sliding_window")))
    return tuple(traits)


@torch.no_grad()
def find_stack(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], tuple[Convention, ...]]:
    """Run two tokens through the model to find its layers, and how each of them is called.

    Returns:
        The layers in order, and the convention of each.

    Raises:
        UnsupportedModelError: The model has not exactly one stack whose layers run once and in order, or its layers
            pass named values on.
    """
    kind = model.config.model_type
    lists = layer_lists(model)
    called: list[_Call] = []

    def record_call(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if hasattr(output, "_fields"):  # a named tuple, whose fields the model reads by name
            raise UnsupportedModelError(
                f"{kind} passes {' and '.join(output._fields)} from layer to layer, not the hidden state alone; use "
                "another architecture"
            )
        called.append(_Call(layer, args, kwargs, output))

    with contextlib.ExitStack() as hooks:
        for block in dict.fromkeys(itertools.chain(*lists)):
            hooks.callback(block.register_forward_hook(record_call, with_kwargs=True).remove)
        plain_logits(model, torch.zeros(_PROBE_SHAPE, dtype=torch.int64, device=model.device))
    stacks = []
    for blocks in lists:
        distinct_blocks = set(blocks)
        calls = [call for call in called if call.layer in distinct_blocks]
        if [call.layer for call in calls] == list(blocks) and len(distinct_blocks) == len(blocks):
            stacks.append(calls)
    if len(stacks) != 1:
        problem = "more than one stack of layers" if stacks else "no stack whose layers each run once and in order"
        raise UnsupportedModelError(f"{kind} has {problem}; use a plain decoder")
    (calls,) = stacks
    extras = _extras(calls)
    layers = tuple(call.layer for call in calls)
    return layers, tuple(Convention.of(call.args, call.output, extras) for call in calls)


@dataclass(frozen=True)
class _Call:
    """One call of a layer by its model."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


def _extras(calls: Sequence[_Call]) -> tuple[Extra, ...]:
    """Return the values besides the hidden state that a layer returns and the next one receives."""
    argument_of_place: dict[int, int | str] = {}
    for call, next_call in itertools.pairwise(calls):
        if not isinstance(call.output, (tuple, list)):
            continue
        arguments: list[tuple[int | str, Any]] = [*enumerate(next_call.args[1:]), *next_call.kwargs.items()]
        for place, value in enumerate(call.output[1:], start=1):
            for argument, next_value in arguments:
                if isinstance(value, Tensor) and next_value is value:
                    argument_of_place.setdefault(place, argument)
    return tuple(Extra(place, argument) for place, argument in sorted(argument_of_place.items()))


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
