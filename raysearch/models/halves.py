"""Finds the two halves of a layer by its behaviour: the attention with its norms, and the MLP with its norms.

A layer adds to the hidden state what its attention computes, then what its MLP computes. The parts of the attention
are those that mix tokens: their output at a token depends on other tokens. The parts of the MLP compute each token by
itself, with matrices. If the parts of one half return zeros, the layer runs the other half alone:

    half A:  h -> h + attention(norm(h))      the layer, whose MLP returns zeros
    half M:  h -> h + mlp(norm(h))            the layer, whose attention returns zeros

A layer has two halves only if M(A(h)) is bit for bit what the layer itself returns. So nothing has to be known about
architectures, and a layer whose halves run side by side, or that scales its whole output, has none.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from raysearch.core.mask import OTHER_PART, PARTS, Part
from raysearch.models.layers import Convention, LayerCall, State, replaced

_MIXING = 1e-3  # the least change of a token's output, relative to its size, if another token's input changes


@dataclass(frozen=True)
class SilentModule:
    """A module that can return zeros in place of its output.

    Args:
        module: The module.
        container: tuple or list, if it returns one, whose first value is the output; None if it returns a tensor.
        length: The number of values in the container.
        width: The size of the last axis of its output.
        argument: The argument that is its input: a place among the positional ones, or a name.
    """

    module: nn.Module
    container: type | None
    length: int
    width: int
    argument: int | str

    @classmethod
    def of(cls, call: _ModuleCall) -> SilentModule:
        """Return the module of a recorded call."""
        container = next((kind for kind in (tuple, list) if isinstance(call.output, kind)), None)
        length = 1 if container is None else len(call.output)
        return cls(call.module, container, length, call.hidden_output.shape[-1], call.argument)

    def zeros(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module would return, with zeros in place of its output, and None for all other values.

        Args:
            args: The positional arguments of the call.
            kwargs: The named arguments of the call.

        Returns:
            Zeros with the shape of the output, [..., width], alone or as the first value of the container.
        """
        before: Tensor = args[self.argument] if isinstance(self.argument, int) else kwargs[self.argument]
        zeros = before.new_zeros(*before.shape[:-1], self.width)
        return zeros if self.container is None else self.container([zeros] + [None] * (self.length - 1))

    def unchanged(self, *args: Any, **kwargs: Any) -> Any:
        """Return the input of the module in place of its output.

        Args:
            args: The positional arguments of the call.
            kwargs: The named arguments of the call.

        Returns:
            The argument that is its input.
        """
        return args[self.argument] if isinstance(self.argument, int) else kwargs[self.argument]


@dataclass(frozen=True)
class LayerHalves:
    """The two halves of a layer.

    Args:
        silent: By half, the modules that return zeros while the *other* half runs alone.
        part_of: The half of each parameter and buffer of the layer, by its name within the layer.
        norms: By half, the norms that do nothing while the other half runs alone.
    """

    silent: Mapping[Part, tuple[SilentModule, ...]]
    part_of: Mapping[str, Part]
    norms: Mapping[Part, tuple[SilentModule, ...]] = field(default_factory=dict)

    def parts_with(self, layer: nn.Module, name: str) -> list[Part]:
        """Return the half whose modules have a tensor; empty if it belongs to the layer itself or to a norm.

        Args:
            layer: The layer.
            name: The name of the tensor within the layer.

        Returns:
            A list of one half, or of none.
        """
        child = getattr(layer, name.partition(".")[0], None)
        return [part for part in PARTS if any(silent.module is child for silent in self.silent[part])]

    def names(self, names: Iterable[str], part: Part) -> list[str]:
        """Return the names of the tensors of a half; a tensor of neither half is counted with the MLP.

        Args:
            names: The names of tensors within the layer.
            part: The half.

        Returns:
            Those of the half, in the same order.
        """
        return [name for name in names if self.part_of.get(name, "mlp") == part]

    @contextlib.contextmanager
    def alone(self, part: Part) -> Iterator[None]:
        """Let the layer run one of its halves alone within the context."""
        other_part = OTHER_PART[part]
        forwards: dict[nn.Module, Callable[..., Any]] = {
            norm.module: norm.unchanged for norm in self.norms.get(other_part, ())
        }
        with replaced(forwards | {silent.module: silent.zeros for silent in self.silent[other_part]}):
            yield


@torch.no_grad()
def find_halves(layer: nn.Module, convention: Convention, state: State, call: LayerCall) -> LayerHalves | str:
    """Find the halves of a layer by running it.

    Args:
        layer: The layer.
        convention: How the layer is called.
        state: A state to run it on; one row of several tokens.
        call: The other arguments of the layer.

    Returns:
        The halves; or why the layer has none, as the end of a sentence: ``has no part that …``.
    """
    if convention.extras or len(convention.token_shape) > 1:
        return "passes on more than one hidden state for each token"

    def run(tensors: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:
        """Run the layer, with other tensors in place of its own, by name."""
        changed = functools.partial(_run_with, layer, dict(tensors)) if tensors else layer
        return convention.run(changed, state.clone(), call).hidden

    calls = _calls_of_children(layer, run)
    mixers = [module_call for module_call in calls if module_call.mixes_tokens()]
    if not mixers:
        return "has no part that mixes tokens"
    after_attention = calls[calls.index(mixers[0]) :]  # a norm before the attention may have matrices, too
    others = [module_call for module_call in after_attention if module_call not in mixers and module_call.has_matrices]
    if not others:
        return "has no part that computes each token by itself"
    silent: dict[Part, tuple[SilentModule, ...]] = {
        "attention": tuple(map(SilentModule.of, mixers)),
        "mlp": tuple(map(SilentModule.of, others)),
    }
    halves = LayerHalves(silent, {})
    output = run()

    def fault_of(halves: LayerHalves) -> str | None:
        """Return why one half and then the other are not the layer; None if they are."""
        try:
            with halves.alone("attention"):
                between = convention.run(layer, state.clone(), call)
            with halves.alone("mlp"):
                after = convention.run(layer, between, call).hidden
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if "CUDA error" in str(error):  # of the device; another replica may succeed
                raise
            return f"does not run without one of its parts ({type(error).__name__})"
        return None if torch.equal(after, output) else "computes something else than its attention, then its MLP"

    if (fault := fault_of(halves)) is not None:
        return fault
    part_of: dict[str, Part] = {}
    for name, values in layer.state_dict().items():
        parts = halves.parts_with(layer, name) or _parts_that_read(halves, name, values, run)
        if len(parts) > 1:
            return f"uses {name} in both halves"
        if parts:
            (part_of[name],) = parts
    halves = replace(halves, part_of=part_of)
    with_norms = replace(halves, norms={part: _norms(layer, calls, part_of, part) for part in PARTS})
    return halves if fault_of(with_norms) else with_norms


def _norms(
    layer: nn.Module, calls: Sequence[_ModuleCall], part_of: Mapping[str, Part], part: Part
) -> tuple[SilentModule, ...]:
    """Return the called modules without matrices that belong to a half.

    Args:
        layer: The layer.
        calls: The calls of its direct children.
        part_of: The half of each tensor, by its name within the layer.
        part: The half.

    Returns:
        The norms.
    """
    names = {module: name for name, module in layer.named_children()}
    norms = []
    for module_call in calls:
        prefix = f"{names[module_call.module]}."
        parts = {part_of.get(name) for name in layer.state_dict() if name.startswith(prefix)}
        if parts == {part} and not module_call.has_matrices:
            norms.append(SilentModule.of(module_call))
    return tuple(norms)


def _run_with(layer: nn.Module, tensors: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Run a layer with other tensors in place of its own."""
    return torch.func.functional_call(layer, tensors, args, kwargs)


def _parts_that_read(
    halves: LayerHalves, name: str, values: Tensor, run: Callable[[Mapping[str, Tensor]], Tensor]
) -> list[Part]:
    """Return the halves whose output changes with the values of a tensor.

    Args:
        halves: The halves.
        name: The name of the tensor within the layer.
        values: Its values.
        run: Runs the layer with other tensors in place of its own, by name.

    Returns:
        The halves; empty if no output depends on the tensor.
    """
    other_values = torch.zeros_like(values) if values.any() else torch.ones_like(values)
    parts: list[Part] = []
    for part in PARTS:
        with halves.alone(part):
            if not torch.equal(run({name: values}), run({name: other_values})):
                parts.append(part)
    return parts


@dataclass(frozen=True, eq=False)
class _ModuleCall:
    """One call of a child of a layer."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    argument: int | str  #: the argument that is its input

    @property
    def hidden_output(self) -> Tensor:
        output: Tensor = self.output[0] if isinstance(self.output, (tuple, list)) else self.output
        return output

    @property
    def has_matrices(self) -> bool:
        return any(weights.ndim > 1 for weights in _weights(self.module))

    def mixes_tokens(self) -> bool:
        """Return whether the output at some token depends on the first token."""
        if not any(True for _ in _weights(self.module)):
            return False
        args = list(self.args)
        kwargs = dict(self.kwargs)
        arguments: Any = args if isinstance(self.argument, int) else kwargs
        changed = arguments[self.argument].clone()
        tokens = changed.flatten(0, -2)
        tokens[0] = -2 * tokens[0] + 1
        arguments[self.argument] = changed
        output = self.module(*args, **kwargs)
        after = output[0] if isinstance(output, (tuple, list)) else output
        before = self.hidden_output.flatten(0, -2)[1:]
        return bool((after.flatten(0, -2)[1:] - before).norm() > _MIXING * before.norm())


def _weights(module: nn.Module) -> Iterator[Tensor]:
    """Yield the weights of a module; those of quantised layers may be buffers."""
    return itertools.chain(module.parameters(), module.buffers())


def _calls_of_children(layer: nn.Module, run: Callable[[], Any]) -> Sequence[_ModuleCall]:
    """Run a layer, and return the calls of its direct children that are given a hidden state and return one."""
    calls: list[_ModuleCall] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        argument = next((name for name, value in arguments if isinstance(value, Tensor) and value.ndim > 1), None)
        values = output[0] if isinstance(output, (tuple, list)) else output
        if argument is not None and isinstance(values, Tensor):
            calls.append(_ModuleCall(module, args, kwargs, output, argument))

    with contextlib.ExitStack() as hooks:
        for child in layer.children():
            hooks.callback(child.register_forward_hook(record, with_kwargs=True).remove)
        run()
    return calls
