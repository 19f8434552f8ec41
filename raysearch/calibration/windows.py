"""From documents to windows: samples of equal length, cut from one stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from raysearch.errors import UserError, did_you_mean

Sampling = Literal["random", "sequential"]
Tokenizer = Callable[..., Any]  #: as in transformers: called with a text, it returns ``{"input_ids": [...], ...}``

_SEPARATOR = "\n\n"  # between documents, as in the usual perplexity of WikiText-2
_CHARS_PER_TOKEN = 6  # a little more than English needs, so that the first guess mostly suffices
_END_TOKENS = 1024  # how far from its end a cut text might be tokenised otherwise than within the whole
_POOL = 16  # random: how many times the tokens needed to draw from …
_POOL_TOKENS = 2**20  # … and the most to draw from beyond those, so that large requests stay cheap
_BUFFER_CHARS = 2**24  # random: the text put in order; a larger corpus is drawn from its beginning only


def draw_windows(
    documents: Iterator[str], tokenizer: Tokenizer, samples: int, seq_len: int, sampling: Sampling, seed: int
) -> npt.NDArray[np.int64]:
    """Draws samples of one length from a text.

    The documents are joined by blank lines and tokenised as one stream, with the special tokens that the tokenizer adds
    by itself; the stream is cut into whole windows from its start. ``sequential`` takes the first of them: the tokens
    are those of the whole text, of which no more is read than is needed. ``random`` puts the documents in a seeded
    order first, reads well more than is needed, and draws among the windows without replacement.

    Args:
        documents: The text.
        tokenizer: A transformers tokenizer, or anything called like one.
        samples: How many windows.
        seq_len: Tokens of a window.
        sampling: ``random`` or ``sequential``.
        seed: Seeds the random draw; ``sequential`` ignores it.

    Returns:
        Token ids, int64, [samples, seq_len].

    Raises:
        UserError: The text holds too few windows, or `sampling` is unknown.
    """
    check_sampling(sampling)
    needed = samples * seq_len
    if sampling == "sequential":
        ids = _tokenise(documents, tokenizer, needed + _END_TOKENS)
        return _cut(ids, samples, seq_len)[:samples].copy()
    rng = np.random.default_rng(seed)
    enough = min(_POOL * needed, needed + _POOL_TOKENS)
    windows = _cut(_tokenise(_shuffled(documents, rng, enough), tokenizer, enough), samples, seq_len)
    return windows[rng.choice(len(windows), size=samples, replace=False)]


def check_sampling(sampling: str) -> None:
    """Refuses a way of sampling that does not exist.

    Raises:
        UserError: It is neither ``random`` nor ``sequential``.
    """
    if sampling not in get_args(Sampling):
        raise UserError(f"data.sampling={sampling} is unknown; {did_you_mean(sampling, get_args(Sampling))}")


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
