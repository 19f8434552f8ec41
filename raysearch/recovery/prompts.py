"""The rows that a model is trained on: prompts in words, or windows of text, apart from what it was measured on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysearch.calibration.batch import Form
from raysearch.calibration.data import Data
from raysearch.calibration.dialogues import fit_template, messages_of
from raysearch.calibration.formats.chat import ChatFormat
from raysearch.calibration.overlap import SeenTexts, Template, words_of
from raysearch.calibration.packing import n_shared
from raysearch.calibration.windows import WindowOptions
from raysearch.core.formatting import count
from raysearch.errors import UserError
from raysearch.recovery.spec import RecoveryOptions

LeftOut = Literal[
    "unusable", "overlapping", "too long", "without an answer", "cut off", "empty", "beyond recovery.tokens"
]


@dataclass(frozen=True)
class Row:
    """Tokens to train on, the first `n_prompt` of which are a prompt, and the answer to that in words."""

    ids: tuple[int, ...]
    n_prompt: int = 0
    answer: str = ""


@dataclass(frozen=True)
class Question:
    """A prompt.

    Args:
        messages: Role and content of each turn up to the answer.
        answer: Of the data; empty where there is none.
        ids: The prompt's tokens, up to where the answer begins.
        thinking: As of a `Task`.
    """

    messages: tuple[tuple[str, str], ...]
    answer: str
    ids: tuple[int, ...]
    thinking: bool | None = None


@dataclass(frozen=True)
class Prompts:
    """The questions or rows of plain text to train on, as drawn, and how many were left out, by the reason."""

    questions: tuple[Question, ...]
    rows: tuple[Row, ...]
    left_out: dict[str, int]


def draw_prompts(
    data: Data, options: RecoveryOptions, tokenizer: Any, measured: SeenTexts, max_positions: int | None
) -> Prompts:
    """Draw what to train on, and leave out what is too long or was measured; refuse data that leave nothing."""
    check_rows(data, options, max_positions)
    left_out = Counter[str]()
    if isinstance(data.draw, WindowOptions):
        batch, kept = data.samples(tokenizer, Form.TEXT, max_positions).batch, []
        for ids, length in zip(batch.input_ids, batch.lengths.tolist(), strict=True):
            row = Row(tuple(ids[:length].tolist()))
            if measured.shared(tokenizer.decode(row.ids)):
                left_out["overlapping"] += 1
            else:
                kept.append(row)
        check_enough(len(kept), left_out, data)
        return Prompts((), tuple(kept), dict(left_out))
    drawn, failure = [], None
    for located in data.items().samples:
        try:
            messages, answer = messages_of(located.sample, located.where)
            if options.system and messages[0][0] != "system":
                messages = (("system", options.system), *messages)
            thinking = getattr(located.sample, "thinking", None)
            ids = encode(messages, None, tokenizer, located.where, thinking)
        except UserError as error:
            if not (isinstance(data.format, ChatFormat) and data.format.unusable == "skip"):
                raise
            failure = failure or error
            left_out["unusable"] += 1
        else:
            drawn.append(Question(messages, answer, ids, thinking))
    if failure is not None and not drawn:  # it need not be of the rows: the template may be broken
        raise failure
    own_answers, learned = options.responses == "data", []  # the texts that are trained on, but for the system prompt
    for one in drawn:
        turns = [text for role, text in one.messages if role != "system"]
        learned.append([*turns, one.answer] if own_answers else turns)
    templates = [_template(filter(None, column), len(drawn)) for column in itertools.zip_longest(*learned)]
    shared = [set().union(*map(measured.shared, texts, templates)) for texts in learned]
    often, questions = Counter(run for runs in shared for run in runs), []
    for question, runs in zip(drawn, shared, strict=True):
        if len(question.ids) > options.max_prompt_tokens:
            left_out["too long"] += 1
        elif any(often[run] <= len(drawn) / 2 for run in runs):  # what most rows have is their template's
            left_out["overlapping"] += 1
        elif own_answers and not question.answer:
            left_out["without an answer"] += 1
        else:
            questions.append(question)
    check_enough(len(questions), left_out, data)
    return Prompts(tuple(questions), (), dict(left_out))


def encode(
    messages: Sequence[tuple[str, str]], answer: str | None, tokenizer: Any, where: str, thinking: bool | None = None
) -> tuple[int, ...]:
    """Return the tokens of a prompt with its answer; without one, up to where it begins."""
    if tokenizer.chat_template:
        turns = messages if answer is None else [*messages, ("assistant", answer)]
        text = fit_template(turns, tokenizer, where, ask=answer is None, thinking=thinking)
        return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    text = "\n\n".join(content for _, content in messages) + "\n\n"
    if answer is not None:
        text += answer + (tokenizer.eos_token or "")
    return tuple(tokenizer(text, verbose=False)["input_ids"])


def row_of(question: Question, answer: str, cut_off: bool, options: RecoveryOptions, tokenizer: Any) -> Row | LeftOut:
    """Return a question with its answer, which begins where the row is no longer the prompt, or why it is left out."""
    if not answer:
        return "empty"
    if cut_off:
        return "cut off"
    ids = encode(question.messages, answer, tokenizer, "a row of data", question.thinking)
    return "too long" if len(ids) > options.max_tokens else Row(ids, n_shared(question.ids, ids), answer)


def kept_rows(found: Sequence[Row | LeftOut], left_out: Counter[str]) -> list[Row]:
    """Return the rows that were made of questions, and count the questions that are left out, by the reason."""
    left_out.update(one for one in found if not isinstance(one, Row))
    return [one for one in found if isinstance(one, Row)]


def _template(texts: Iterable[str], n: int) -> Template:
    """Return the template of texts, of which there would be `n` if all rows had one."""
    words = [words_of(text) for text in texts]
    return _beginning(words, n), _beginning([one[::-1] for one in words], n)


def _beginning(texts: Sequence[Sequence[str]], n: int) -> tuple[str, ...]:
    """Return the first words that more than half of `n` texts have in common."""
    common: list[str] = []
    while texts := [words for words in texts if len(words) > len(common)]:
        word, times = Counter(words[len(common)] for words in texts).most_common(1)[0]
        if 2 * times <= n:
            break
        texts = [words for words in texts if words[len(common)] == word]
        common.append(word)
    return tuple(common)


def check_rows(data: Data, options: RecoveryOptions, max_positions: int | None) -> None:
    """Refuse data that are not there, and rows longer than the model takes, or longer than a row may be."""
    data.check()
    if max_positions is not None and options.max_tokens > max_positions:
        raise UserError(
            f"recovery.max_tokens={options.max_tokens} is longer than the {max_positions} positions of the model; use "
            f"{max_positions} or less"
        )
    if isinstance(data.draw, WindowOptions) and data.draw.seq_len > options.max_tokens:  # the trainer would cut it
        raise UserError(
            f"data.seq_len={data.draw.seq_len} is longer than recovery.max_tokens={options.max_tokens}, the most of a "
            f"row; use data.seq_len={options.max_tokens} or less, or more recovery.max_tokens"
        )


def n_to_train_on(rows: Sequence[Row], options: RecoveryOptions, left_out: dict[str, int], data: Data) -> int:
    """Return how many of the first rows the limit of tokens allows, at least two, and count the others as left out."""
    totals = itertools.accumulate(len(row.ids) for row in rows)
    n_rows = sum(options.tokens is None or total <= options.tokens for total in totals)
    if n_rows < len(rows):
        left_out["beyond recovery.tokens"] = len(rows) - n_rows
    check_enough(n_rows, left_out, data)
    return n_rows


def check_enough(n_left: int, left_out: dict[str, int], data: Data) -> None:
    """Refuse to train on fewer than two rows."""
    if n_left < 2:
        reasons = " and ".join(f"{n} {reason}" for reason, n in left_out.items()) or "none was drawn"
        most = next((reason for reason, n in left_out.items() if 2 * n > sum(left_out.values())), None)
        remedy = "more data.samples=… or other data"
        if most == "beyond recovery.tokens":
            remedy = "more recovery.tokens"
        elif most == "cut off":
            remedy = "more recovery.max_new_tokens"
            if hasattr(data.format, "thinking"):
                remedy += ", or data.thinking=false with a model that thinks before it answers"
        raise UserError(f"data leaves {count(n_left, 'row')} to train on ({reasons}); use {remedy}")
