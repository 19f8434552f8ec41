"""Compares the results of a stack of layers with the model's own forward, before anything is evaluated."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from raysearch.calibration.batch import Batch, Inputs
from raysearch.calibration.objectives.base import log_probs, to_device
from raysearch.calibration.packing import pack
from raysearch.checkpoints.quiet import quiet
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.site import Run
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.layers import LayerCall, plain_logits
from raysearch.models.stack import LayerStack, image_tensors, predicting
from raysearch.text.sentences import first_line

_NEW_TOKENS = 24  # of a continuation
#: The largest change of what a half adds to a state of twice the size, relative to it; the eps of norms causes some.
_LARGEST_CHANGE = 0.1
_PROBE_SHAPE = (2, 8)  # samples x tokens
_MOST_HANDED_TOKENS = 8193  # a mask of as many tokens takes 64 MiB
_PROBE_IDS = 1000  # tokens are drawn from the low ids, since high ids may be special (images …)


@torch.no_grad()
def verify(stack: LayerStack) -> None:
    """Compare the walk with the model's own forward on random tokens: dense, and without one layer.

    Raises:
        UnsupportedModelError: They differ, for example because the layers exchange more than the hidden state.
        UserError: The compiled layers or the fused kernel give other results than the model.
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
def verify_images(stack: LayerStack, batch: Batch) -> None:
    """Compare the walk with the model's own forward on a row with images: dense, and without one layer.

    Args:
        stack: The layers of the model.
        batch: One row, with images, of which some tokens are scored.

    Raises:
        UnsupportedModelError: The states that predict scored tokens differ, or the model does not run with the images.
    """
    with stack.explained():
        captured = stack.capture(batch.inputs)
        needed = captured.layers_with_features
        free = [site for site in range(len(stack.sites) // 2, len(stack.sites)) if site not in needed]
        for mask in [Mask(), *(Mask.of(site) for site in free[:1])]:
            walked = predicting(stack.walk(captured, mask), batch.inputs)
            gap = _gap_of_states(stack, walked, predicting(_own_states(stack, batch, mask), batch.inputs))
            if not gap <= 2 * tolerance(walked.dtype):
                raise UnsupportedModelError(
                    f"{stack.kind} does more with images between its layers than pass the hidden state on (with {mask} "
                    f"removed the states differ by {gap:.1e}); use data of text"
                )


@torch.no_grad()
def verify_scales(stack: LayerStack) -> None:
    """Check that each half of a layer adds the same to a state of twice the size, as halves that begin with norms do.

    Then the weights of later halves can hold the factors at the cuts of a mask (`raysearch.core.scale`).

    Args:
        stack: The layers of the model.

    Raises:
        UnsupportedModelError: A half adds something else, or a layer has no halves.
    """
    for layer, halves in enumerate(stack.find_halves()):
        if isinstance(halves, str):
            raise UnsupportedModelError(
                f"{stack.kind} cannot be repaired by scales, since its layer {layer} {halves}; use repair=none"
            )
    captured, state = stack.random_state()
    for half in (Half(layer, part) for layer in range(len(stack.layers)) for part in PARTS):
        after = stack.run(Run(*half), state.clone(), captured)
        after_doubled = stack.run(Run(*half), state.scaled(2.0), captured)
        before = state.hidden.to(after.hidden.device).float()
        added = after.hidden.float() - before
        change = after_doubled.hidden.float() - before - after.hidden.float()
        rounding = 4 * torch.finfo(state.hidden.dtype).eps * before.norm()
        if not change.norm() <= _LARGEST_CHANGE * added.norm() + rounding:
            raise UnsupportedModelError(
                f"{stack.kind} cannot be repaired by scales, since {half} adds something else to a state of twice the "
                "size, so that no weights can hold the factors; use repair=none"
            )


def _own_states(stack: LayerStack, batch: Batch, mask: Mask) -> Tensor:
    """Return the hidden state that leaves the last layer in the model's own forward on a row with images, [1, T, …]."""
    outputs: list[Any] = []
    hook = stack.layers[-1].register_forward_hook(lambda layer, args, output: outputs.append(output))
    try:
        with stack.bypassed(mask) as model:
            plain_logits(model, torch.tensor(batch.input_ids, device=model.device), read=False, **_images(model, batch))
    finally:
        hook.remove()
    (output,) = outputs
    return stack.last_state(output).hidden


def _images(model: PreTrainedModel, batch: Batch) -> dict[str, Tensor]:
    """Return the arguments of a model's forward for the images of a batch of one row; none without images."""
    (images,) = batch.images or ({},)
    return image_tensors(images, model.dtype)


@torch.no_grad()
def packs(stack: LayerStack, batch: Batch) -> bool:
    """Return whether packed choices have the same states as plain rows in the dense model.

    Args:
        stack: The layers of the model.
        batch: Samples with choices.

    Returns:
        Whether the states agree within the tolerance of the model's dtype.
    """
    config = stack.model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", "eager"):
        return False  # others accept no mask of this kind, and FlashAttention's kernel would read beyond it
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if any(window and window < batch.input_ids.shape[1] for window in windows):
        return False  # a packed row would attend to tokens outside the window
    try:
        packed = dense_states(stack, pack(batch))
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception:  # the model accepts no positions, or no mask of this kind
        return False
    gap = _gap_of_states(stack, packed, dense_states(stack, batch.inputs))
    return gap <= 2 * tolerance(stack.model.dtype)  # SmolLM2 in bfloat16: 0.015


@torch.no_grad()
def rows_interact(stack: LayerStack, rows: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Return whether the states of a row depend on whether the batch has a longer row.

    They do in models that choose by the longest row of a batch: scaled rotary embeddings beyond a length, or the tokens
    of a sparse attention. Each layer is compared on the same input, so that rounding errors do not add up.

    Args:
        stack: The layers of the dense model. Its `by_length` is False afterwards.
        rows: The token ids of each row. No two rows have the same length, and the longest is the last.

    Returns:
        Whether a shorter row has other states next to the longest one.
    """
    n_selected = getattr(stack.model.config.get_text_config(), "index_topk", None)
    if n_selected and n_selected < len(rows[-1]):
        return True  # a sparse attention may rate tokens equally; the width of the batch then decides which it takes
    stack.by_length = False
    batch = Batch.of([row.tolist() for row in rows], [[False] * len(row) for row in rows])
    captured_batch = stack.capture(batch.inputs)
    captured_rows = [stack.capture(batch.samples(row, row + 1).inputs) for row in range(len(rows) - 1)]
    state = captured_batch.embedded
    states_alone = [captured.embedded for captured in captured_rows]
    dtype = state.hidden.dtype
    with stack.compiling():
        for site in range(len(stack.sites)):
            after = stack.run(Run(site), state.clone(), captured_batch)  # a layer may write into its input
            for row, captured_row in enumerate(captured_rows):
                if _rotary_gap(captured_row.calls[site], captured_batch.calls[site], row) > tolerance(dtype):
                    return True
                before = state.hidden[row : row + 1, : len(rows[row])]
                alone = replace(states_alone[row], hidden=before).clone()
                states_alone[row] = stack.run(Run(site), alone, captured_row)
                after_alone = states_alone[row].hidden
                after_together = after.hidden[row : row + 1, : len(rows[row])]
                if _is_other_update(before.to(after_alone.device), after_alone, after_together):
                    return True
            state = after
    return False


def _is_other_update(before: Tensor, after_alone: Tensor, after_together: Tensor) -> bool:
    """Return whether a layer adds something else to a row alone than to the row in a batch; states are [1, T, …]."""
    added = (after_alone - before).flatten(2).float().norm(dim=-1)
    differences = (after_together - after_alone).flatten(2).float().norm(dim=-1)
    gaps = differences / added.clamp_min(torch.finfo(torch.float32).tiny)
    if before.dtype in (torch.float32, torch.float64):
        return bool(gaps.max() > 0.01)
    return bool(gaps.median() > 0.1)  # in 16 bits, some tokens may get other experts


def _rotary_gap(row_call: LayerCall, batch_call: LayerCall, row: int) -> float:
    """Return the relative difference of a layer's rotary embeddings for a row, alone and in a batch."""
    gaps = [0.0]
    for row_table, batch_table in zip(_rotary(row_call), _rotary(batch_call), strict=True):
        batch_row = batch_table[row if len(batch_table) > 1 else 0]
        gaps.append(relative_gap(batch_row[: row_table.shape[1]], row_table[0]))
    return max(gaps)


def _rotary(call: LayerCall) -> list[Tensor]:
    """Return the cosines and sines among a layer's arguments, each [1 or B, T, width]; empty if it has none."""
    tables = call.kwargs.get("position_embeddings")
    if isinstance(tables, dict):  # for the kinds of attention within a layer
        tables = list(itertools.chain(*tables.values()))
    tables = tables if isinstance(tables, (tuple, list)) else ()
    return [table for table in tables if isinstance(table, Tensor) and table.ndim == 3]


def dense_states(stack: LayerStack, inputs: Inputs) -> Tensor:
    """Return the dense model's hidden states that predict the scored tokens, [n, d] or [n, streams, d].

    Args:
        stack: The layers of the dense model.
        inputs: The rows.

    Returns:
        The states.
    """
    return predicting(stack.walk(stack.capture(inputs), Mask()), inputs)


@torch.no_grad()
def probe_logits(model: PreTrainedModel) -> Tensor:
    """Return the logits of a plain forward on random tokens, the same each time, [B, T, vocabulary]."""
    return plain_logits(model, torch.tensor(_probe(model).input_ids, device=model.device))


@torch.no_grad()
def image_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits of a plain forward that predict the scored tokens of a row with images, [1, n, vocabulary].

    Args:
        model: The model.
        batch: One row, with images.

    Returns:
        The logits.
    """
    ids = torch.tensor(batch.input_ids, device=model.device)
    return plain_logits(model, ids, batch.inputs.predictors.tolist(), **_images(model, batch))


@torch.no_grad()
def handed_to_layers(stack: LayerStack, batch: Batch | None = None) -> list[str]:
    """Return a checksum of what each layer is handed besides the hidden state: its mask, its positions.

    No layer runs. The tokens are one more than the narrowest window of attention, so that the mask of a layer with a
    window differs from that of a layer without one.

    Args:
        stack: The layers of a model.
        batch: One row to run instead of these tokens. With images, what the model adds to the output of a layer counts
            as handed to the layer.

    Returns:
        The checksum of each layer.
    """
    captured = stack.capture((batch or _long_probe(stack)).inputs)
    checksum_of_tensor: dict[int, str] = {}  # layers share masks, which may be large
    return [
        _checksum([*call.args, *sorted(call.kwargs.items()), captured.added.get(layer)], checksum_of_tensor)
        for layer, call in enumerate(captured.calls)
    ]


def _long_probe(stack: LayerStack) -> Batch:
    """Return a sample of random tokens that is longer than the narrowest window of attention."""
    config = stack.model.config.get_text_config()
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    narrowest = min((window for window in windows if isinstance(window, int) and window > 0), default=0)
    positions = getattr(config, "max_position_embeddings", None) or _MOST_HANDED_TOKENS
    n_tokens = max(_PROBE_SHAPE[1], min(narrowest + 1, positions, _MOST_HANDED_TOKENS))
    tokens = np.random.default_rng(0).integers(min(config.vocab_size, _PROBE_IDS), size=(1, n_tokens))
    return Batch(tokens, np.arange(n_tokens)[None] > 0)


def _checksum(value: Any, checksum_of_tensor: dict[int, str]) -> str:
    """Return a checksum of a layer's arguments: of tensors their values, of others whether they are None."""
    if isinstance(value, Tensor):
        if id(value) not in checksum_of_tensor:
            content = value.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes()
            checksum_of_tensor[id(value)] = hashlib.sha256(f"{list(value.shape)}".encode() + content).hexdigest()
        return checksum_of_tensor[id(value)]
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_checksum(item, checksum_of_tensor) for item in value)})"
    if isinstance(value, (str, bool)) or value is None:
        return repr(value)
    return type(value).__name__


@torch.no_grad()
def why_mute(model: PreTrainedModel) -> str | None:
    """Return why a model cannot generate two tokens with a cache; None if it can."""
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


def continuation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, prompt: str | None) -> str | None:
    """Return a model's greedy continuation of a prompt.

    Args:
        model: The model.
        tokenizer: The model's tokenizer; None if it has none.
        prompt: The text; None for no continuation.

    Returns:
        The continuation in one line, with the space before its first word; None without a tokenizer or a prompt.

    Raises:
        UserError: The prompt has no token, or too many.
        UnsupportedModelError: transformers does not generate with the model.
    """
    if tokenizer is None or prompt is None:
        return None
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    n_tokens = inputs["input_ids"].shape[1]
    n_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if n_tokens == 0:
        raise UserError(f"--prompt={prompt} holds no token to continue from; give a text, or leave it out")
    if n_positions is not None and n_tokens > n_positions:
        raise UserError(
            f"--prompt holds {n_tokens:,} tokens, and the model has {n_positions:,} positions; give a shorter one"
        )
    # The last new token needs no position, since it is not fed into the model.
    new_tokens = _NEW_TOKENS if n_positions is None else min(_NEW_TOKENS, n_positions - n_tokens + 1)
    generator: Any = model
    try:
        with torch.inference_mode(), quiet():
            tokens = generator.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    except (ValueError, RuntimeError) as error:  # for example, a hybrid without a layer of attention
        raise UnsupportedModelError(
            f"--prompt={prompt} cannot be continued: transformers does not generate with this "
            f"{model.config.model_type} ({first_line(error)}); leave it out, or choose another mask"
        ) from error
    prompt_text = str(tokenizer.decode(tokens[0, :n_tokens], skip_special_tokens=True))
    full_text = str(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return re.sub(r"\s+", " ", full_text.removeprefix(prompt_text)).rstrip()


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest allowed difference of two computations of the same logits, relative to the largest |logit|."""
    return 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2


def relative_gap(values: Tensor, reference: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest magnitude in the reference.

    Args:
        values: A tensor.
        reference: A tensor of the same shape.

    Returns:
        The ratio, without unit.
    """
    reference = reference.float()
    largest = reference.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((values.float() - reference).abs().max() / largest)


def _probe(model: PreTrainedModel) -> Batch:
    """Return samples of random tokens, the same each time."""
    n_ids = min(model.config.get_text_config().vocab_size, _PROBE_IDS)
    tokens = np.random.default_rng(0).integers(n_ids, size=_PROBE_SHAPE)
    return Batch(tokens, np.arange(tokens.shape[1]) > np.zeros_like(tokens))


def _compare_walks(stack: LayerStack, batch: Batch) -> None:
    """Compare walks of plain layers with the model's own forward, and check that no layer uses later tokens."""
    captured = stack.capture(batch.inputs)
    embedded = captured.embedded.hidden
    if embedded.ndim < 3 or embedded.shape[:2] != batch.input_ids.shape:
        raise UnsupportedModelError(
            f"{stack.kind} passes a hidden state of shape {list(embedded.shape)} from layer to layer for "
            f"{list(batch.input_ids.shape)} tokens, without an axis of samples and then one of tokens; use another "
            "architecture"
        )
    n_sites = len(stack.sites)
    for mask in [Mask(), Mask.of(n_sites // 2)][:n_sites]:
        state = captured.embedded
        for run in stack.sites.runs(mask):
            before = state
            # A layer may write into its input. A run of another mask in between must not change anything.
            state = stack.run(run, before.clone(), captured, compiled=False)
            stack.run(run, replace(before, hidden=embedded.flip(0)).clone(), captured, compiled=False)
        walked = stack.logits(state.hidden.flatten(0, 1))
        with stack.bypassed(mask):
            plain = plain_logits(stack.model, torch.tensor(batch.input_ids, device=walked.device)).flatten(0, 1)
        if not plain.isfinite().all():
            is_half = plain.dtype == torch.float16
            remedy = "use model.dtype=bfloat16 or float32" if is_half else "check its weights"
            raise UnsupportedModelError(f"{stack.kind} gives non-finite logits in {plain.dtype}; {remedy}")
        if not mask:
            _check_order(stack, batch, plain)
        gap = relative_gap(walked, plain)
        if not gap <= tolerance(plain.dtype):
            raise UnsupportedModelError(
                f"{stack.kind} does more between its layers than pass the hidden state on (with {mask} removed "
                f"the logits differ by {gap:.1e} of the largest); use another architecture"
            )


def _check_order(stack: LayerStack, batch: Batch, logits: Tensor) -> None:
    """Refuse a model whose first logits, of [B * T, vocabulary], change with the last token."""
    tokens = batch.input_ids.copy()
    tokens[:, -1] = (tokens[:, -1] + 1) % (tokens.max() + 1)
    changed_logits = plain_logits(stack.model, torch.tensor(tokens, device=stack.model.device))
    gap = relative_gap(changed_logits[:, 0].to(logits.device), logits.view(changed_logits.shape)[:, 0])
    if not gap <= 5 * tolerance(logits.dtype):  # experts may get other tokens, which changes how sums are rounded
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
    """Compare each compiled layer with the plain one. Over several layers, differences of last bits would grow."""
    captured = stack.capture(batch.inputs)
    state = captured.embedded
    for index, site in enumerate(stack.sites):
        compiled = stack.run(Run(index), state.clone(), captured)
        state = stack.run(Run(index), state.clone(), captured, compiled=False)
        gap = _gap_of_states(stack, compiled.hidden.flatten(0, 1), state.hidden.flatten(0, 1))
        if not gap <= tolerance(state.hidden.dtype):
            raise UserError(
                f"model.compile=true gives other hidden states than {stack.kind} itself (after layer {site.label} they "
                f"differ by {gap:.1e}); use model.compile=false"
            )


def _gap_of_states(stack: LayerStack, states: Tensor, references: Tensor) -> float:
    """Return the largest difference of two states at a position, both [n, …], relative to the size of the reference."""
    # States are compared after the final norm. Before it, many models have a few channels that are hundreds of times as
    # large as the others, so that in 16 bits a wrong state would look like a rounded one.
    last_states = stack.last_hidden(states).float()
    last_references = stack.last_hidden(references).float()
    return float(((last_states - last_references).norm(dim=-1) / last_references.norm(dim=-1)).max())


def _compare_heads(stack: LayerStack, batch: Batch) -> None:
    """Compare the log-probabilities of the fused or compiled kernel with those of the model's own tail."""
    option = "model.fused_head" if stack.fuses else "model.compile"
    hidden = dense_states(stack, batch.inputs)
    plain = log_probs(stack.logits(hidden))
    tokens = to_device(batch.targets, hidden.device)
    try:
        fused = stack.fused_log_probs(hidden, tokens)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{option}=true does not work for {stack.kind} here ({type(error).__name__}: {first_line(error)}); "
            f"use {option}=false"
        ) from error
    assert fused is not None, "there are positions, and no gradients"
    gap = relative_gap(fused, plain.gather(1, tokens[:, None])[:, 0].to(fused.device))
    if not gap <= tolerance(stack.model.dtype):
        raise UserError(
            f"{option}=true gives other log-probabilities than {stack.kind} itself (they differ by {gap:.1e} of "
            f"the largest); use {option}=false"
        )
