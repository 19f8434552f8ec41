"""Writes answers with any decoder of transformers: many prompts at once, each with the text it would get alone.

Rows are padded on the left, and go through the model's own `generate` with its KV cache. When half of them have ended,
the others are taken up again beside new prompts, so that no step is spent on rows that are done.

Sums in floating point depend on what is computed beside them, and a choice between two almost equal tokens may turn
on the last bit. In float32, where that error is known to be small, a choice that it could change is made by the logits
of this row alone, without padding and cache. So a text depends on its prompt and its seed, whatever the batch. In other
dtypes it depends on the batch, which follows from the list of prompts alone.

(transformers' continuous batching, `generate_batch`, puts its own attention in place of the model's, and makes its
batches as requests come and go, so it can offer neither the bypassed layers nor the same texts.)
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

from raysearch.errors import UnsupportedModelError, UserError, first_line
from raysearch.generation.prompt import Decoding, Prompt, Written

#: Rows at once: a step on a CPU takes little longer for so many than for one; a GPU takes more.
_ROWS = {"cpu": 32, "cuda": 128}
#: How far two computations of a float32 logit may be apart, relative to the row's largest, as in `models.verification`.
_ERROR = 1e-5
#: From where on a cache or padding is wrong, and not rounded otherwise: in float32, and in other dtypes.
_WRONG = (1e-3, 0.5)
#: Tokens for which a cache gets room at once.
_ROOM = 64
#: Rows of a table of positions that it may have beside those of the model, as OPT's has 2.
_UNUSED_POSITIONS = 8
_GREEDY = Decoding()


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[Prompt], decoding: Decoding = _GREEDY, rows: int | None = None
) -> tuple[list[Written], int]:
    """Continue prompts.

    Args:
        model: A causal decoder of transformers, in eval mode.
        tokenizer: Its tokenizer.
        prompts: Those of like length beside each other waste the least.
        decoding: How tokens are chosen.
        rows: How many are continued at once; None for what fits the device.

    Returns:
        What was written after each; and the number of tokens that the model was run on, padding included.

    Raises:
        UserError: A text is longer than the model's table of positions.
        UnsupportedModelError: The model's cache, or its padding, changes what it goes on with.
    """
    at_once = rows or rows_at_once(model)
    ends, positions = _end_tokens(model, tokenizer), _positions(model)
    texts = [_Text(prompt, tokenizer, ends, _random(prompt, decoding)) for prompt in prompts]
    left, n_run = texts, 0
    with torch.no_grad():
        while left:
            n_run += _continue(model, left[:at_once], decoding, positions)
            left = [text for text in left if not text.done]
    return [text.written() for text in texts], n_run


def rows_at_once(model: Any) -> int:
    """Return how many texts are continued at once on the model's device, as long as memory holds them."""
    return _ROWS.get(model.device.type, _ROWS["cpu"])


@dataclass
class _Text:
    """A prompt and what has been written after it so far."""

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
        """Whether the last token is one that ends a text."""
        return bool(self.new) and self.new[-1] in self.ends

    def add(self, token: int) -> None:
        """Add a token, and see whether it is the last."""
        self.new.append(token)
        self.done = self.ended or len(self.new) >= self.prompt.max_new_tokens or self._stops()

    def written(self) -> Written:
        """Return the text without what ends it."""
        text = self._decoded(self.new[:-1] if self.ended else self.new)
        cut = min((place for stop in self.prompt.stop if (place := text.find(stop)) >= 0), default=None)
        return Written(text[:cut], len(self.new), cut is None and not self.ended)

    def _stops(self) -> bool:
        """Whether the text has come to a stop; it was not there a token ago, so the last tokens tell."""
        if not self.prompt.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.prompt.stop)
        tail = self._decoded(self.new[-longest - 4 :])  # a token is a byte or more; others may complete a character
        return any(stop in tail for stop in self.prompt.stop)

    @cached_property
    def _before(self) -> tuple[tuple[int, ...], str]:
        """The last whole character of the prompt: the decoders of some tokenizers drop the first space of a text."""
        ends = (self.prompt.ids[-n:] for n in range(1, 9))
        found = ((end, self._plain(end)) for end in ends)
        return next((one for one in found if "\ufffd" not in one[1]), ((), ""))

    def _decoded(self, new: Sequence[int]) -> str:
        """Return the text of new tokens, as it stands after the prompt."""
        ids, before = self._before
        text = self._plain([*ids, *new])
        return text[len(before) :] if text.startswith(before) else self._plain(new)

    def _plain(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _continue(model: Any, texts: Sequence[_Text], decoding: Decoding, positions: float) -> int:
    """Generate until half of the texts are done, or a row is at the last position; return the tokens that were run."""
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
        ids[row, width - len(text.ids) :], real[row, width - len(text.ids) :] = torch.tensor(text.ids), 1
    most = max(text.prompt.max_new_tokens - len(text.new) for text in texts)
    most = int(min(most, positions - width + 1))  # the model does not read the last token
    config = GenerationConfig(do_sample=False, max_new_tokens=most, pad_token_id=0)
    takes_cache = "past_key_values" in inspect.signature(model.forward).parameters
    own, model.generation_config = model.generation_config, GenerationConfig()  # else it fills in what is not said here
    try:
        with explained(model, "losses that need no answers"):
            found = model.generate(
                ids.to(model.device),
                attention_mask=real.to(model.device),
                past_key_values=_cache(model) if takes_cache else None,
                generation_config=config,
                logits_processor=LogitsProcessorList([_Chooser(model, texts, decoding)]),
                stopping_criteria=StoppingCriteriaList([_HalfDone(texts)]),
            )
    finally:
        model.generation_config = own
    return int(found.numel()) - len(texts)  # all but the last


@contextlib.contextmanager
def explained(model: Any, instead: str) -> Iterator[None]:
    """Turn an error of a model's own generation, as of a cache that expects another layer, into one sentence.

    Args:
        model: A causal decoder of transformers.
        instead: What can be used instead, beside another architecture.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{model.config.model_type} cannot generate text with these layers ({type(error).__name__}: "
            f"{first_line(error)}); use another architecture, or {instead}"
        ) from error


def _cache(model: Any) -> DynamicCache | None:
    """Return a cache for the keys and values of a model; None for a model that has a kind of its own."""
    cache = DynamicCache(config=model.config)
    if not all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers):
        return None
    cache.layers = [_RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class _RoomyLayer(DynamicLayer):
    """A layer's keys and values, with room behind them: transformers' own copies all of them for every new token."""

    _rooms: tuple[Tensor, ...]

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        n_known, added = self.get_seq_length(), (key_states, value_states)
        n = n_known + key_states.shape[-2]
        if not n_known or n > self._rooms[0].shape[-2]:
            rooms = tuple(one.new_empty((*one.shape[:2], n + _ROOM, one.shape[-1])) for one in added)
            for room, known in zip(rooms, (self.keys, self.values), strict=True):
                if known is not None and n_known:
                    room[:, :, :n_known] = known
            self._rooms = rooms
        for room, new in zip(self._rooms, added, strict=True):
            room[:, :, n_known:n] = new
        self.keys, self.values = (room[:, :, :n] for room in self._rooms)
        return self.keys, self.values


@dataclass
class _Chooser(LogitsProcessor):
    """Chooses the next token of each row, and tells `generate` by leaving nothing else to choose."""

    model: Any
    texts: Sequence[_Text]
    decoding: Decoding
    n_steps: int = 0

    @override
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logits = scores.float()
        self.n_steps += 1
        if self.n_steps == 2:  # the first from the cache
            self._check(logits)
        largest = logits.abs().amax(-1) if self._is_exact else logits.new_zeros(len(logits))
        margins = 2 * _ERROR * largest.double()
        # Nobody reads what comes after a text that is done.
        draws = [0.0 if text.done or text.random is None else float(text.random.random()) for text in self.texts]
        chosen = _chosen(logits, draws, self.decoding, margins)
        tokens = torch.zeros(len(self.texts), dtype=torch.int64)
        for row, (text, token, sure) in enumerate(zip(self.texts, *chosen.tolist(), strict=True)):
            if text.done:
                continue
            if not sure and self._is_exact:
                own = slice(row, row + 1)
                token = int(_chosen(self._alone(text)[None], draws[own], self.decoding, margins[own])[0])
            text.add(token)
            tokens[row] = token
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, tokens[:, None].to(scores.device), 0.0)

    @property
    def _is_exact(self) -> bool:
        return bool(self.model.dtype == torch.float32)

    def _check(self, logits: Tensor) -> None:
        """Compare those of the row with the most padding with its own."""
        row = min(range(len(self.texts)), key=lambda row: len(self.texts[row].ids))
        alone = self._alone(self.texts[row])
        gap = float((logits[row] - alone).abs().max() / alone.abs().max())
        if gap > _WRONG[not self._is_exact]:
            raise UnsupportedModelError(
                f"{self.model.config.model_type} goes on with other logits from its cache, beside padding, than "
                f"without them (they differ by {gap:.1e} of the largest), so its answers would be wrong; use another "
                "architecture, or losses that need no answers"
            )

    def _alone(self, text: _Text) -> Tensor:
        """Return the logits after a text, computed from it alone."""
        ids = torch.tensor([text.ids], device=self.model.device)
        can_leave_out = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        last_alone = {"logits_to_keep": 1} if can_leave_out else {}  # else those of all tokens, which may be gigabytes
        logits: Tensor = self.model(input_ids=ids, use_cache=False, **last_alone).logits
        return logits[0, -1].float()


@dataclass
class _HalfDone(StoppingCriteria):
    """Ends `generate` when half of the rows are done, so that others can take their place."""

    texts: Sequence[_Text]

    @override
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        enough = 2 * sum(text.done for text in self.texts) >= len(self.texts)
        return torch.full((len(self.texts),), enough, dtype=torch.bool, device=input_ids.device)


def _chosen(logits: Tensor, draws: Sequence[float], decoding: Decoding, margins: Tensor) -> Tensor:
    """Return the token of each row, and whether no error could change it, [2, rows], int64.

    It is the first, by number, up to which the probabilities add up to more than the row's draw, 0 … 1. How far two
    computations of a row's logits may be apart is its margin, float64.
    """
    if not decoding.temperature:
        best = logits.topk(2).values.double()
        return torch.stack([logits.argmax(-1), best[:, 0] - best[:, 1] > margins])
    draw = torch.tensor(draws, dtype=torch.float64, device=logits.device)[:, None]
    margins = margins[:, None] / decoding.temperature
    scaled = logits.double() / decoding.temperature
    kept, unsure = _likely(logits, scaled, decoding, margins)
    weights = scaled.softmax(-1)
    up_to = (weights * kept).cumsum(-1) / (weights * kept).sum(-1, keepdim=True)
    last = kept.shape[-1] - 1 - kept.flip(-1).int().argmax(-1, keepdim=True)
    token = (up_to <= draw).sum(-1, keepdim=True).minimum(last)
    # An error moves sums of probabilities by margin / 4 at most; tokens that may be drawn from or not, by their share.
    share = (weights * unsure).sum(-1, keepdim=True) / (weights * (kept | unsure)).sum(-1, keepdim=True)
    before, after = pad(up_to, (1, 0)).gather(-1, torch.cat([token, token + 1], -1)).split(1, -1)
    near, ends = margins / 2 + share, share == 0
    sure = ((draw - before > near) | (ends & (before == 0))) & ((after - draw > near) | (ends & (token == last)))
    return torch.cat([token, sure & ~unsure.gather(-1, token)], -1).T


def _likely(logits: Tensor, scaled: Tensor, decoding: Decoding, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens of each row are drawn from, and for which an error could change that.

    Of tokens as likely as the last of them, the first by number are taken.
    """
    size = logits.shape[-1]
    n = decoding.top_k if 0 < decoding.top_k < size else size
    if n == size and decoding.top_p == 1:
        return torch.ones_like(logits, dtype=torch.bool), torch.zeros_like(logits, dtype=torch.bool)
    if n < size:
        likeliest = logits.topk(n + 1).values
    elif logits.device.type == "cpu":  # where NumPy sorts in a fourth of the time
        likeliest = torch.from_numpy(np.sort(logits.numpy())).flip(-1)
    else:
        likeliest = logits.sort(descending=True).values
    by_rank = likeliest.double() / decoding.temperature
    fewest = end = most = torch.full_like(margins, n, dtype=torch.int64)
    if decoding.top_p < 1:
        below = by_rank[:, :n].softmax(-1).cumsum(-1)
        bounds = (decoding.top_p + error for error in (-margins / 2, 0, margins / 2))
        fewest, end, most = (((below < bound).sum(-1, keepdim=True) + 1).clamp(max=n) for bound in bounds)
    next_one = pad(by_rank, (0, 1), value=-torch.inf).gather(-1, fewest)
    unsure = (scaled - next_one <= margins) & (scaled - by_rank.gather(-1, most - 1) >= -margins)
    least = likeliest.gather(-1, end - 1)
    more, same = logits > least, logits == least
    return more | (same & (same.cumsum(-1) <= end - more.sum(-1, keepdim=True))), unsure


def _random(prompt: Prompt, decoding: Decoding) -> np.random.Generator | None:
    """Return the random numbers of a prompt; None where the likeliest token is taken."""
    if not decoding.temperature:
        return None
    digest = hashlib.sha256(np.array([decoding.seed, *prompt.ids], dtype="<i8").tobytes()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def _positions(model: Any) -> float:
    """Return how many positions the model has learned; infinity where it computes them.

    A GPU ends the process's use of it where a table is read beyond its end.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    words = model.get_input_embeddings()
    tables = [one for one in model.modules() if isinstance(one, torch.nn.Embedding) and one is not words]
    return most if any(0 <= one.num_embeddings - most <= _UNUSED_POSITIONS for one in tables) else math.inf


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: the model's, or else the tokenizer's."""
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    found = frozenset([] if ends is None else ends if isinstance(ends, list) else [ends])
    if not all(isinstance(one, int) for one in found):
        raise UserError(f"the model's generation_config.json has eos_token_id={ends}; give the number of a token there")
    return found
