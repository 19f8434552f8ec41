"""Compares what a stack of layers computes with the model's own forward, before anything is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch, Inputs
from raysearch.calibration.objectives.base import log_probs, to_device
from raysearch.calibration.packing import pack
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError, first_line
from raysearch.models.layers import LayerCall, plain_logits
from raysearch.models.loading import quiet
from raysearch.models.stack import LayerStack, predicting

_PROBE_SHAPE = (2, 8)  # samples x tokens
_PROBE_IDS = 1000  # the low ids, to draw from: the high ones are special (images …)


@torch.no_grad()
def verify(stack: LayerStack) -> None:
    """Compare the walk with the model's own forward on random tokens, dense and without a layer.

    Raises:
        UnsupportedModelError: They differ, as where the layers exchange more than the hidden state.
        UserError: The fused kernel is to be used, but does not compute this model's head.
    """
    batch = _probe(stack.model)
    with stack.explained():
        _compare_walks(stack, batch)
    with stack.compiling():
        if stack.compiled:
            with stack.explained(compiled=True):
                _compare_layers(stack, batch)
        if stack.compiled or stack.fuses:
            _compare_heads(stack, batch)


@torch.no_grad()
def packs(stack: LayerStack, batch: Batch) -> bool:
    """Return whether packed choices have the same states as plain rows in the dense model."""
    config = stack.model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", "eager"):
        return False  # others take no mask of this kind, and FlashAttention's kernel would read beyond it
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if any(window and window < batch.input_ids.shape[1] for window in windows):
        return False  # a packed row attends to all
    try:
        packed = dense_states(stack, pack(batch))
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception:  # the model takes no positions, or no mask of this kind
        return False
    gap = _gap_of_states(stack, packed, dense_states(stack, batch.inputs))
    return gap <= 2 * tolerance(stack.model.dtype)  # SmolLM2 in bfloat16: 0.015


@torch.no_grad()
def rows_interact(stack: LayerStack, rows: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Return whether the dense model computes other states for a row beside a longer one than for the row alone.

    So do models that choose by the longest row of a batch: scaled rotary embeddings beyond a length, or the tokens of a
    sparse attention. Each layer is compared on the same input, so that what it rounds otherwise does not add up.

    Args:
        stack: Its `by_length` is False afterwards.
        rows: The token ids of each row, no two of the same length, the longest one last.
    """
    n_selected = getattr(stack.model.config.get_text_config(), "index_topk", None)
    if n_selected and n_selected < len(rows[-1]):
        return True  # tokens that a sparse attention rates alike: the width of the batch decides which it takes
    stack.by_length = False
    batch = Batch.of([row.tolist() for row in rows], [[False] * len(row) for row in rows])
    together = stack.capture(batch.inputs)
    alone = [stack.capture(batch.samples(row, row + 1).inputs) for row in range(len(rows) - 1)]
    hidden = together.embedded
    with stack.compiling():
        for layer in range(stack.n_layers):
            after = stack.run_layer(layer, hidden.clone(), together)  # a layer may write into its input
            for row, captured in enumerate(alone):
                if _rotary_gap(captured.calls[layer], together.calls[layer], row) > tolerance(hidden.dtype):
                    return True
                before = hidden[row : row + 1, : len(rows[row])]
                own = stack.run_layer(layer, before.clone(), captured)
                added = (own - before.to(own.device)).float().norm(dim=-1)
                other = after[row : row + 1, : len(rows[row])]
                gaps = (other - own).float().norm(dim=-1) / added.clamp_min(torch.finfo(torch.float32).tiny)
                # In 16 bits some tokens may get other experts.
                exact = hidden.dtype in (torch.float32, torch.float64)
                if (gaps.max() > 0.01) if exact else (gaps.median() > 0.1):
                    return True
            hidden = after
    return False


def _rotary_gap(alone: LayerCall, together: LayerCall, row: int) -> float:
    """Return how much the rotary embeddings that a layer is handed for a row, alone and among others, differ."""
    pairs = zip(_rotary(alone), _rotary(together), strict=True)
    gaps = [relative_gap(of_all[row if len(of_all) > 1 else 0][: own.shape[1]], own[0]) for own, of_all in pairs]
    return max(gaps, default=0.0)


def _rotary(call: LayerCall) -> list[Tensor]:
    """Return the cosines and sines that a layer is handed, each [1 or B, T, width]; none where it makes its own."""
    tables = call.kwargs.get("position_embeddings")
    tables = tables if isinstance(tables, (tuple, list)) else ()
    return [table for table in tables if isinstance(table, Tensor) and table.ndim == 3]


def dense_states(stack: LayerStack, inputs: Inputs) -> Tensor:
    """Return the dense model's states that predict the scored tokens, [n, d]."""
    return predicting(stack.walk(stack.capture(inputs), Mask()), inputs)


@torch.no_grad()
def probe_logits(model: PreTrainedModel) -> Tensor:
    """Return the logits of a plain forward on random tokens, the same each time, [B, T, vocabulary]."""
    return plain_logits(model, torch.tensor(_probe(model).input_ids, device=model.device))


@torch.no_grad()
def why_mute(model: PreTrainedModel) -> str | None:
    """Return why a model writes no two tokens with a cache; None if it does."""
    tokens = torch.tensor(_probe(model).input_ids[:1], device=model.device)
    generator: Any = model
    try:
        with quiet():
            generator.generate(tokens, max_new_tokens=2, min_new_tokens=2, do_sample=False, num_beams=1)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model's own code raises
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Return how much two computations of the same logits may differ, relative to the largest |logit|."""
    return 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2


def relative_gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest magnitude in `other`."""
    one, other = one.float(), other.float()
    return float((one - other).abs().max() / other.abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def _probe(model: PreTrainedModel) -> Batch:
    """Return samples of random tokens, the same each time."""
    n_ids = min(model.config.get_text_config().vocab_size, _PROBE_IDS)
    tokens = np.random.default_rng(0).integers(n_ids, size=_PROBE_SHAPE)
    return Batch(tokens, np.arange(tokens.shape[1]) > np.zeros_like(tokens))


def _compare_walks(stack: LayerStack, batch: Batch) -> None:
    """Compare walks of plain layers with the model's own forward, and that with itself on other last tokens."""
    captured = stack.capture(batch.inputs)
    if captured.embedded.ndim != 3 or captured.embedded.shape[:2] != batch.input_ids.shape:
        raise UnsupportedModelError(
            f"{stack.kind} passes a hidden state of shape {list(captured.embedded.shape)} from layer to layer for "
            f"{list(batch.input_ids.shape)} tokens, not [samples, tokens, width]; use another architecture"
        )
    for mask in [Mask(), Mask.of(stack.n_layers // 2)][: stack.n_layers]:
        hidden = captured.embedded
        for layer in mask.kept(stack.n_layers):
            # A layer may write into its input; and what another mask would run in between must leave nothing.
            hidden = stack.run_layer(layer, hidden.clone(), captured, compiled=False)
            stack.run_layer(layer, captured.embedded.flip(0), captured, compiled=False)
        walked = stack.logits(hidden.flatten(0, 1))
        with stack.bypassed(mask):
            own = plain_logits(stack.model, torch.tensor(batch.input_ids, device=hidden.device)).flatten(0, 1)
        if not own.isfinite().all():
            raise UnsupportedModelError(
                f"{stack.kind} gives non-finite logits in {own.dtype}; "
                + ("use model.dtype=bfloat16 or float32" if own.dtype == torch.float16 else "check its weights")
            )
        if not mask:
            _check_order(stack, batch, own)
        gap = relative_gap(walked, own)
        if not gap <= tolerance(own.dtype):
            raise UnsupportedModelError(
                f"{stack.kind} does more between its layers than pass the hidden state on (with {mask} removed "
                f"the logits differ by {gap:.1e} of the largest); use another architecture"
            )


def _check_order(stack: LayerStack, batch: Batch, logits: Tensor) -> None:
    """Refuse a model whose first logits, of [B * T, vocabulary], are others with another last token."""
    tokens = batch.input_ids.copy()
    tokens[:, -1] = (tokens[:, -1] + 1) % (tokens.max() + 1)
    other = plain_logits(stack.model, torch.tensor(tokens, device=stack.model.device))
    gap = relative_gap(other[:, 0].to(logits.device), logits.view(other.shape)[:, 0])
    if not gap <= 5 * tolerance(logits.dtype):  # experts may get other tokens, so that sums are rounded otherwise
        if getattr(stack.model, "is_loaded_in_8bit", False):
            raise UnsupportedModelError(
                f"{stack.kind} in 8 bits of bitsandbytes computes a token otherwise where another one of the batch has "
                f"an outlier (with another last token the first logits differ by {gap:.1e} of the largest), so its "
                "losses would depend on the batch; use it in 4 bits, or before it was quantised"
            )
        raise UnsupportedModelError(
            f"{stack.kind} looks at tokens that come later (with another last one the first logits differ by "
            f"{gap:.1e} of the largest); use a causal language model"
        )


def _compare_layers(stack: LayerStack, batch: Batch) -> None:
    """Compare each compiled layer with the plain one; over many layers differences of last bits would grow."""
    captured = stack.capture(batch.inputs)
    hidden = captured.embedded
    for layer in range(stack.n_layers):
        compiled = stack.run_layer(layer, hidden.clone(), captured)
        hidden = stack.run_layer(layer, hidden.clone(), captured, compiled=False)
        gap = _gap_of_states(stack, compiled.flatten(0, 1), hidden.flatten(0, 1))
        if not gap <= tolerance(hidden.dtype):
            raise UserError(
                f"model.compile=true gives other hidden states than {stack.kind} itself (after layer {layer} they "
                f"differ by {gap:.1e}); use model.compile=false"
            )


def _gap_of_states(stack: LayerStack, one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two states, [n, d], relative to the size of that in `other`."""
    # After the final norm: beside the few channels that are hundreds of times as large as the others in many models, a
    # wrong state would pass for a rounded one in 16 bits.
    one, other = stack.last_hidden(one).float(), stack.last_hidden(other).float()
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).max())


def _compare_heads(stack: LayerStack, batch: Batch) -> None:
    """Compare the log-probabilities of the fused or compiled kernel with those of the model's own tail."""
    option = "model.fused_head" if stack.fuses else "model.compile"
    hidden = dense_states(stack, batch.inputs)
    own, tokens = log_probs(stack.logits(hidden)), to_device(batch.targets, hidden.device)
    try:
        found = stack.fused_log_probs(hidden, tokens)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{option}=true does not work for {stack.kind} here ({type(error).__name__}: {first_line(error)}); "
            f"use {option}=false"
        ) from error
    assert found is not None, "there are positions, and no gradients"
    gap = relative_gap(found, own.gather(1, tokens[:, None])[:, 0].to(found.device))
    if not gap <= tolerance(stack.model.dtype):
        raise UserError(
            f"{option}=true gives other log-probabilities than {stack.kind} itself (they differ by {gap:.1e} of "
            f"the largest); use {option}=false"
        )
