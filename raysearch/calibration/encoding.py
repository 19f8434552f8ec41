"""Turns samples of text into rows of tokens, marks the scored tokens, and cuts long rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from raysearch.calibration.batch import Batch, Choices, Form
from raysearch.calibration.dialogues import Span, render, render_prompt, render_task
from raysearch.calibration.formats.base import Dialogue, ImageQuestion, Item, Sample, Task, Text
from raysearch.calibration.items import ItemOptions, Located
from raysearch.calibration.packing import n_packed, n_shared
from raysearch.errors import UserError
from raysearch.generation.answer import Answer


@dataclass(frozen=True)
class Wording:
    """A row of text: the text, the spans that are scored, and whether the tokenizer adds its special tokens."""

    text: str
    spans: tuple[Span, ...]
    special: bool = True


@dataclass(frozen=True)
class _EncodedRow:
    """A row in tokens."""

    ids: tuple[int, ...]
    scored: tuple[bool, ...]
    truncated: bool  #: whether tokens were cut off


@dataclass(frozen=True)
class _Encoded:
    """A sample in tokens: one row for each choice, or a single row."""

    rows: tuple[_EncodedRow, ...]
    gold: int = 0
    characters: tuple[int, ...] = ()
    answer: Answer | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key: packed length, then content. So the order of the rows in the file does not matter."""
        content = [(row.ids, row.scored) for row in self.rows]
        expected = () if self.answer is None else (self.answer.text, self.answer.choices, repr(self.answer.tests))
        return n_packed([row.ids for row in self.rows]), content, self.gold, expected


def encode_items(samples: Sequence[Located], form: Form, options: ItemOptions, tokenizer: Any) -> tuple[Batch, int]:
    """Tokenise samples.

    Prompt and choice are tokenised as one text. A token belongs to the answer if it ends within the answer or within
    the spaces before the answer. The first token of a row is never scored, because no token predicts it.

    Args:
        samples: The samples as text.
        form: The form that the objective needs.
        options: The length of a row, and which tokens are scored.
        tokenizer: A transformers tokenizer.

    Returns:
        The samples in order of their length, and the number of samples that were cut.

    Raises:
        UserError: A sample does not have this form, or its answer does not fit.
    """
    encoded_samples = [_encode(sample, form, options, tokenizer) for sample in samples]
    encoded_samples.sort(key=lambda encoded: encoded.order)
    rows = [row for encoded in encoded_samples for row in encoded.rows]
    choices = None
    answers = None
    if form is Form.CHOICES:
        choices = _choices_of(encoded_samples)
    elif form is Form.PROMPT:
        answers = tuple(encoded.answer for encoded in encoded_samples if encoded.answer is not None)
    batch = Batch.of([row.ids for row in rows], [row.scored for row in rows], choices, answers)
    n_truncated = sum(any(row.truncated for row in encoded.rows) for encoded in encoded_samples)
    return batch, n_truncated


def _choices_of(items: Sequence[_Encoded]) -> Choices:
    return Choices(
        item=np.repeat(np.arange(len(items)), [len(item.rows) for item in items]),
        gold=np.array([index == item.gold for item in items for index in range(len(item.rows))]),
        characters=np.array([length for item in items for length in item.characters], dtype=np.int64),
    )


def _encode(located: Located, form: Form, options: ItemOptions, tokenizer: Any) -> _Encoded:
    sample = located.sample
    where = located.where
    match form:
        case Form.TEXT:
            wording = _with_answer(sample, tokenizer, where)
            to_row = _scored_row if options.score == "answer" else _whole_row
            return _Encoded((to_row(wording, options.seq_len, tokenizer, where),))
        case Form.CHOICES:
            assert isinstance(sample, Item), "only items have choices"
            wordings = [_with_choice(sample, index) for index in range(len(sample.choices))]
            rows = tuple(_scored_row(wording, options.seq_len, tokenizer, where) for wording in wordings)
            return _Encoded(rows, sample.gold, tuple(map(len, sample.choices)))
        case Form.PROMPT:
            prompt, answer = _prompt(sample, tokenizer, where)
            return _Encoded((_cut_left(*tokenise(prompt, tokenizer), options.seq_len, tokenizer),), answer=answer)
    assert_never(form)


def _with_answer(sample: Sample, tokenizer: Any, where: str) -> Wording:
    """Return a sample with its right answer."""
    assert not isinstance(sample, ImageQuestion), "a processor encodes it"
    match sample:
        case Text():
            return Wording(sample.text, ((0, len(sample.text)),))
        case Item():
            return _with_choice(sample, sample.gold)
        case Dialogue():
            return Wording(*render(sample, tokenizer, where), special=False)
        case Task():
            prompt, answer = _prompt(sample, tokenizer, where)
            text = prompt.text + answer.text
            return Wording(text, ((len(prompt.text), len(text)),), prompt.special)


def _with_choice(item: Item, index: int) -> Wording:
    """Return an item with one of its choices."""
    before = item.prompt + (item.openings[index] if item.openings else "")
    text = before + (item.separator if before else "") + item.choices[index]
    return Wording(text, ((len(before.rstrip(" ")), len(text)),))


def _prompt(sample: Sample, tokenizer: Any, where: str) -> tuple[Wording, Answer]:
    """Return the text to continue, and the expected answer."""
    match sample:
        case Dialogue():
            prompt, answer = render_prompt(sample, tokenizer, where)
            return Wording(prompt, (), special=False), Answer(answer)
        case Task():
            prompt, in_template = render_task(sample, tokenizer, where)
            return Wording(prompt, (), special=not in_template), sample.answer
        case Item() if sample.prompt.strip() and not sample.openings:
            choices = tuple(choice.strip() for choice in sample.choices)
            answer = choices[sample.gold] if sample.answer is None else sample.answer
            return Wording(sample.prompt, ()), Answer(answer, choices if len(choices) > 1 else ())
    raise UserError(
        f"{where} has no text before its answer; give data.prompt=…, and data.blank=null where choices fill a blank"
    )


def _scored_row(wording: Wording, seq_len: int, tokenizer: Any, where: str) -> _EncodedRow:
    """Return a row, cut on the left so that the answer stays; of a conversation, the last answer."""
    ids, spans = tokenise(wording, tokenizer)
    answer_tokens = spans.count(len(wording.spans) - 1)
    if not answer_tokens:
        raise UserError(
            f"{where} has an answer of which no token follows another; give it a prompt with data.prompt=…, or leave "
            "the row out"
        )
    if answer_tokens > seq_len - 1:
        raise UserError(
            f"{where} has an answer of {answer_tokens} tokens, which data.seq_len={seq_len} cannot hold with one "
            f"before it; use data.seq_len={answer_tokens + 1} or more, or leave the row out"
        )
    if len(ids) > seq_len:  # text behind the answer, such as the end of a template, does not change the loss
        end = max(index for index, span in enumerate(spans) if span >= 0) + 1
        ids = ids[:end]
        spans = spans[:end]
    return _cut_left(ids, spans, seq_len, tokenizer)


def _whole_row(wording: Wording, seq_len: int, tokenizer: Any, where: str) -> _EncodedRow:
    """Return a row with all tokens scored but the first, cut on the right."""
    ids, spans = tokenise(replace(wording, spans=((0, len(wording.text)),)), tokenizer)
    if not spans.count(0):
        raise UserError(f"{where} has no token that follows another; leave the row out")
    return _EncodedRow(tuple(ids[:seq_len]), tuple(span >= 0 for span in spans[:seq_len]), len(ids) > seq_len)


def _cut_left(ids: list[int], spans: list[int], seq_len: int, tokenizer: Any) -> _EncodedRow:
    """Keep the last tokens, and the first token if the tokenizer begins every text with it."""
    n_excess = max(0, len(ids) - seq_len)
    n_first = 1 if n_excess and ids[0] == getattr(tokenizer, "bos_token_id", None) else 0
    row_ids = ids[:n_first] + ids[n_first + n_excess :]
    scored = [span >= 0 for span in spans[:n_first] + spans[n_first + n_excess :]]
    return _EncodedRow(tuple(row_ids), (False, *scored[1:]), n_excess > 0)


def tokenise(wording: Wording, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return token ids, and the number of the span that each token ends in; -1 for none, and for the first token.

    Tokens that the tokenizer puts after every text, such as ``</s>``, are left out, because the text continues.

    Args:
        wording: The text.
        tokenizer: A transformers tokenizer.

    Returns:
        The token ids, and as many numbers of spans.
    """
    options = {"add_special_tokens": wording.special, "verbose": False}  # a text may be longer than the model's window
    n_after = n_tokens_after(wording, tokenizer)

    def ids_of(text: str) -> list[int]:
        ids = list(tokenizer(text, **options)["input_ids"])
        return ids[: len(ids) - n_after]

    if getattr(tokenizer, "is_fast", False):
        encoding = tokenizer(wording.text, return_offsets_mapping=True, **options)
        n_tokens = len(encoding["input_ids"]) - n_after
        ids = list(encoding["input_ids"][:n_tokens])
        spans = [_span_of(end, wording.spans) for _, end in encoding["offset_mapping"][:n_tokens]]
    else:
        ids = ids_of(wording.text)
        spans = [-1] * len(ids)
        for number, span in enumerate(wording.spans):
            first, last = (n_shared(ids, ids_of(wording.text[:edge])) for edge in span)
            spans[first:last] = [number] * (last - first)
    return ids, [-1] * len(ids[:1]) + spans[1:]


def _span_of(end: int, spans: Sequence[Span]) -> int:
    """Return the number of the span that a token ends in, by the character after the token; -1 for none."""
    return next((number for number, (start, stop) in enumerate(spans) if start < end <= stop), -1)


def n_tokens_after(wording: Wording, tokenizer: Any) -> int:
    """Return the number of tokens, such as ``</s>``, that the tokenizer puts after a text.

    Args:
        wording: The text.
        tokenizer: A transformers tokenizer.

    Returns:
        The number; 0 if the tokenizer adds no special tokens to this text.
    """
    if not wording.special:
        return 0
    with_special = list(tokenizer("0", verbose=False, add_special_tokens=True)["input_ids"])
    text = list(tokenizer("0", verbose=False, add_special_tokens=False)["input_ids"])
    n_special = len(with_special) - len(text)
    starts = (start for start in range(n_special + 1) if with_special[start : start + len(text)] == text)
    return n_special - next(starts, n_special)
