"""Turns samples in words into rows of tokens, with the scored ones marked and long ones cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from raysearch.calibration.batch import Batch, Choices, Form
from raysearch.calibration.dialogues import Span, render, render_prompt, render_task
from raysearch.calibration.formats.base import Dialogue, Item, Sample, Task, Text
from raysearch.calibration.items import ItemOptions, Located
from raysearch.calibration.packing import n_packed, n_shared
from raysearch.errors import UserError
from raysearch.generation.answer import Answer


@dataclass(frozen=True)
class _Wording:
    """A row in words: its text, the spans that are scored, and whether the tokenizer adds its special tokens."""

    text: str
    spans: tuple[Span, ...]
    special: bool = True


@dataclass(frozen=True)
class _Row:
    ids: tuple[int, ...]
    scored: tuple[bool, ...]
    truncated: bool


@dataclass(frozen=True)
class _Encoded:
    """A sample in tokens: a row per choice, or one."""

    rows: tuple[_Row, ...]
    gold: int = 0
    characters: tuple[int, ...] = ()
    answer: Answer | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key: length, packed, then content, so that the order in the file does not matter."""
        content = [(row.ids, row.scored) for row in self.rows]
        expected = () if self.answer is None else (self.answer.text, self.answer.choices, repr(self.answer.tests))
        return n_packed([row.ids for row in self.rows]), content, self.gold, expected


def encode_items(samples: Sequence[Located], form: Form, options: ItemOptions, tokenizer: Any) -> tuple[Batch, int]:
    """Tokenise samples.

    Prompt and choice are tokenised as one text. A token belongs to the answer if it ends within the answer or the
    spaces before it. The first token of a row, which nothing predicts, is never scored.

    Returns:
        The samples ordered by length, and how many of them were cut.

    Raises:
        UserError: A sample does not have this form, or its answer does not fit.
    """
    encoded = sorted((_encode(sample, form, options, tokenizer) for sample in samples), key=lambda one: one.order)
    rows = [row for one in encoded for row in one.rows]
    choices = answers = None
    if form is Form.CHOICES:
        choices = Choices(
            item=np.repeat(np.arange(len(encoded)), [len(one.rows) for one in encoded]),
            gold=np.array([place == one.gold for one in encoded for place in range(len(one.rows))]),
            characters=np.array([length for one in encoded for length in one.characters], dtype=np.int64),
        )
    elif form is Form.PROMPT:
        answers = tuple(one.answer for one in encoded if one.answer is not None)
    batch = Batch.of([row.ids for row in rows], [row.scored for row in rows], choices, answers)
    return batch, sum(any(row.truncated for row in one.rows) for one in encoded)


def _encode(located: Located, form: Form, options: ItemOptions, tokenizer: Any) -> _Encoded:
    where, sample = located.where, located.sample
    match form:
        case Form.TEXT:
            wording = _wording(sample, tokenizer, where)
            to_row = _scored_row if options.score == "answer" else _whole_row
            return _Encoded((to_row(wording, options.seq_len, tokenizer, where),))
        case Form.CHOICES:
            assert isinstance(sample, Item), "only items have choices"
            wordings = [_worded(sample, place) for place in range(len(sample.choices))]
            rows = tuple(_scored_row(wording, options.seq_len, tokenizer, where) for wording in wordings)
            return _Encoded(rows, sample.gold, tuple(map(len, sample.choices)))
        case Form.PROMPT:
            prompt, answer = _question(sample, tokenizer, where)
            return _Encoded((_cut_left(*_tokenise(prompt, tokenizer), options.seq_len, tokenizer),), answer=answer)
    assert_never(form)


def _wording(sample: Sample, tokenizer: Any, where: str) -> _Wording:
    """Return a sample with its right answer."""
    match sample:
        case Text():
            return _Wording(sample.text, ((0, len(sample.text)),))
        case Item():
            return _worded(sample, sample.gold)
        case Dialogue():
            return _Wording(*render(sample, tokenizer, where), special=False)
        case Task():
            asked, answer = _question(sample, tokenizer, where)
            text = asked.text + answer.text
            return _Wording(text, ((len(asked.text), len(text)),), asked.special)


def _worded(item: Item, place: int) -> _Wording:
    """Return an item with one of its choices."""
    before = item.prompt + (item.openings[place] if item.openings else "")
    text = before + (item.separator if before else "") + item.choices[place]
    return _Wording(text, ((len(before.rstrip(" ")), len(text)),))


def _question(sample: Sample, tokenizer: Any, where: str) -> tuple[_Wording, Answer]:
    """Return the text to continue, and the expected answer."""
    match sample:
        case Dialogue():
            prompt, answer = render_prompt(sample, tokenizer, where)
            return _Wording(prompt, (), special=False), Answer(answer)
        case Task():
            prompt, in_template = render_task(sample, tokenizer, where)
            return _Wording(prompt, (), special=not in_template), sample.answer
        case Item() if sample.prompt.strip() and not sample.openings:
            choices = tuple(choice.strip() for choice in sample.choices)
            answer = choices[sample.gold] if sample.answer is None else sample.answer
            return _Wording(sample.prompt, ()), Answer(answer, choices if len(choices) > 1 else ())
    raise UserError(
        f"{where} has nothing to go on from before its answer; give data.prompt=…, and data.blank=null where choices "
        "fill a blank"
    )


def _scored_row(wording: _Wording, seq_len: int, tokenizer: Any, where: str) -> _Row:
    """Return a row, cut on the left so that the answer (of a conversation, the last one) stays."""
    ids, spans = _tokenise(wording, tokenizer)
    answer = spans.count(len(wording.spans) - 1)
    if not answer:
        raise UserError(
            f"{where} has an answer of which no token follows another; give it a prompt with data.prompt=…, or leave "
            "the row out"
        )
    if answer > seq_len - 1:
        raise UserError(
            f"{where} has an answer of {answer} tokens, which data.seq_len={seq_len} cannot hold with one before it; "
            f"use data.seq_len={answer + 1} or more, or leave the row out"
        )
    if len(ids) > seq_len:  # what follows the answer, such as a template's end or another question, decides no loss
        end = max(place for place, span in enumerate(spans) if span >= 0) + 1
        ids, spans = ids[:end], spans[:end]
    return _cut_left(ids, spans, seq_len, tokenizer)


def _whole_row(wording: _Wording, seq_len: int, tokenizer: Any, where: str) -> _Row:
    """Return a row of which all is scored, cut on the right."""
    ids, spans = _tokenise(replace(wording, spans=((0, len(wording.text)),)), tokenizer)
    if not spans.count(0):
        raise UserError(f"{where} has no token that follows another; leave the row out")
    return _Row(tuple(ids[:seq_len]), tuple(span >= 0 for span in spans[:seq_len]), len(ids) > seq_len)


def _cut_left(ids: list[int], spans: list[int], seq_len: int, tokenizer: Any) -> _Row:
    """Keep the last tokens, and the first one if the tokenizer begins every text with it."""
    excess = max(0, len(ids) - seq_len)
    kept = 1 if excess and ids[0] == getattr(tokenizer, "bos_token_id", None) else 0
    scored = [span >= 0 for span in spans[:kept] + spans[kept + excess :]]
    return _Row(tuple(ids[:kept] + ids[kept + excess :]), (False, *scored[1:]), excess > 0)


def _tokenise(wording: _Wording, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return token ids, and the span that each token ends in; -1 for none, and always for the first token.

    Tokens that the tokenizer puts after every text, such as ``</s>``, are left out: the text goes on.
    """
    options = {"add_special_tokens": wording.special, "verbose": False}  # a text may be longer than the model's window
    n_after = _n_tokens_after(tokenizer) if wording.special else 0

    def ids_of(text: str) -> list[int]:
        ids = list(tokenizer(text, **options)["input_ids"])
        return ids[: len(ids) - n_after]

    if getattr(tokenizer, "is_fast", False):
        encoding = tokenizer(wording.text, return_offsets_mapping=True, **options)
        n_tokens = len(encoding["input_ids"]) - n_after
        ids, spans = list(encoding["input_ids"][:n_tokens]), []
        for _, end in encoding["offset_mapping"][:n_tokens]:
            spans.append(next((n for n, (start, stop) in enumerate(wording.spans) if start < end <= stop), -1))
    else:
        ids = ids_of(wording.text)
        spans = [-1] * len(ids)
        for number, span in enumerate(wording.spans):
            first, last = (n_shared(ids, ids_of(wording.text[:edge])) for edge in span)
            spans[first:last] = [number] * (last - first)
    return ids, [-1] * len(ids[:1]) + spans[1:]


def _n_tokens_after(tokenizer: Any) -> int:
    """Return how many tokens, such as ``</s>``, the tokenizer puts after every text."""
    whole, text = (list(tokenizer("0", verbose=False, add_special_tokens=add)["input_ids"]) for add in (True, False))
    n_around = len(whole) - len(text)
    starts = (start for start in range(n_around + 1) if whole[start : start + len(text)] == text)
    return n_around - next(starts, n_around)
