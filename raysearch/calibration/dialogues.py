"""Renders conversations as text by the model's own chat template, and finds the turns in that text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from raysearch.calibration.formats.base import Dialogue, Item, Sample, Task
from raysearch.errors import UserError
from raysearch.text.sentences import as_typed

_MARK = re.compile("\ue000(\\d+)\ue001")  # private characters in place of a turn's text

#: The date that replaces today's date in templates, so that the text is the same on every day. It is the date that
#: Llama's templates use by default.
_DATE = datetime(2024, 7, 26)
_PARTS = [f"%{flag}{part}" for part in "aAbBdHIjmMpSyY" for flag in ("", "-")]
_WRITE_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('{part}', '{_DATE.strftime(part)}')" for part in _PARTS)
    + " }}{% endmacro %}\n"
)

Span = tuple[int, int]  #: the first character, and the character after the last


def render(dialogue: Dialogue, tokenizer: Any, where: str, n_images: int | None = None) -> tuple[str, tuple[Span, ...]]:
    """Return a conversation as text, and the spans of the assistant's turns, each with the token that ends the turn.

    The template runs twice: on the turns, and on marks in place of the turns. It writes the same text between the marks
    as between the turns. So a turn is found even if its text occurs elsewhere too.

    Args:
        dialogue: The conversation.
        tokenizer: A transformers tokenizer with a chat template.
        where: The name of the row in messages: ``row 7``.
        n_images: See `apply_template`.

    Returns:
        The text, and the first and the last place plus 1 of each such turn, in characters.

    Raises:
        UserError: The template refuses the conversation, or rewrites its turns.
    """
    options: dict[str, Any] = {"thinking": dialogue.thinking, "n_images": n_images}
    text = apply_template(dialogue.messages, tokenizer, where, **options)
    marks = [(role, f"\ue000{n}\ue001") for n, (role, _) in enumerate(dialogue.messages)]
    marked = apply_template(marks, tokenizer, where, **options)
    before, *numbers_and_texts = _MARK.split(marked)  # after the beginning: each turn's number and the text behind it
    spans = []
    at = len(before) if text.startswith(before) else len(text)
    for number, after in zip(map(int, numbers_and_texts[::2]), numbers_and_texts[1::2], strict=True):
        role, content = dialogue.messages[number]
        # A template copies a turn as it is, or strips the white space around it.
        turn = next((turn for turn in (content, content.strip()) if text.startswith(turn + after, at)), None)
        if turn is None:
            break
        if role == "assistant":
            spans.append((at, at + len(turn) + _length_of_end(after, tokenizer)))
        at += len(turn + after)
    if at != len(text) or not spans:
        raise UserError(f"{where} is rewritten by the model's chat template; leave the row out, or use data=questions")
    return text, tuple(spans)


def _length_of_end(after: str, tokenizer: Any) -> int:
    """Return the length in characters of the token that ends a turn, with white space before it; 0 if there is none.

    Such a token is a special token of the vocabulary, such as ``<|im_end|>``. `after` is the text behind the turn.
    """
    n_before = len(after) - len(after.lstrip())
    ends = [token for token in tokenizer.added_tokens_decoder.values() if after.startswith(token.content, n_before)]
    end = max(ends, key=lambda token: len(token.content), default=None)
    if end is None or not end.content.strip():
        return 0
    n_chars = n_before + len(end.content)
    # The token may include the white space behind it.
    return len(after) - len(after[n_chars:].lstrip()) if end.rstrip else n_chars


def render_prompt(dialogue: Dialogue, tokenizer: Any, where: str) -> tuple[str, str]:
    """Return the prompt for the assistant's last turn, and that turn's text.

    Args:
        dialogue: The conversation.
        tokenizer: A transformers tokenizer with a chat template.
        where: The name of the row in messages: ``row 7``.

    Returns:
        The text of the prompt, up to the opening of the answer; and the text of the answer.

    Raises:
        UserError: The template refuses the conversation, or it begins with its only answer.
    """
    turns, answer = messages_of(dialogue, where)
    return apply_template(turns, tokenizer, where, ask=True, thinking=dialogue.thinking), answer


def messages_of(sample: Sample, where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the turns of any sample before its answer, and the answer; of a conversation, the last answer.

    Args:
        sample: The sample as text.
        where: The name of the row in messages: ``row 7``.

    Returns:
        The role and content of each turn before the answer; and the answer, stripped.

    Raises:
        UserError: The sample has no text before its answer.
    """
    match sample:
        case Dialogue():
            last = max(number for number, (role, _) in enumerate(sample.messages) if role == "assistant")
            if last:
                return sample.messages[:last], sample.messages[last][1].strip()
        case Task():
            system = (("system", sample.system),) if sample.system else ()
            return (*system, ("user", sample.user.strip())), sample.answer.text.strip()
        case Item() if sample.prompt.strip() and not sample.openings:
            answer = sample.choices[sample.gold] if sample.answer is None else sample.answer
            return (("user", sample.prompt.strip()),), answer.strip()
    raise UserError(f"{where} has no text before its answer; leave it out, or give data.prompt=…")


def render_task(task: Task, tokenizer: Any, where: str) -> tuple[str, bool]:
    """Return a task as a prompt that ends in the answer's opening, and whether the prompt uses the chat template.

    If the template supports no system prompt, or the model has no template, the system prompt precedes the question.

    Args:
        task: The task.
        tokenizer: A transformers tokenizer.
        where: The name of the row in messages: ``row 7``.

    Returns:
        The text of the prompt; and True if the chat template wrote it.

    Raises:
        UserError: The task needs a chat template and the model has none, or the template refuses the task.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if task.chat and not has_template:
        raise UserError("data.chat=true needs a model with a chat template, and this one has none; use data.chat=null")
    turns = [("system", task.system)] if task.system else []
    turns.append(("user", task.user))
    if task.chat is False or not has_template:
        return "\n\n".join([*(content for _, content in turns), task.answer.opening]), False
    return fit_template(turns, tokenizer, where, ask=True, thinking=task.thinking) + task.answer.opening, True


def fit_template(messages: Sequence[tuple[str, str]], *args: Any, **options: Any) -> str:
    """Return turns in the chat template; put the system prompt before the first question if the template refuses it.

    Args:
        messages: Each turn's role and content.
        args: The other arguments of `apply_template`, by position.
        options: The other arguments of `apply_template`, by name.

    Returns:
        The text of the turns.

    Raises:
        UserError: The template refuses the turns in both forms.
    """
    try:
        return apply_template(messages, *args, **options)
    except UserError:
        if [role for role, _ in messages[:2]] != ["system", "user"]:
            raise
    (_, system_text), (_, user_text), *later_messages = messages
    return apply_template([("user", f"{system_text}\n\n{user_text}"), *later_messages], *args, **options)


def apply_template(
    messages: Sequence[tuple[str, str]],
    tokenizer: Any,
    where: str,
    ask: bool = False,
    thinking: bool | None = None,
    n_images: int | None = None,
) -> str:
    """Return turns as text in the model's chat template.

    Args:
        messages: Each turn's role and content.
        tokenizer: A transformers tokenizer.
        where: The name of the row in messages: ``row 7``.
        ask: Whether the text ends in the opening of an answer.
        thinking: Whether the template requests thinking before the answer; None for the template's default.
        n_images: The number of images before the text of the first turn; None if the turns are texts, not lists of
            parts, as in the template of a model that reads text alone.

    Returns:
        The text of the turns, with a placeholder for each image.

    Raises:
        UserError: The model has no template, or its template is broken, does not support `thinking`, or refuses these
            turns.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("data.type=chat needs a model with a chat template, and this one has none; use data=questions")
    if thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
        raise UserError(
            f"data.thinking={as_typed(thinking)} is not supported by the model's chat template (enable_thinking); "
            "use data.thinking=null"
        )
    turns: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in messages]
    if n_images is not None:
        turns = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
        turns[0]["content"][:0] = [{"type": "image"}] * n_images
    options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    try:
        options["chat_template"] = undated(tokenizer.get_chat_template())
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask, **options))
    except Exception as error:  # a template may raise anything, such as for unknown roles or a wrong order of turns
        if type(error).__name__ not in ("TemplateError", "UndefinedError"):  # the errors that a row can cause
            raise UserError(
                f"the model's chat template cannot be used ({error}); mend it, or use data=questions with "
                "data.chat=false"
            ) from error
        raise UserError(
            f"{where} does not fit the model's chat template ({error}); mend the row, or leave it out"
        ) from error


def undated(template: Any) -> Any:
    """Return a chat template, or several by name, that writes the same date on every day."""
    if isinstance(template, str):
        return _WRITE_DATE + template if "strftime_now" in template else template
    if isinstance(template, Mapping):
        return {name: undated(named_template) for name, named_template in template.items()}
    return template
