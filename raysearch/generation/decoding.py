"""Generates texts with any decoder of transformers, for many prompts at once.

Each prompt gets the text that it would get alone. Rows are padded on the left, and go through the model's `generate`
with its KV cache. When half of the rows have ended, the others continue in a batch with new prompts, so that few steps
are spent on rows that are done.

A sum in floating point depends on the batch, and the choice between two almost equal tokens may depend on the last bit.
In float32 this error is known to be small. A choice that it could change is made with the logits of the row alone,
without padding and cache. So a text depends on its prompt and its seed, not on the batch. In other dtypes it depends on
the batch, which depends on the list of prompts alone.

(The continuous batching of transformers, `generate_batch`, replaces the model's attention by its own and forms batches
by the arrival of requests. So it supports no bypassed layers, and does not reproduce texts.)
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from typing_extensions import override

from raysearch.errors import UnsupportedModelError, UserError
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.text.sentences import first_line

#: Rows of a batch, by the kind of device. A step on a CPU takes little longer for 32 rows than for one.
_ROWS = {"cpu": 32, "cuda": 128}
#: The largest difference of two computations of a float32 logit, relative to the row's largest logit, as in
#: `raysearch.models.verification`.
_ERROR = 1e-5
#: A larger difference from the logits without cache and padding, relative to the largest logit, is not rounding.
_WRONG_FLOAT32 = 1e-3
_WRONG_OTHER_DTYPES = 0.5
#: The number of tokens by which a cache grows.
_ROOM = 64
#: The most unused rows of a model's table of positions: OPT's table has 2.
_UNUSED_POSITIONS = 8
_GREEDY = Decoding()


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[Prompt], decoding: Decoding = _GREEDY, rows: int | None = None
) -> tuple[list[Written], int]:
    """Continue prompts.

    Args:
        model: A causal decoder of transformers, in eval mode.
        tokenizer: The model's tokenizer.
        prompts: The prompts; an order by length needs the least padding.
        decoding: The options by which tokens are chosen.
        rows: The number of prompts that are continued at once; None for as many as fit the device.

    Returns:
        The continuation of each prompt, and the number of tokens that the model computed, padding included.

    Raises:
        UserError: A text is longer than the model's table of positions.
        UnsupportedModelError: The model computes other logits with its cache or with padding.
    """
    at_once = rows or rows_at_once(model)
    ends = _end_tokens(model, tokenizer)
    positions = _positions(model)
    texts = [_Text(prompt, tokenizer, ends, _random(prompt, decoding)) for prompt in prompts]
    unfinished = texts
    n_computed = 0
    with torch.no_grad():
        while unfinished:
            n_computed += _continue(model, unfinished[:at_once], decoding, positions)
            unfinished = [text for text in unfinished if not text.done]
    return [text.written() for text in texts], n_computed


def rows_at_once(model: Any) -> int:
    """Return the number of texts to continue at once on the model's device, if memory suffices."""
    return _ROWS.get(model.device.type, _ROWS["cpu"])


@dataclass
class _Text:
    """A prompt and the tokens that have been generated after it."""

    prompt: Prompt
    tokenizer: Any
    ends: frozenset[int]
    random: np.random.Generator | None
    new: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt.ids, *self.new]

    @property
    def ended(self) -> bool:
        """Whether the last token is an end token."""
        return bool(self.new) and self.new[-1] in self.ends

    def add(self, token: int) -> None:
        """Add a token, and mark the text as done if the token is the last."""
        self.new.append(token)
        self.done = self.ended or len(self.new) >= self.prompt.max_new_tokens or self._stops()

    def written(self) -> Written:
        """Return the text without the end token or the stop text that ended it."""
        text = self._decoded(self.new[:-1] if self.ended else self.new)
        cut = min((place for stop in self.prompt.stop if (place := text.find(stop)) >= 0), default=None)
        return Written(text[:cut], len(self.new), cut is None and not self.ended)

    def _stops(self) -> bool:
        """Return whether a stop text was just completed; checking the last tokens is enough."""
        if not self.prompt.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.prompt.stop)
        # A stop text of n bytes has at most n tokens. Up to 4 more tokens may be parts of the same characters.
        tail = self._decoded(self.new[-longest - 4 :])
        return any(stop in tail for stop in self.prompt.stop)

    @cached_property
    def _last_character(self) -> tuple[tuple[int, ...], str]:
        """The tokens and the text of the last whole character of the prompt; empty if there is none."""
        for n in range(1, 9):
            ids = self.prompt.ids[-n:]
            text = self._plain(ids)
            if "\ufffd" not in text:
                return ids, text
        return (), ""

    def _decoded(self, new: Sequence[int]) -> str:
        """Return the text of new tokens after the prompt.

        They are decoded together with the last character of the prompt, because the decoders of some tokenizers drop
        the first space of a text.
        """
        ids, before = self._last_character
        text = self._plain([*ids, *new])
        return text[len(before) :] if text.startswith(before) else self._plain(new)

    def _plain(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _continue(model: Any, texts: Sequence[_Text], decoding: Decoding, positions: float) -> int:
    """Generate until half of the texts are done or a row is at the last position; return the computed tokens."""
    width = max(len(text.ids) for text in texts)
    if width > positions:
        prompt = max(texts, key=lambda text: len(text.ids)).prompt
        raise UserError(
            f"max_new_tokens={prompt.max_new_tokens} after a prompt of {len(prompt.ids)} tokens leads beyond the "
            f"{positions} positions of the model; use fewer"
        )
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    real = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        start = width - len(text.ids)
        ids[row, start:] = torch.tensor(text.ids)
        real[row, start:] = 1
    most = max(text.prompt.max_new_tokens - len(text.new) for text in texts)
    most = int(min(most, positions - width + 1))  # the model does not read the last token
    config = GenerationConfig(do_sample=False, max_new_tokens=most, pad_token_id=0)
    takes_cache = "past_key_values" in inspect.signature(model.forward).parameters
    model_config = model.generation_config
    model.generation_config = GenerationConfig()  # `generate` would take settings from it that `config` does not set
    try:
        with explained(model, "losses that need no answers"):
            output = model.generate(
                ids.to(model.device),
                attention_mask=real.to(model.device),
                past_key_values=_cache(model) if takes_cache else None,
                generation_config=config,
                logits_processor=LogitsProcessorList([_Chooser(model, texts, decoding)]),
                stopping_criteria=StoppingCriteriaList([_HalfDone(texts)]),
            )
    finally:
        model.generation_config = model_config
    return int(output.numel()) - len(texts)  # the model does not read the last token of a row


@contextlib.contextmanager
def explained(model: Any, instead: str) -> Iterator[None]:
    """Turn an error in the model's own generation, such as a cache that expects another layer, into one sentence.

    Args:
        model: A causal decoder of transformers.
        instead: The remedy in the message, in addition to another architecture.

    Raises:
        UnsupportedModelError: The model's code raised an error.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{model.config.model_type} cannot generate text with these layers ({type(error).__name__}: "
            f"{first_line(error)}); use another architecture, or {instead}"
        ) from error


def _cache(model: Any) -> DynamicCache | None:
    """Return a cache for the keys and values of a model; None for a model with a special kind of cache."""
    cache = DynamicCache(config=model.config)
    if not all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers):
        return None
    cache.layers = [_RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class _RoomyLayer(DynamicLayer):
    """A cache of a layer's keys and values with room for more tokens.

    The cache of transformers copies all keys and values for every new token.
    """

    _buffers: tuple[Tensor, ...]  # keys and values, and room behind them

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        n_cached = self.get_seq_length()
        n = n_cached + key_states.shape[-2]
        new_states = (key_states, value_states)
        if not n_cached or n > self._buffers[0].shape[-2]:
            buffers = tuple(state.new_empty((*state.shape[:2], n + _ROOM, state.shape[-1])) for state in new_states)
            for buffer, cached in zip(buffers, (self.keys, self.values), strict=True):
                if cached is not None and n_cached:
                    buffer[:, :, :n_cached] = cached
            self._buffers = buffers
        for buffer, new in zip(self._buffers, new_states, strict=True):
            buffer[:, :, n_cached:n] = new
        self.keys, self.values = (buffer[:, :, :n] for buffer in self._buffers)
        return self.keys, self.values


@dataclass
class _Chooser(LogitsProcessor):
    """Chooses the next token of each row, and makes `generate` take it: all other tokens get a logit of -inf."""

    model: Any
    texts: Sequence[_Text]
    decoding: Decoding
    n_steps: int = 0

    @override
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logits = scores.float()
        self.n_steps += 1
        if self.n_steps == 2:  # the first step that uses the cache
            self._check(logits)
        largest = logits.abs().amax(-1) if self._is_exact else logits.new_zeros(len(logits))
        margins = 2 * _ERROR * largest.double()
        # A text that is done ignores its further tokens.
        draws = [0.0 if text.done or text.random is None else float(text.random.random()) for text in self.texts]
        chosen = _chosen(logits, draws, self.decoding, margins)
        tokens = torch.zeros(len(self.texts), dtype=torch.int64)
        for row, (text, token, sure) in enumerate(zip(self.texts, *chosen.tolist(), strict=True)):
            if text.done:
                continue
            if not sure and self._is_exact:
                row_logits = self._logits_of_row(text)[None]
                token = int(_chosen(row_logits, [draws[row]], self.decoding, margins[row : row + 1])[0])
            text.add(token)
            tokens[row] = token
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter_(1, tokens[:, None].to(scores.device), 0.0)

    @property
    def _is_exact(self) -> bool:
        return bool(self.model.dtype == torch.float32)

    def _check(self, logits: Tensor) -> None:
        """Compare the logits of the row with the most padding with those of the row alone."""
        row = min(range(len(self.texts)), key=lambda row: len(self.texts[row].ids))
        row_logits = self._logits_of_row(self.texts[row])
        gap = float((logits[row] - row_logits).abs().max() / row_logits.abs().max())
        if gap > (_WRONG_FLOAT32 if self._is_exact else _WRONG_OTHER_DTYPES):
            raise UnsupportedModelError(
                f"{self.model.config.model_type} computes other logits with its cache and padding than without them "
                f"(they differ by {gap:.1e} of the largest), so its answers would be wrong; use another architecture, "
                "or losses that need no answers"
            )

    def _logits_of_row(self, text: _Text) -> Tensor:
        """Return the logits after a text, computed without cache, padding and other rows."""
        ids = torch.tensor([text.ids], device=self.model.device)
        # The logits of all tokens may take gigabytes.
        can_skip_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        options = {"logits_to_keep": 1} if can_skip_logits else {}
        logits: Tensor = self.model(input_ids=ids, use_cache=False, **options).logits
        return logits[0, -1].float()


@dataclass
class _HalfDone(StoppingCriteria):
    """Ends `generate` when half of the rows are done, so that others can take their place."""

    texts: Sequence[_Text]

    @override
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        is_half_done = 2 * sum(text.done for text in self.texts) >= len(self.texts)
        return torch.full((len(self.texts),), is_half_done, dtype=torch.bool, device=input_ids.device)


def _chosen(logits: Tensor, draws: Sequence[float], decoding: Decoding, margins: Tensor) -> Tensor:
    """Return the token of each row, and whether no rounding error could change it, [2, rows], int64.

    The token is the first, by number, up to which the probabilities add up to more than the row's draw.

    Args:
        logits: The logits of each row, float32, [rows, vocab].
        draws: A random number of each row, 0 … 1.
        decoding: The options by which tokens are chosen.
        margins: The largest difference of two computations of a row's logits, float64, [rows].
    """
    if not decoding.temperature:
        best = logits.topk(2).values.double()
        return torch.stack([logits.argmax(-1), best[:, 0] - best[:, 1] > margins])
    draw = torch.tensor(draws, dtype=torch.float64, device=logits.device)[:, None]
    margins = margins[:, None] / decoding.temperature
    scaled = logits.double() / decoding.temperature
    candidates, unsure = _candidates(logits, scaled, decoding, margins)
    weights = scaled.softmax(-1)
    up_to = (weights * candidates).cumsum(-1) / (weights * candidates).sum(-1, keepdim=True)
    last = candidates.shape[-1] - 1 - candidates.flip(-1).int().argmax(-1, keepdim=True)
    token = (up_to <= draw).sum(-1, keepdim=True).minimum(last)
    # Rounding changes a sum of probabilities by margin / 4 at most; tokens that may or may not be candidates change it
    # by their share of the probability.
    unsure_share = (weights * unsure).sum(-1, keepdim=True) / (weights * (candidates | unsure)).sum(-1, keepdim=True)
    before, after = pad(up_to, (1, 0)).gather(-1, torch.cat([token, token + 1], -1)).split(1, -1)
    largest_error = margins / 2 + unsure_share
    ends_are_sure = unsure_share == 0
    above_lower_end = (draw - before > largest_error) | (ends_are_sure & (before == 0))
    below_upper_end = (after - draw > largest_error) | (ends_are_sure & (token == last))
    sure = above_lower_end & below_upper_end
    return torch.cat([token, sure & ~unsure.gather(-1, token)], -1).T


def _candidates(logits: Tensor, scaled: Tensor, decoding: Decoding, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens of each row may be drawn, and for which tokens an error could change that.

    If several tokens are as likely as the last candidate, those with the lowest numbers are candidates.
    """
    size = logits.shape[-1]
    n = decoding.top_k if 0 < decoding.top_k < size else size
    if n == size and decoding.top_p == 1:
        return torch.ones_like(logits, dtype=torch.bool), torch.zeros_like(logits, dtype=torch.bool)
    if n < size:
        likeliest = logits.topk(n + 1).values
    elif logits.device.type == "cpu":  # NumPy sorts four times as fast as torch on a CPU
        likeliest = torch.from_numpy(np.sort(logits.numpy())).flip(-1)
    else:
        likeliest = logits.sort(descending=True).values
    by_rank = likeliest.double() / decoding.temperature
    fewest = end = most = torch.full_like(margins, n, dtype=torch.int64)
    if decoding.top_p < 1:
        below = by_rank[:, :n].softmax(-1).cumsum(-1)
        bounds = (decoding.top_p + error for error in (-margins / 2, 0, margins / 2))
        fewest, end, most = (((below < bound).sum(-1, keepdim=True) + 1).clamp(max=n) for bound in bounds)
    next_rank = pad(by_rank, (0, 1), value=-torch.inf).gather(-1, fewest)
    unsure = (scaled - next_rank <= margins) & (scaled - by_rank.gather(-1, most - 1) >= -margins)
    least = likeliest.gather(-1, end - 1)
    is_above = logits > least
    is_equal = logits == least
    n_equal = end - is_above.sum(-1, keepdim=True)
    return is_above | (is_equal & (is_equal.cumsum(-1) <= n_equal)), unsure


def _random(prompt: Prompt, decoding: Decoding) -> np.random.Generator | None:
    """Return the random generator of a prompt; None if the likeliest token is taken."""
    if not decoding.temperature:
        return None
    digest = hashlib.sha256(np.array([decoding.seed, *prompt.ids], dtype="<i8").tobytes()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def _positions(model: Any) -> float:
    """Return the size of the model's table of learned positions; infinity if it computes positions.

    If a kernel reads beyond the end of a table, the process can no longer use the GPU.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    word_table = model.get_input_embeddings()
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    n_unused = [table.num_embeddings - most for table in tables if table is not word_table]
    return most if any(0 <= n <= _UNUSED_POSITIONS for n in n_unused) else math.inf


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: those of the model, or else that of the tokenizer."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    if ends is None:
        return frozenset()
    tokens = frozenset(ends if isinstance(ends, list) else [ends])
    if not all(isinstance(token, int) for token in tokens):
        raise UserError(f"the model's generation_config.json has eos_token_id={ends}; give the number of a token there")
    return tokens
