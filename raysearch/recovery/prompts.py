"""Draws the rows to train on: prompts, or windows of text. Texts that the model is measured on are left out."""

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
from raysearch.errors import UserError
from raysearch.recovery.spec import RecoveryOptions
from raysearch.text.numbers import count

LeftOut = Literal[
    "unusable",
    "overlapping",
    "too long",
    "without an answer",
    "cut off",
    "empty",
    "beyond recovery.tokens",
    "beyond --minutes",
]


@dataclass(frozen=True)
class TrainingRow:
    """A row of tokens to train on.

    Args:
        ids: The tokens.
        n_prompt: The number of tokens of the prompt, which come first.
        answer: The text of the answer.
    """

    ids: tuple[int, ...]
    n_prompt: int = 0
    answer: str = ""


@dataclass(frozen=True)
class Question:
    """A prompt.

    Args:
        messages: The role and content of each turn before the answer.
        answer: The answer of the data; empty if there is none.
        ids: The tokens of the prompt, up to the beginning of the answer.
        thinking: See `Task`.
    """

    messages: tuple[tuple[str, str], ...]
    answer: str
    ids: tuple[int, ...]
    thinking: bool | None = None


@dataclass(frozen=True)
class Prompts:
    """The data to train on.

    Args:
        questions: The prompts, in the order of their drawing.
        rows: The rows of plain text, in the order of their drawing.
        left_out: The number of rows that were left out, by the reason.
    """

    questions: tuple[Question, ...]
    rows: tuple[TrainingRow, ...]
    left_out: dict[str, int]


def draw_prompts(
    data: Data, options: RecoveryOptions, tokenizer: Any, measured: SeenTexts, max_positions: int | None
) -> Prompts:
    """Draw the data to train on, without rows that are too long, or that share text with the measured samples.

    Args:
        data: The data.
        options: The options of the training.
        tokenizer: The model's tokenizer.
        measured: The texts of the calibration and the assessment.
        max_positions: The maximum length that the model supports; None for no limit.

    Returns:
        The questions or rows in the order of their drawing, and the number of rows that were left out, by the reason.

    Raises:
        UserError: The data cannot be used, or fewer than two rows remain.
    """
    if data.format.has_images:
        raise UserError("data.type=image_text has images, and a recovery trains on text alone; use data of text")
    check_rows(data, options, max_positions)
    left_out = Counter[str]()
    if isinstance(data.draw, WindowOptions):
        batch = data.samples(tokenizer, Form.TEXT, max_positions).batch
        rows: list[TrainingRow] = []
        for ids, length in zip(batch.input_ids, batch.lengths.tolist(), strict=True):
            row = TrainingRow(tuple(ids[:length].tolist()))
            if measured.shared(tokenizer.decode(row.ids)):
                left_out["overlapping"] += 1
            else:
                rows.append(row)
        check_enough(len(rows), left_out, data)
        return Prompts((), tuple(rows), dict(left_out))
    drawn: list[Question] = []
    failure = None
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
    if failure is not None and not drawn:  # the cause may be the template, not the rows
        raise failure
    questions: list[Question] = []
    uses_data_answers = options.responses == "data"
    for question, overlaps in zip(drawn, _overlapping(drawn, uses_data_answers, measured), strict=True):
        if len(question.ids) > options.max_prompt_tokens:
            left_out["too long"] += 1
        elif overlaps:
            left_out["overlapping"] += 1
        elif uses_data_answers and not question.answer:
            left_out["without an answer"] += 1
        else:
            questions.append(question)
    check_enough(len(questions), left_out, data)
    return Prompts(tuple(questions), (), dict(left_out))


def _overlapping(questions: Sequence[Question], uses_data_answers: bool, measured: SeenTexts) -> list[bool]:
    """Return for each question whether it shares text with the measured samples.

    Text that most questions share belongs to their template, and does not count.
    """
    texts_by_question = []  # the texts to train on, without the system prompt
    for question in questions:
        turns = [text for role, text in question.messages if role != "system"]
        texts_by_question.append([*turns, question.answer] if uses_data_answers else turns)
    columns = itertools.zip_longest(*texts_by_question)
    templates = [_template(filter(None, column), len(questions)) for column in columns]
    shared_runs = [set().union(*map(measured.shared, texts, templates)) for texts in texts_by_question]
    n_questions_with = Counter(run for runs in shared_runs for run in runs)
    return [any(n_questions_with[run] <= len(questions) / 2 for run in runs) for runs in shared_runs]


def encode(
    messages: Sequence[tuple[str, str]], answer: str | None, tokenizer: Any, where: str, thinking: bool | None = None
) -> tuple[int, ...]:
    """Return the tokens of a prompt with its answer.

    Args:
        messages: The role and content of each turn before the answer.
        answer: The answer; None for the prompt alone, up to the beginning of the answer.
        tokenizer: The model's tokenizer.
        where: The place of the row, for messages.
        thinking: See `Task`.

    Returns:
        The token ids.

    Raises:
        UserError: The chat template refuses the messages.
    """
    if tokenizer.chat_template:
        turns = messages if answer is None else [*messages, ("assistant", answer)]
        text = fit_template(turns, tokenizer, where, ask=answer is None, thinking=thinking)
        return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    text = "\n\n".join(content for _, content in messages) + "\n\n"
    if answer is not None:
        text += answer + (tokenizer.eos_token or "")
    return tuple(tokenizer(text, verbose=False)["input_ids"])


def row_of(
    question: Question, answer: str, cut_off: bool, options: RecoveryOptions, tokenizer: Any
) -> TrainingRow | LeftOut:
    """Return a question with its answer as a row, or the reason why it is left out.

    Args:
        question: The question.
        answer: The answer. In the row it begins where the tokens first differ from the prompt's.
        cut_off: Whether the answer is incomplete.
        options: The options of the training.
        tokenizer: The model's tokenizer.

    Returns:
        The row; or the reason: ``empty``, ``cut off`` or ``too long``.
    """
    if not answer:
        return "empty"
    if cut_off:
        return "cut off"
    ids = encode(question.messages, answer, tokenizer, "a row of data", question.thinking)
    return "too long" if len(ids) > options.max_tokens else TrainingRow(ids, n_shared(question.ids, ids), answer)


def usable_rows(results: Sequence[TrainingRow | LeftOut], left_out: Counter[str]) -> list[TrainingRow]:
    """Return the rows among the results of `row_of`, and count the others.

    Args:
        results: A row, or the reason why there is none, for each question.
        left_out: The number of questions that are left out, by the reason; this is updated.

    Returns:
        The rows, in the order of the results.
    """
    left_out.update(result for result in results if not isinstance(result, TrainingRow))
    return [result for result in results if isinstance(result, TrainingRow)]


def _template(texts: Iterable[str], n: int) -> Template:
    """Return the common beginning and the common end of texts; `n` is the number of rows, with or without a text."""
    texts_in_words = [words_of(text) for text in texts]
    return _beginning(texts_in_words, n), _beginning([words[::-1] for words in texts_in_words], n)


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
    """Refuse data that do not exist, and rows that are longer than the model or the options allow.

    Args:
        data: The data.
        options: The options of the training.
        max_positions: The maximum length that the model supports; None for no limit.

    Raises:
        UserError: See above.
    """
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


def n_to_train_on(rows: Sequence[TrainingRow], options: RecoveryOptions, left_out: dict[str, int], data: Data) -> int:
    """Return how many of the first rows fit the limit of tokens, and count the others.

    Args:
        rows: The rows.
        options: The options, with the limit.
        left_out: The number of rows that are left out, by the reason; this is updated.
        data: The data, for the message.

    Returns:
        The number of rows, at least 2.

    Raises:
        UserError: Fewer than two rows fit.
    """
    totals = itertools.accumulate(len(row.ids) for row in rows)
    n_rows = sum(options.tokens is None or total <= options.tokens for total in totals)
    if n_rows < len(rows):
        left_out["beyond recovery.tokens"] = len(rows) - n_rows
    check_enough(n_rows, left_out, data)
    return n_rows


def check_enough(n_left: int, left_out: dict[str, int], data: Data) -> None:
    """Refuse to train on fewer than two rows.

    Args:
        n_left: The number of rows that remain.
        left_out: The number of rows that are left out, by the reason.
        data: The data, for the remedy.

    Raises:
        UserError: Fewer than two rows remain.
    """
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
