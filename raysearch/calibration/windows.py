"""Cuts documents into samples: windows of a stream of tokens, beginnings of documents, or whole documents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from raysearch.core.options import Options
from raysearch.errors import UserError

Sampling = Literal["random", "sequential", "documents", "truncated", "whole"]
Tokenizer = Callable[..., Any]  #: as in transformers: called with a text, it returns ``{"input_ids": [...], ...}``

_SEPARATOR = "\n\n"  # between documents, as in the usual perplexity of WikiText-2
_CHARS_PER_TOKEN = 6  # more than English text has, so that the first estimate is mostly enough
_END_TOKENS = 1024  # near its end, a cut text may be tokenised differently from the whole text
_POOL = 16  # random, truncated: draw from so many times the needed tokens or documents …
_POOL_TOKENS = 2**20  # … but from at most so many more tokens, to keep large draws cheap
_BUFFER_CHARS = 2**24  # random, documents, truncated: the text to shuffle, which is the beginning of a larger corpus
_PIECE_CHARS = 2**23  # a longer text is tokenised in pieces
_SHORTEST = 8  # messages do not suggest windows that are shorter by more than this factor
_MOST_DOCUMENTS = 2**17  # documents: the most that are tried, since no document of a stream may be long enough


@dataclass(frozen=True)
class DrawOptions(Options):
    """The options that windows and items share.

    Args:
        samples: The number of samples, at least 1, or ``all``.
        seq_len: The most tokens of a sample, at least 2.
        sampling: How samples are drawn.
        seed: The seed of the random draw.
        shard_samples: The samples of a shard; None for 512 to 8192 tokens a shard and at least 16 shards, if possible.
        at_most: The most samples if `samples` is ``all``; None for no limit.
    """

    section = "data"

    samples: PositiveInt | Literal["all"]
    seq_len: Annotated[int, Field(ge=2)]
    sampling: str
    seed: NonNegativeInt = 0
    shard_samples: PositiveInt | None = None
    at_most: PositiveInt | None = None

    @property
    def most(self) -> float:
        """The most samples to draw; infinite if there is no limit."""
        if self.samples == "all":
            return math.inf if self.at_most is None else self.at_most
        return self.samples


@dataclass(frozen=True)
class WindowOptions(DrawOptions):
    """The options that cut samples from text.

    Args:
        samples: The number of windows or documents, at least 1; ``all`` needs a sampling in order.
        seq_len: Tokens of a window, at least 2; the first token is context only.
        sampling: ``random``: random windows of the text. ``sequential``: the first windows of the text. ``documents``:
            the beginnings of random documents of at least `seq_len` tokens. ``truncated``: random documents of any
            length, cut to `seq_len` tokens. ``whole``: the first documents, cut to `seq_len` tokens.
        bos: The windows of a stream that begin with the tokens that the tokenizer puts before a text, such as
            ``<bos>``: ``each`` window, or the ``first`` alone, as is usual for WikiText-2. Documents always do.

    Raises:
        UserError: A value is beyond its limits, or ``samples=all`` is combined with a random sampling.
    """

    samples: PositiveInt | Literal["all"] = 16
    seq_len: Annotated[int, Field(ge=2)] = 256
    sampling: Sampling = "random"
    bos: Literal["each", "first"] = "each"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples == "all" and self.at_most is None and self.sampling not in ("sequential", "whole"):
            raise UserError(
                f"data.samples=all takes a text in order, not by data.sampling={self.sampling}; give a number of "
                "samples, or data.sampling=sequential, or data.sampling=whole"
            )


def draw_rows(documents: Iterator[str], tokenizer: Tokenizer, options: WindowOptions) -> list[list[int]]:
    """Draw samples from documents.

    ``sequential`` and ``random`` join the documents by blank lines, tokenise them as one stream, and cut the stream
    into whole windows from its start. ``sequential`` reads no more text than it needs. ``random`` shuffles the
    documents first, reads more text than it needs, and draws windows without replacement.

    The other samplings make one row of each document. A document of fewer than two tokens is skipped, because it
    predicts no token. Documents of any length are ordered by length and then by content, so that adjacent rows need
    little padding.

    Args:
        documents: The texts, read lazily.
        tokenizer: A transformers tokenizer.
        options: The options of the draw.

    Returns:
        The token ids of each sample.

    Raises:
        UserError: The text holds too few samples.
    """
    if options.sampling in ("sequential", "random"):
        return _windows(documents, tokenizer, options).tolist()
    rows = _beginnings(documents, tokenizer, options)
    return rows if options.sampling == "documents" else sorted(rows, key=lambda ids: (len(ids), ids))


def _windows(documents: Iterator[str], tokenizer: Tokenizer, options: WindowOptions) -> npt.NDArray[np.int64]:
    """Return windows of the joined documents, [samples, seq_len]: the first windows, or random windows."""
    fewest = 1 if options.samples == "all" else options.samples
    if options.sampling == "sequential":
        ids = _tokenise(documents, tokenizer, options.most * options.seq_len + _END_TOKENS, cut=True)
        windows = _cut(ids, fewest, options, tokenizer)
        return windows[: int(min(options.most, len(windows)))]
    rng = np.random.default_rng(options.seed)
    pool_tokens = _pool_tokens(options)
    pool = iter(next(_shuffled(documents, rng, pool_tokens), []))
    windows = _cut(_tokenise(pool, tokenizer, pool_tokens), fewest, options, tokenizer)
    size = int(min(options.most, len(windows)))
    return windows[rng.choice(len(windows), size=size, replace=False)]


def _beginnings(documents: Iterator[str], tokenizer: Tokenizer, options: WindowOptions) -> list[list[int]]:
    """Return the first tokens of as many documents as the options require."""
    rng = np.random.default_rng(options.seed)
    seq_len = options.seq_len
    fewest_tokens = 2
    if options.sampling == "documents":
        fewest_tokens = seq_len
        documents = chain.from_iterable(_shuffled(islice(documents, _MOST_DOCUMENTS), rng, _pool_tokens(options)))
    elif options.sampling == "truncated":
        samples = int(options.most)
        documents = chain.from_iterable(_shuffled(documents, rng, samples * seq_len, at_least=_POOL * samples))
    rows: list[list[int]] = []
    lengths: list[int] = []
    for document in documents:
        # Each document is tokenised alone and only as far as needed, so that little of a large buffer is tokenised.
        ids = _tokenise(iter([document]), tokenizer, seq_len + _END_TOKENS, cut=True)[:seq_len].tolist()
        lengths.append(len(ids))
        if len(ids) >= fewest_tokens:
            rows.append(ids)
        if len(rows) == options.most:
            return rows
    if options.sampling == "documents":
        samples = int(options.most)
        shorter = sorted(lengths)[-samples] if len(lengths) >= samples else 0
        raise UserError(
            f"data.samples={samples} documents of at least data.seq_len={seq_len} tokens were asked for, but "
            f"{len(rows)} of {len(lengths)} are that long; {_use(len(rows), shorter, seq_len)}"
        )
    if not rows:
        raise UserError("data holds no text: no document has two tokens; choose another source")
    if options.samples != "all":
        raise UserError(
            f"data.samples={options.samples} documents were asked for, but there are {len(rows)}; "
            f"use data.samples={len(rows)} or data.samples=all or more text"
        )
    return rows


def _pool_tokens(options: WindowOptions) -> int:
    """Return the number of tokens to draw random windows or long documents from."""
    needed = int(options.most) * options.seq_len
    return min(_POOL * needed, needed + _POOL_TOKENS)


def _shuffled(
    documents: Iterator[str], rng: np.random.Generator, tokens: int, at_least: int = 0
) -> Iterator[list[str]]:
    """Yield lists of documents in a random order: each has as many as the buffer holds, and `at_least` so many."""
    while True:
        room = max(_BUFFER_CHARS, 2 * tokens * _CHARS_PER_TOKEN)
        buffer: list[str] = []
        for document in documents:
            buffer.append(document)
            room -= len(document)
            if room <= 0 and len(buffer) >= at_least:
                break
        if not buffer:
            return
        yield [buffer[index] for index in rng.permutation(len(buffer))]


def _tokenise(
    documents: Iterator[str], tokenizer: Tokenizer, enough: float, cut: bool = False
) -> npt.NDArray[np.int64]:
    """Return the tokens of the first documents as one stream, int64, [T]: at least `enough`, or those of all documents.

    If the last document may be `cut`, the last tokens of the stream may differ from those of the whole document.
    """
    texts: list[str] = []
    n_chars = 0
    needed_chars = enough * _CHARS_PER_TOKEN
    while True:
        if n_chars < needed_chars:
            for document in documents:
                texts.append(document)
                n_chars += len(document) + len(_SEPARATOR)
                if n_chars >= needed_chars:
                    break
        text = _SEPARATOR.join(texts)
        ids = _ids(text[: int(needed_chars)] if cut and needed_chars < math.inf else text, tokenizer)
        if len(ids) >= enough or n_chars < needed_chars:
            return ids
        needed_chars = 2 * (needed_chars if cut else n_chars)


def _ids(text: str, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Return the tokens of a text, int64, [T].

    A call of the tokenizer takes 200 bytes a token, so a very long text is tokenised in pieces. A piece ends before a
    space between words, if there is one, because tokenizers begin a token there.
    """
    # `verbose=False` suppresses the warning that a text is longer than the model's window.
    if len(text) <= _PIECE_CHARS:
        return np.asarray(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)
    pieces = re.findall(rf"(?s).{{1,{_PIECE_CHARS}}}(?:(?<=\w)(?= \w)|\Z)|.{{1,{_PIECE_CHARS}}}", text)
    ids_of_pieces = (tokenizer(piece, verbose=False, add_special_tokens=False)["input_ids"] for piece in pieces)
    return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (_bos(tokenizer), *ids_of_pieces)])


def _bos(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that the tokenizer puts before every text."""
    encoding = tokenizer("0", verbose=False, return_special_tokens_mask=True)
    pairs = zip(encoding["input_ids"], encoding["special_tokens_mask"], strict=True)
    return [token for token, _ in takewhile(lambda pair: pair[1], pairs)]


def _cut(
    ids: npt.NDArray[np.int64], samples: int, options: WindowOptions, tokenizer: Tokenizer
) -> npt.NDArray[np.int64]:
    """Return all whole windows of a stream, [W, seq_len]; refuse a stream of fewer than `samples` windows."""
    seq_len = options.seq_len
    bos = _bos(tokenizer) if options.bos == "each" else []
    text = ids[len(bos) :]  # the stream begins with these tokens, too
    room = seq_len - len(bos)
    if not len(text):
        raise UserError("data holds no text: its documents have no token; choose another source")
    if room < 1:
        raise UserError(f"data.seq_len={seq_len} has no room for text after {len(bos)} tokens that begin it; use more")
    count = len(text) // room
    if count < samples:
        raise UserError(
            f"data.samples={samples} windows of data.seq_len={seq_len} tokens were asked for, but the text holds "
            f"{count} ({len(text)} tokens); {_use(count, len(text) // samples + len(bos), seq_len)}"
        )
    windows = text[: count * room].reshape(count, room)
    return np.hstack([np.tile(np.array(bos, np.int64), (count, 1)), windows])


def _use(samples: int, seq_len: int, configured_seq_len: int) -> str:
    """Return the remedies for too little text: fewer samples, shorter samples, or more text."""
    fewer = f"data.samples={samples} or " if samples else ""
    shorter = f"data.seq_len={seq_len} or " if seq_len > 1 and _SHORTEST * seq_len >= configured_seq_len else ""
    return f"use {fewer}{shorter}more text"
