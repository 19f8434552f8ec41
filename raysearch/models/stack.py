"""Runs the layers of any Hugging Face decoder one by one, without a table of architectures.

A decoder's forward embeds the tokens, prepares the other arguments of its layers (masks, rotary embeddings,
positions), runs the layers, and finishes with a tail (final norm, head, soft-capping). These arguments do not depend on
what the layers compute. So one forward with recording stand-ins in place of the layers captures them, and any subset of
the real layers can then run on any state:

    captured = stack.capture(batch.inputs)               the model's own embedding, towers, masks, positions
    hidden = stack.walk(captured, mask)                  the layers and halves that the mask keeps
    logits = stack.logits(hidden.flatten(0, 1))          the model's own tail

A state is what goes from layer to layer: the hidden state, which may have several streams for each token, and values
such as the tokens that a sparse attention has chosen for the next layers. The tail merges the streams.

A stand-in is a function that replaces one layer's `forward`, so the model still reads the layer's other attributes
(`attention_type` …). `raysearch.models.verification` compares the walk with the model's own forward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from raysearch.calibration.batch import Inputs, RowImages
from raysearch.calibration.objectives.base import by_chunk, log_prob, to_device
from raysearch.core.mask import OTHER_PART, Mask
from raysearch.core.scale import Scale, factors_of
from raysearch.core.site import Run, Sites
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.fused_head import FusedHead, find_fused_head
from raysearch.models.halves import LayerHalves, find_halves
from raysearch.models.layers import LayerCall, State, find_stack, plain_logits, replaced, sites_of
from raysearch.text.sentences import first_line

_N_TOKENS_FOR_HALVES = 6  # of the row that layers run on to find their halves
_MOST_GRAPHS = 64  # compiled graphs: one for each kind of layer, with and without a mask, for one row and for several


@dataclass(frozen=True)
class Captured:
    """The input of the layers for one batch."""

    embedded: State  #: what enters layer 0
    calls: tuple[LayerCall, ...]  #: the other arguments of each of the N layers; empty if there are parts
    parts: tuple[Part, ...] = ()  #: the rows that run together, if not all rows must
    #: By layer, what the model's own code adds to the layer's output: features of images, [B, T, d].
    added: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def layers_with_features(self) -> list[int]:
        """The layers to whose outputs features of images are added, ascending."""
        return sorted({*self.added, *(layer for part in self.parts for layer in part.captured.added)})


@dataclass(frozen=True)
class Part:
    """Rows of a batch that run together: of the same length, without padding; with images, a single row."""

    rows: Tensor  #: their indices in the batch, int64, [R]
    n_tokens: int  #: the tokens of each row that are not padding
    captured: Captured  #: the input of the layers for these rows


class LayerStack:
    """Runs the layers of one model. Not thread-safe: while a method runs, the model's layers may be replaced.

    Args:
        model: A causal decoder in eval mode. After every call it is exactly as before.
        compiled: Whether `torch.compile` compiles the layers, and the log-probabilities of tokens from logits. Compiled
            code runs only if no gradient is needed.
        fused_head: Whether a fused kernel computes the log-probabilities of tokens if no gradient is needed.

    Attributes:
        sites: The layers, without their halves; see `sites_for`.
        by_length: Whether rows of different lengths run separately, because the model computes other states for a row
            in a batch with a longer one. See `raysearch.models.verification.rows_interact`.

    Raises:
        UnsupportedModelError: The model does not run, or has not exactly one stack whose layers run once and in order.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool = False, fused_head: bool = False) -> None:
        self.model = model
        self.compiled = compiled
        self.fuses = fused_head
        self.by_length = False
        self.kind: str = model.config.model_type  # for messages
        with self.explained():
            self.layers, self._conventions = find_stack(model)
            self.sites = sites_of(self.layers, model.config.get_text_config())
            self.vocab_size: int = model.config.get_text_config().vocab_size
            # One graph for all shapes, so that a loss does not depend on which shape came first.
            runners = (torch.compile(layer, dynamic=True) for layer in self.layers)
            self._runners: Sequence[Callable[..., Any]] = tuple(runners) if compiled else self.layers
            self._log_prob = torch.compile(log_prob, dynamic=True) if compiled else log_prob
            self._tail_mask = self._find_tail_mask()

    @property
    def last_device(self) -> torch.device:
        """The device of the last layer. In a model over several GPUs it is not the device of the first layer."""
        return next(self.layers[-1].parameters()).device

    @torch.no_grad()
    def capture(self, inputs: Inputs) -> Captured:
        """Run the model's own forward with recording stand-ins in place of all layers; none of the layers runs."""
        lengths = inputs.lengths
        if inputs.images is not None and (len(inputs.images) > 1 or inputs.attention_mask is not None):
            assert lengths is not None, "rows with images are not packed"
            return self._capture_parts(inputs, lengths, [np.array([row]) for row in range(len(lengths))])
        if self.by_length and lengths is not None and len({*lengths.tolist()}) > 1:
            return self._capture_parts(
                inputs, lengths, [np.flatnonzero(lengths == n_tokens) for n_tokens in np.unique(lengths)]
            )
        (images,) = inputs.images or ({},)
        recorded: list[tuple[Tensor, LayerCall]] = []

        def record(layer: int, hidden: Tensor, call: LayerCall) -> Tensor:
            recorded.append((hidden, call))
            return torch.zeros_like(hidden) if images else hidden  # then what the model adds is all that comes next

        positions = None if inputs.position_ids is None else torch.tensor(inputs.position_ids)
        with self._replaced(range(len(self.layers)), record):
            plain_logits(
                self.model,
                torch.tensor(inputs.input_ids, device=self.model.device),
                read=False,
                attention_mask=self._attention_mask(inputs),
                position_ids=positions,
                **image_tensors(images, self.model.dtype),
            )
        (embedded, first_call), *after_layers = recorded
        extras = tuple(first_call.value(extra) for extra in self._conventions[0].extras)
        added = {layer: hidden for layer, (hidden, _) in enumerate(after_layers) if images and hidden.any()}
        return Captured(State(embedded, extras), tuple(call for _, call in recorded), added=added)

    def _capture_parts(
        self, inputs: Inputs, lengths: npt.NDArray[np.int64], rows_of_parts: Iterable[npt.NDArray[np.int64]]
    ) -> Captured:
        """Capture parts of a batch, each with rows of the same length, by themselves."""
        parts = []
        for rows in rows_of_parts:
            n_tokens = int(lengths[rows[0]])
            captured = self.capture(inputs.rows(rows, n_tokens))
            parts.append(Part(torch.from_numpy(rows).to(captured.embedded.hidden.device), n_tokens, captured))
        all_rows = _all_rows(parts, [part.captured.embedded for part in parts], inputs.input_ids.shape)
        return Captured(all_rows, (), tuple(parts))

    def compiling(self) -> AbstractContextManager[None]:
        """Let dynamo compile all kinds of layers within the context. Entering it takes longer than a small layer."""
        if not self.compiled:
            return contextlib.nullcontext()
        # Beyond this number of graphs, dynamo would silently run layers without compiling them.
        return torch._dynamo.config.patch(recompile_limit=_MOST_GRAPHS, fail_on_recompile_limit_hit=True)

    def run(self, run: Run, state: State, captured: Captured, compiled: bool = True) -> State:
        """Run a layer, with gradients if they are enabled, or one of its halves.

        If the layers are compiled, call this within `compiling`. A half is never compiled.

        Args:
            run: The layer, or its half.
            state: What enters it.
            captured: The input of the layers for the same rows.
            compiled: Whether to use the compiled layer, if the layers are compiled.

        Returns:
            What leaves it.

        Raises:
            UnsupportedModelError: The layer has no halves, or needs a value of earlier layers, none of which has run.
        """
        if captured.parts:
            hidden = state.hidden
            outputs = []
            for part, extras in zip(captured.parts, state.extras, strict=True):
                # A layer may be on another device than the state that enters it.
                before = State(hidden[part.rows.to(hidden.device), : part.n_tokens], extras)
                outputs.append(self.run(run, before, part.captured, compiled))
            return _all_rows(captured.parts, outputs, hidden.shape[:2])
        layer = run.layer
        convention = self._conventions[layer]
        if run.part is not None:
            with self.halves[layer].alone(run.part):
                return convention.run(self.layers[layer], state, captured.calls[layer])
        runners = self._runners if compiled and not torch.is_grad_enabled() else self.layers
        try:
            after = convention.run(runners[layer], state, captured.calls[layer])
        except (TypeError, ValueError, AttributeError) as error:
            if not convention.extras or any(extra is not None for extra in state.extras):
                raise
            raise UnsupportedModelError(
                f"{self.kind} cannot run layer {layer} without any layer before it that passes on "
                f"what it needs ({type(error).__name__}: {first_line(error)}); keep one, such as the first by "
                "protect=[0]"
            ) from error
        if layer not in captured.added:
            return after
        return replace(after, hidden=after.hidden + captured.added[layer].to(after.hidden.device))

    @functools.cached_property
    def halves(self) -> tuple[LayerHalves, ...]:
        """The halves of each layer, found on first use.

        Raises:
            UnsupportedModelError: A layer has no halves, see `find_halves`.
        """
        all_halves = []
        for halves in self.find_halves():
            if isinstance(halves, str):
                raise UnsupportedModelError(
                    f"{self.kind} can lose whole layers only, since one of its layers {halves}; use space=layers"
                )
            all_halves.append(halves)
        return tuple(all_halves)

    @torch.no_grad()
    def find_halves(self) -> Iterator[LayerHalves | str]:
        """Yield the halves of each layer, found by running it on a random state; or why it has none."""
        captured, state = self.random_state()
        for block, convention, call in zip(self.layers, self._conventions, captured.calls, strict=True):
            hidden = state.hidden.to(next(block.parameters()).device)
            yield find_halves(block, convention, replace(state, hidden=hidden), call)

    @torch.no_grad()
    def random_state(self) -> tuple[Captured, State]:
        """Return the input of the layers for a row of random tokens, and a random state for any layer of them.

        The random numbers are the same each time.
        """
        draw = np.random.default_rng(0)
        ids = draw.integers(0, self.vocab_size, (1, _N_TOKENS_FOR_HALVES))
        captured = self.capture(Inputs(ids, None, None, np.zeros(0, np.int64)))
        embedded = captured.embedded
        hidden = torch.from_numpy(draw.standard_normal(embedded.hidden.shape))
        return captured, replace(embedded, hidden=hidden.to(embedded.hidden.device, embedded.hidden.dtype))

    @functools.cached_property
    def sites_with_halves(self) -> Sites:
        """The layers, with their halves.

        Raises:
            UnsupportedModelError: A layer has no halves.
        """
        attention_parameters = []
        for layer, halves in zip(self.layers, self.halves, strict=True):
            sizes = {name: weights.numel() for name, weights in layer.named_parameters()}
            attention_parameters.append(sum(sizes[name] for name in halves.names(sizes, "attention")))
        kinds = [site.kind for site in self.sites]
        return Sites.of_layers(self.sites.layer_parameters, kinds, attention_parameters)

    def sites_for(self, masks: Iterable[Mask]) -> Sites:
        """Return the layers, with their halves if one of the masks has halves.

        Raises:
            UnsupportedModelError: A mask has halves, and the layers have none.
        """
        return self.sites_with_halves if any(mask.halves for mask in masks) else self.sites

    def walk(self, captured: Captured, mask: Mask, scales: Iterable[Scale] = ()) -> Tensor:
        """Run the layers and halves that a mask keeps.

        Args:
            captured: The input of the layers.
            mask: The removed layers and halves.
            scales: The factors of the cuts of the mask; none for a mask that is not repaired.

        Returns:
            The hidden state that leaves the last of them, [B, T, d], or [B, T, streams, d].
        """
        state = captured.embedded
        factors = factors_of(scales)
        with self.compiling():
            for run in self.sites.runs(mask):
                before = state.scaled(factors[run.layer]) if run.layer in factors else state
                state = self.run(run, before, captured)
        return state.hidden

    def last_state(self, output: Any) -> State:
        """Return the state in the output of the last layer's own forward."""
        return self._conventions[-1].state_of(output)

    def removed_tensors(self, mask: Mask) -> list[Tensor]:
        """Return the weights and buffers of what a mask removes."""
        tensors = [tensor for layer in mask.layers for _, tensor in _named_tensors(self.layers[layer])]
        for layer, part in mask.halves:
            tensors_of_layer = dict(_named_tensors(self.layers[layer]))
            tensors += [tensors_of_layer[name] for name in self.halves[layer].names(tensors_of_layer, part)]
        return tensors

    def logits(self, hidden: Tensor) -> Tensor:
        """Run the model's own tail on n positions: final norm, head, soft-capping; with gradients if they are enabled.

        The logits take much memory, n times the vocabulary, so pass the scored positions in chunks.

        Args:
            hidden: The hidden state that leaves the last kept layer, [n, d], or [n, streams, d].

        Returns:
            The logits, [n, vocabulary].
        """
        with self._leaving(hidden):
            output = plain_logits(self.model, _no_tokens(hidden), attention_mask=self._tail_mask)
        return output[:, 0]

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """Run the model's own tail without the head, and return the states after the final norm, if any, [n, d]."""
        with self._leaving(hidden):
            arguments = {} if self._tail_mask is None else {"attention_mask": self._tail_mask}
            output = self.model.base_model(input_ids=_no_tokens(hidden), use_cache=False, **arguments)
        return output.last_hidden_state[:, 0]

    @torch.no_grad()
    def _find_tail_mask(self) -> Tensor | None:
        """Return an attention mask for the tail that transformers uses without changes; None if it changes the logits.

        No layer runs in the tail, so no layer uses the mask. Without a mask, transformers reads the positions of the
        tokens, and every call waits for the GPU.
        """
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        mask = torch.zeros(1, 1, 1, 1, dtype=self.model.dtype, device=self.model.device)
        with self._replaced(range(len(self.layers)), lambda layer, hidden, call: hidden):
            plain = plain_logits(self.model, ids)
            try:
                masked = plain_logits(self.model, ids, attention_mask=mask)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                return None
        return mask if torch.equal(masked, plain) else None

    def fused_log_probs(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Return the log-probability of a token after each position, by the fused or the compiled kernel.

        Args:
            hidden: The hidden state that leaves the last kept layer, [n, d], or [n, streams, d].
            tokens: The tokens, int64, [n].

        Returns:
            The log-probabilities in nats, [n]; None if there are no positions, gradients are enabled, or the stack uses
            neither kernel.
        """
        if torch.is_grad_enabled() or not len(hidden):
            return None
        if self.fuses:
            return self._fused_head.log_probs(self.last_hidden(hidden), tokens)
        if self.compiled:
            return by_chunk(
                self, lambda chunk, targets: self._log_prob(self.logits(chunk), targets), hidden, tokens[:, None]
            )
        return None

    @functools.cached_property
    def _fused_head(self) -> FusedHead:
        return find_fused_head(self.model, self, self._conventions[-1].token_shape)

    @contextlib.contextmanager
    def bypassed(self, mask: Mask, scales: Iterable[Scale] = ()) -> Iterator[PreTrainedModel]:
        """Let the model itself, with or without a KV cache, behave as if the mask's layers and halves were deleted.

        Args:
            mask: The removed layers and halves.
            scales: The factors of the cuts of the mask; none for a mask that is not repaired.

        Yields:
            The model.

        Raises:
            UnsupportedModelError: The mask has halves, and the layers have none.
        """
        with contextlib.ExitStack() as stack:
            for layer, factor in factors_of(scales).items():
                scale = functools.partial(_scale_input, factor)
                stack.callback(self.layers[layer].register_forward_pre_hook(scale, with_kwargs=True).remove)
            for layer, part in mask.halves:
                stack.enter_context(self.halves[layer].alone(OTHER_PART[part]))
                if part == "attention":
                    count = functools.partial(self._count_before, layer)
                    stack.callback(self.layers[layer].register_forward_pre_hook(count, with_kwargs=True).remove)
            stack.enter_context(self._replaced(mask.layers, _skip))
            yield self.model

    def _count_before(self, layer: int, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the tokens of a layer that runs without its attention; called with the arguments of the layer."""
        hidden, *other_args = args or [kwargs["hidden_states"]]
        _count_tokens(layer, self._conventions[layer].from_layer(hidden), LayerCall(tuple(other_args), kwargs))

    @contextlib.contextmanager
    def explained(self, compiled: bool = False) -> Iterator[None]:
        """Turn an error of the model's own code, or of its compiled layers, into one sentence.

        Raises:
            UnsupportedModelError: The model's code raised an error, other than of memory or of the device.
        """
        try:
            yield
        except (UserError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if "CUDA error" in str(error):  # of the device; another replica may succeed
                raise
            if compiled:
                remedy = "model.compile=false"
            elif self.model.config.get_text_config()._attn_implementation == "flash_attention_2":
                remedy = "model.attention=auto"
            else:
                remedy = "another architecture"
            raise UnsupportedModelError(
                f"{self.kind} cannot be run layer by layer ({type(error).__name__}: {first_line(error)}); use {remedy}"
            ) from error

    def _attention_mask(self, inputs: Inputs) -> Tensor | None:
        """Return the mask for transformers: integers [P, L], or an addend to the attention scores [P, 1, L, L]."""
        if inputs.attention_mask is None:
            return None
        mask = torch.tensor(inputs.attention_mask, device=self.model.device)
        dtype = self.model.dtype
        if mask.ndim == 2:
            return mask.long()
        addend = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return addend.masked_fill_(~mask, torch.finfo(dtype).min)[:, None]

    def _leaving(self, hidden: Tensor) -> AbstractContextManager[None]:
        """Let the last layer return a hidden state [n, …], as n sequences of one token, within the context."""
        last = len(self.layers) - 1
        return self._replaced(range(last + 1), lambda layer, state, _: hidden[:, None] if layer == last else state)

    def _replaced(
        self, layers: Iterable[int], compute: Callable[[int, Tensor, LayerCall], Tensor]
    ) -> AbstractContextManager[None]:
        """Replace layers within the context by a function of layer, hidden state and call that returns their output."""
        stand_ins = {}
        for layer in layers:
            stand_ins[self.layers[layer]] = self._conventions[layer].stand_in(functools.partial(compute, layer))
        return replaced(stand_ins)


def _scale_input(
    factor: float, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a layer, with the hidden state multiplied by a factor."""
    if args:
        return (args[0] * factor, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": kwargs["hidden_states"] * factor}


def _skip(layer: int, hidden: Tensor, call: LayerCall) -> Tensor:
    """Return the hidden state unchanged, and count its tokens."""
    _count_tokens(layer, hidden, call)
    return hidden


def _count_tokens(layer: int, hidden: Tensor, call: LayerCall) -> None:
    """Count the tokens of a layer without attention in a KV cache, by unused keys of width one."""
    for argument in (*call.args, *call.kwargs.values()):
        if not isinstance(argument, Cache):
            continue
        if layer >= len(argument.layers) or isinstance(argument.layers[layer], CacheLayerMixin):
            unused_keys = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)
            argument.update(unused_keys, unused_keys, layer)


def _named_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights and buffers of a layer by name."""
    yield from layer.named_parameters()
    yield from layer.named_buffers()


def _all_rows(parts: Sequence[Part], states: Sequence[State], shape: Sequence[int]) -> State:
    """Return the state of all rows, [B, T], from those of parts; it is 0 where rows are padded."""
    first = states[0].hidden
    hidden = first.new_zeros(*shape, *first.shape[2:])
    for part, state in zip(parts, states, strict=True):
        hidden[part.rows.to(hidden.device), : part.n_tokens] = state.hidden
    return State(hidden, tuple(state.extras for state in states))


def _no_tokens(hidden: Tensor) -> Tensor:
    """Return n sequences of one token, [n, 1], whose states are replaced by `hidden`, on its device."""
    return torch.zeros(len(hidden), 1, dtype=torch.int64, device=hidden.device)


def image_tensors(images: RowImages, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments of a model's forward for the images of a row.

    Args:
        images: The images.
        dtype: The dtype of the model's weights, which numbers with fractions get.

    Returns:
        The tensors, on the CPU, by the name of the argument.
    """
    tensors = {name: torch.tensor(values) for name, values in images.items()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def predicting(hidden: Tensor, inputs: Inputs) -> Tensor:
    """Return the hidden states that predict the scored tokens.

    Args:
        hidden: The hidden states of all positions, [P, L, d], or [P, L, streams, d].
        inputs: The inputs of the batch.

    Returns:
        The states in the order of the scored tokens, [n, d], or [n, streams, d].
    """
    return hidden.flatten(0, 1)[to_device(inputs.predictors, hidden.device)]
