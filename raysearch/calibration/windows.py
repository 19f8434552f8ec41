"""From documents to windows: samples of equal length, cut from one stream of tokens or from a document each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from raysearch.errors import UserError, did_you_mean

Sampling = Literal["random", "sequential", "documents"]
Tokenizer = Callable[..., Any]  #: as in transformers: called with a text, it returns ``{"input_ids": [...], ...}``

_SEPARATOR = "\n\n"  # between documents, as in the usual perplexity of WikiText-2
_CHARS_PER_TOKEN = 6  # a little more than English needs, so that the first guess mostly suffices
_END_TOKENS = 1024  # how far from its end a cut text might be tokenised otherwise than within the whole
_POOL = 16  # random: how many times the tokens needed to draw from …
_POOL_TOKENS = 2**20  # … and the most to draw from beyond those, so that large requests stay cheap
_BUFFER_CHARS = 2**24  # random: the text put in order; a larger corpus is drawn from its beginning only
_MOST_DOCUMENTS = 2**17  # documents: the most that are tried, so that a stream without long ones comes to an end


@dataclass(frozen=True)
class WindowOptions:
    """How samples are cut from a text.

    Args:
        samples: How many windows, at least 1.
        seq_len: Tokens of a window, at least 2: the first is context only.
        sampling: ``random`` windows of the text; its first ones (``sequential``); or the beginnings of random
            ``documents`` that are long enough.
        seed: Seeds the random draw; ``sequential`` ignores it.
        shard_samples: Samples of a shard; None for at most 8192 tokens a shard and at least 8 shards, if possible.

    Raises:
        UserError: An option is out of range.
    """

    samples: int = 16
    seq_len: int = 256
    sampling: Sampling = "random"
    seed: int = 0
    shard_samples: int | None = None

    def __post_init__(self) -> None:
        check_draw(self.samples, self.seq_len, self.seed, self.shard_samples)
        if self.sampling not in get_args(Sampling):
            raise UserError(
                f"data.sampling={self.sampling} is unknown; {did_you_mean(self.sampling, get_args(Sampling))}"
            )


def check_draw(samples: int, seq_len: int, seed: int, shard_samples: int | None) -> None:
    """Refuses what no draw can be: the options that windows and items share.

    Raises:
        UserError: An option is out of range.
    """
    if samples < 1:
        raise UserError(f"data.samples={samples} draws nothing; use 1 or more")
    if seq_len < 2:
        raise UserError(f"data.seq_len={seq_len} leaves no token to predict; use 2 or more")
    if seed < 0:
        raise UserError(f"data.seed={seed} is negative; use 0 or more")
    if shard_samples is not None and shard_samples < 1:
        raise UserError(f"data.shard_samples={shard_samples} makes empty shards; use 1 or more, or null")


def draw_windows(documents: Iterator[str], tokenizer: Tokenizer, options: WindowOptions) -> npt.NDArray[np.int64]:
    """Draws samples of one length from a text.

    ``sequential`` and ``random`` join the documents by blank lines and tokenise them as one stream, with the special
    tokens that the tokenizer adds by itself; the stream is cut into whole windows from its start. ``sequential`` takes
    the first of them: the tokens are those of the whole text, of which no more is read than is needed. ``random`` puts
    the documents in a seeded order first, reads well more than is needed, and draws among the windows without
    replacement. ``documents`` takes them in a seeded order too, and of each that is long enough its first window.

    Args:
        documents: The text.
        tokenizer: A transformers tokenizer, or anything called like one.
        options: How many windows, of which length, taken how.

    Returns:
        Token ids, int64, [samples, seq_len].

    Raises:
        UserError: The text holds too few windows.
    """
    samples, seq_len = options.samples, options.seq_len
    needed = samples * seq_len
    if options.sampling == "sequential":
        ids = _tokenise(documents, tokenizer, needed + _END_TOKENS)
        return _cut(ids, samples, seq_len)[:samples].copy()
    rng = np.random.default_rng(options.seed)
    enough = min(_POOL * needed, needed + _POOL_TOKENS)
    if options.sampling == "documents":
        return _begin_documents(documents, tokenizer, samples, seq_len, rng, enough)
    windows = _cut(_tokenise(_shuffled(documents, rng, enough), tokenizer, enough), samples, seq_len)
    return windows[rng.choice(len(windows), size=samples, replace=False)]


def _shuffled(documents: Iterator[str], rng: np.random.Generator, tokens: int) -> Iterator[str]:
    """The documents in a random order: all of them, or as many from the beginning as the buffer holds."""
    room = max(_BUFFER_CHARS, 2 * tokens * _CHARS_PER_TOKEN)
    buffer: list[str] = []
    for document in documents:
        buffer.append(document)
        room -= len(document)
        if room <= 0:
            break
    return (buffer[index] for index in rng.permutation(len(buffer)))


def _begin_documents(
    documents: Iterator[str], tokenizer: Tokenizer, samples: int, seq_len: int, rng: np.random.Generator, tokens: int
) -> npt.NDArray[np.int64]:
    """The first window of each document that is long enough, [samples, seq_len], read buffer after buffer."""
    windows: list[list[int]] = []
    lengths: list[int] = []
    documents = islice(documents, _MOST_DOCUMENTS)
    read = -1
    while read < len(lengths):
        read = len(lengths)
        for document in _shuffled(documents, rng, tokens):
            # One by one, so that only as much of a large buffer is tokenised as it takes.
            ids = tokenizer(document, verbose=False)["input_ids"]
            lengths.append(len(ids))
            if len(ids) >= seq_len:
                windows.append(ids[:seq_len])
            if len(windows) == samples:
                return np.asarray(windows, dtype=np.int64)
    shorter = sorted(lengths)[-samples] if len(lengths) >= samples else 0
    remedies = [f"data.samples={len(windows)}"] if windows else []
    remedies += [f"data.seq_len={shorter}"] if shorter > 1 else []
    raise UserError(
        f"data.samples={samples} documents of at least data.seq_len={seq_len} tokens were asked, but {len(windows)} of "
        f"{len(lengths)} are that long; use {' or '.join([*remedies, 'more text'])}"
    )


def _tokenise(documents: Iterator[str], tokenizer: Tokenizer, enough: int) -> npt.NDArray[np.int64]:
    """The tokens of the first documents that hold `enough` of them, or of all, as one stream, int64, [T]."""
    read: list[str] = []
    chars = 0
    goal = enough * _CHARS_PER_TOKEN
    while True:
        for document in documents:
            read.append(document)
            chars += len(document) + len(_SEPARATOR)
            if chars >= goal:
                break
        # `verbose=False`: a stream longer than the model's window is meant, and no reason to warn.
        ids = np.asarray(tokenizer(_SEPARATOR.join(read), verbose=False)["input_ids"], dtype=np.int64)
        if len(ids) >= enough or chars < goal:
            return ids
        goal = 2 * chars


def _cut(ids: npt.NDArray[np.int64], samples: int, seq_len: int) -> npt.NDArray[np.int64]:
    """All whole windows, [W, seq_len], at least `samples`."""
    if not len(ids):
        raise UserError("data holds no text: its documents have no token; choose another source")
    count = len(ids) // seq_len
    if count < samples:
        shorter = len(ids) // samples
        remedies = [f"data.samples={count}"] if count else []
        remedies += [f"data.seq_len={shorter}"] if shorter > 1 else []
        raise UserError(
            f"data.samples={samples} windows of data.seq_len={seq_len} tokens were asked, but the text holds {count} "
            f"({len(ids)} tokens); use {' or '.join([*remedies, 'more text'])}"
        )
    return ids[: count * seq_len].reshape(count, seq_len)
