"""The stack of layers of any Hugging Face decoder, found and driven without a table of architectures.

A decoder's forward embeds the tokens, prepares what its layers need beside the hidden state (masks, rotary embeddings,
positions), runs the layers, and finishes with a tail (final norm, head, soft-capping). None of what it prepares depends
on the hidden state, so one forward with recording stand-ins in place of the layers captures it all, and from then on
any subset of the real layers can run on any hidden state:

    captured = stack.capture(batch.inputs)               the model's own embedding, masks, positions
    hidden = stack.walk(captured, mask)                  the layers that the mask keeps
    logits = stack.logits(hidden.flatten(0, 1))          the model's own tail

A stand-in is a function put in place of one layer's `forward`, so whatever the model's loop reads from the layer
(`attention_type` …) is still the layer's own. `LayerStack.verify` proves the walk against the model's own forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from raysearch.calibration.batch import Batch, Inputs
from raysearch.calibration.packing import pack
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.layers import LayerCall, find_stack, plain_logits

_VERIFY_SHAPE = (2, 8)  # samples x tokens
_VERIFY_TOKENS = 1000  # drawn from the low ids: special ones (images …) sit at the top


@dataclass(frozen=True)
class Captured:
    """What the model prepared for one batch.

    Args:
        embedded: The hidden state that enters layer 0, [B, T, d].
        calls: What each layer is called with, N of them.
    """

    embedded: Tensor
    calls: tuple[LayerCall, ...]


class LayerStack:
    """Drives the layers of one model. Not thread-safe: while a method runs, the model's layers are stood in for.

    Args:
        model: A causal decoder in eval mode. It is left exactly as it was after every call.

    Raises:
        UnsupportedModelError: The model does not run one stack of layers, each once and in order.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._layers, self._conventions = find_stack(model)

    @property
    def n_layers(self) -> int:
        """N."""
        return len(self._layers)

    @property
    def vocab_size(self) -> int:
        """Logits of a position."""
        size: int = self.model.config.get_text_config().vocab_size
        return size

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers in order."""
        return self._layers

    @torch.no_grad()
    def capture(self, inputs: Inputs) -> Captured:
        """Runs the model's own forward with recording stand-ins in place of all layers.

        Args:
            inputs: The rows; they are moved to the model's device.

        Returns:
            The embedded samples and what the model passes to each layer. No layer has run.
        """
        embedded: list[Tensor] = []
        calls: list[LayerCall] = []

        def recorder(layer: int) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                hidden, call = self._conventions[layer].split(args, kwargs)
                embedded.append(hidden)
                calls.append(call)
                return self._conventions[layer].wrap(hidden)

            return forward

        positions = None if inputs.position_ids is None else torch.tensor(inputs.position_ids)
        with self._standing_in({layer: recorder(layer) for layer in range(self.n_layers)}):
            plain_logits(
                self.model,
                torch.tensor(inputs.input_ids),
                read=False,
                attention_mask=self._attention_mask(inputs),
                position_ids=positions,
            )
        return Captured(embedded[0], tuple(calls))

    def run_layer(self, layer: int, hidden: Tensor, captured: Captured) -> Tensor:
        """Runs the real layer, with gradients if they are enabled.

        Args:
            layer: Its index.
            hidden: The hidden state that enters it, [B, T, d].
            captured: What the model prepared for the batch.

        Returns:
            The hidden state that leaves it, [B, T, d].
        """
        call, keyword = captured.calls[layer], self._conventions[layer].keyword
        if keyword is None:
            output = self._layers[layer](hidden, *call.args, **call.kwargs)
        else:
            output = self._layers[layer](*call.args, **{keyword: hidden}, **call.kwargs)
        return output[0] if isinstance(output, (tuple, list)) else output

    def walk(self, captured: Captured, mask: Mask) -> Tensor:
        """Runs the layers that a mask keeps, one after another.

        Args:
            captured: What the model prepared for the batch.
            mask: The layers to leave out.

        Returns:
            The hidden state that leaves the last kept layer, [B, T, d].
        """
        hidden = captured.embedded
        for layer in mask.kept(self.n_layers):
            hidden = self.run_layer(layer, hidden, captured)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Finishes positions by the model's own tail: final norm, head, soft-capping; with gradients if enabled.

        The tail is position-wise, so the positions are handed to it as n sequences of one token. Memory is n times the
        vocabulary: pass the scored positions in chunks.

        Args:
            hidden: The hidden state that leaves the last kept layer, [n, d].

        Returns:
            The logits, [n, vocabulary].
        """
        with self._leaving(hidden):
            output = plain_logits(self.model, torch.zeros(len(hidden), 1, dtype=torch.int64))
        return output[:, 0]

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """Finishes positions by the model's own tail up to the head: what transformers calls ``last_hidden_state``.

        Args:
            hidden: The hidden state that leaves the last kept layer, [n, d].

        Returns:
            The hidden state after the final norm, if there is one, [n, d].
        """
        with self._leaving(hidden):
            ids = torch.zeros(len(hidden), 1, dtype=torch.int64, device=self.model.device)
            output = self.model.base_model(input_ids=ids, use_cache=False)
        return output.last_hidden_state[:, 0]

    def packs(self, batch: Batch) -> bool:
        """Proves on a batch whether the dense model gives packed choices the states that it gives plain rows.

        Args:
            batch: Items with choices, best the longest ones: a layer may look no further than some tokens back.
        """
        try:
            packed = self._states(pack(batch))
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever a model raises that takes no positions, or no mask of this kind
            return False
        return relative_gap(packed, self._states(batch.inputs)) <= tolerance(packed.dtype)

    @torch.no_grad()
    def _states(self, inputs: Inputs) -> Tensor:
        """What leaves the last layer of the dense model where a scored token is predicted, [n, d]."""
        return predicting(self.walk(self.capture(inputs), Mask()), inputs)

    @contextlib.contextmanager
    def bypassed(self, mask: Mask) -> Iterator[PreTrainedModel]:
        """Within the context the model itself behaves as if the mask's layers were deleted.

        It also generates with a KV cache: a skipped layer enters keys of width one, which nothing reads, so that the
        model still learns from any layer of the cache how many tokens went by. (In a hybrid with state-space layers,
        generate with ``use_cache=False`` when the last state-space layer is removed: the cache asks that one.)

        Args:
            mask: The layers to skip.

        Yields:
            The model.

        Raises:
            UserError: The mask names a layer that the model does not have.
        """
        beyond = [layer for layer in mask if layer >= self.n_layers]
        if beyond:
            raise UserError(
                f"mask={mask} names layer {beyond[0]}, but the model has {self.n_layers} layers; "
                f"use 0..{self.n_layers - 1}"
            )
        with self._standing_in({layer: self._pass_through(layer) for layer in mask}):
            yield self.model

    @torch.no_grad()
    def verify(self) -> None:
        """Proves on random tokens that the walk gives what the model's own forward gives, dense and without a layer.

        Raises:
            UnsupportedModelError: It does not, or the layers exchange more than the hidden state.
        """
        kind = self.model.config.model_type
        try:
            self._compare(kind)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"{kind} cannot be run layer by layer ({type(error).__name__}: {error}); use another architecture"
            ) from error

    def _compare(self, kind: str) -> None:
        """The comparison that `verify` makes."""
        vocabulary = min(self.model.config.get_text_config().vocab_size, _VERIFY_TOKENS)
        tokens = np.random.default_rng(0).integers(vocabulary, size=_VERIFY_SHAPE)
        captured = self.capture(Batch(tokens, np.ones_like(tokens, dtype=np.bool_)).inputs)
        if captured.embedded.ndim != 3:
            raise UnsupportedModelError(
                f"{kind} passes a hidden state of shape {list(captured.embedded.shape)} from layer to layer, "
                "not [samples, tokens, width]; use another architecture"
            )
        shared = _container_sizes(captured)
        for mask in [Mask(), Mask.of(self.n_layers // 2)][: self.n_layers]:
            hidden = self.walk(captured, mask)
            if _container_sizes(captured) != shared:
                raise UnsupportedModelError(
                    f"the layers of {kind} hand each other more than the hidden state; use another architecture"
                )
            walked = self.logits(hidden.flatten(0, 1))
            with self.bypassed(mask):
                own = plain_logits(self.model, torch.tensor(tokens)).flatten(0, 1)
            if not own.isfinite().all():
                raise UnsupportedModelError(
                    f"{kind} gives non-finite logits in {own.dtype}; "
                    + ("use model.dtype=bfloat16 or float32" if own.dtype == torch.float16 else "check its weights")
                )
            gap = relative_gap(walked, own)
            if not gap <= tolerance(own.dtype):
                raise UnsupportedModelError(
                    f"{kind} does more between its layers than pass the hidden state on (with {mask} removed "
                    f"the logits differ by {gap:.1e} of the largest); use another architecture"
                )

    def _attention_mask(self, inputs: Inputs) -> Tensor | None:
        """As transformers takes it: integers [P, L], or what is added to attention scores, [P, 1, L, L]."""
        if inputs.attention_mask is None:
            return None
        mask = torch.tensor(inputs.attention_mask)
        if mask.ndim == 2:
            return mask.long()
        dtype = self.model.dtype
        return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)[:, None]

    @contextlib.contextmanager
    def _leaving(self, hidden: Tensor) -> Iterator[None]:
        """Within the context the last layer gives this hidden state [n, d], as n sequences of one token."""
        last = self.n_layers - 1
        stand_ins = {layer: self._pass_through(layer) for layer in range(last)}
        stand_ins[last] = lambda *args, **kwargs: self._conventions[last].wrap(hidden[:, None])
        with self._standing_in(stand_ins):
            yield

    def _pass_through(self, layer: int) -> Callable[..., Any]:
        """A stand-in that returns its input, and tells a KV cache that the tokens went by."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden, _ = self._conventions[layer].split(args, kwargs)
            for cache in (value for value in (*args, *kwargs.values()) if isinstance(value, Cache)):
                if layer >= len(cache.layers) or isinstance(cache.layers[layer], CacheLayerMixin):
                    nothing = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)
                    cache.update(nothing, nothing, layer)
            return self._conventions[layer].wrap(hidden)

        return forward

    @contextlib.contextmanager
    def _standing_in(self, stand_ins: Mapping[int, Callable[..., Any]]) -> Iterator[None]:
        """Puts functions in place of layers' forwards, and the layers back."""
        # A layer may have a forward of its own already (accelerate's hooks, or an enclosing `bypassed`).
        before = {layer: vars(self._layers[layer]).get("forward") for layer in stand_ins}
        try:
            for layer, stand_in in stand_ins.items():
                vars(self._layers[layer])["forward"] = stand_in
            yield
        finally:
            for layer, own in before.items():
                vars(self._layers[layer]).pop("forward", None)
                if own is not None:
                    vars(self._layers[layer])["forward"] = own


def predicting(hidden: Tensor, inputs: Inputs) -> Tensor:
    """The states [P, L, d] that predict the scored tokens, [n, d]."""
    return hidden.flatten(0, 1)[torch.from_numpy(inputs.predictors).to(hidden.device)]


def tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same logits may lie apart, relative to the largest |logit|."""
    return 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2


def relative_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest magnitude in `other`."""
    one, other = one.float(), other.float()
    return float((one - other).abs().max() / other.abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def _container_sizes(captured: Captured) -> list[int]:
    """The sizes of the containers that the layers are handed: one that grows carries a message between layers."""
    values = (value for call in captured.calls for value in (*call.args, *call.kwargs.values()))
    return [len(value) for value in values if isinstance(value, (dict, list))]
