"""Conversations as text in the model's own chat template, and the place of each turn in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from raysearch.calibration.formats.base import Dialogue, Item, Sample, Task
from raysearch.core.formatting import as_typed
from raysearch.errors import UserError

_MARK = re.compile("\ue000(\\d+)\ue001")  # private characters that stand for a turn's text

#: What stands where a template writes today's date, for a text that is the same tomorrow: the date that Llama's have
#: where none is known.
_DATE = datetime(2024, 7, 26)
_PARTS = [f"%{flag}{part}" for part in "aAbBdHIjmMpSyY" for flag in ("", "-")]
_WRITE_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('{part}', '{_DATE.strftime(part)}')" for part in _PARTS)
    + " }}{% endmacro %}\n"
)

Span = tuple[int, int]  #: first character, and the one after the last


def render(dialogue: Dialogue, tokenizer: Any, where: str) -> tuple[str, tuple[Span, ...]]:
    """Return a conversation as text, and the spans of the assistant's turns in it, each with the token that ends it.

    The template is run twice: on the turns, and on marks in their place. It writes the same text between the marks as
    between the turns, so a turn is found even if its text occurs elsewhere too.

    Raises:
        UserError: The template does not take the conversation, or rewrites its turns.
    """
    text = apply_template(dialogue.messages, tokenizer, where, thinking=dialogue.thinking)
    marks = [(role, f"\ue000{n}\ue001") for n, (role, _) in enumerate(dialogue.messages)]
    marked = apply_template(marks, tokenizer, where, thinking=dialogue.thinking)
    before, *rest = _MARK.split(marked)  # the beginning, then for each turn its number and the text after it
    spans = []
    at = len(before) if text.startswith(before) else len(text)
    for number, after in zip(map(int, rest[::2]), rest[1::2], strict=True):
        role, content = dialogue.messages[number]
        # Templates leave a turn as it is, or without the white space around it.
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
    """Return how many characters after an answer the token that ends the turn takes; 0 where no such token follows.

    It is a token of its own in the vocabulary, such as ``<|im_end|>``, and only white space stands before it.
    """
    n_before = len(after) - len(after.lstrip())
    ends = [token for token in tokenizer.added_tokens_decoder.values() if after.startswith(token.content, n_before)]
    end = max(ends, key=lambda token: len(token.content), default=None)
    if end is None or not end.content.strip():
        return 0
    n_chars = n_before + len(end.content)
    # The token may take the white space behind it, too.
    return len(after) - len(after[n_chars:].lstrip()) if end.rstrip else n_chars


def render_prompt(dialogue: Dialogue, tokenizer: Any, where: str) -> tuple[str, str]:
    """Return a conversation up to the assistant's last turn, as a prompt for it; and that turn's text."""
    turns, answer = messages_of(dialogue, where)
    return apply_template(turns, tokenizer, where, ask=True, thinking=dialogue.thinking), answer


def messages_of(sample: Sample, where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the turns of any sample up to its answer, and the answer; of a conversation, the last one."""
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
    raise UserError(f"{where} has nothing to go on from before its answer; leave it out, or give data.prompt=…")


def render_task(task: Task, tokenizer: Any, where: str) -> tuple[str, bool]:
    """Return a task as a prompt that ends in the answer's opening, and whether it is in the model's chat template.

    A template that knows no system prompt gets it at the beginning of the question; so does a model without a template.
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
    """Return what `apply_template` does; a template that refuses a system prompt gets it before the first question."""
    try:
        return apply_template(messages, *args, **options)
    except UserError:
        if [role for role, _ in messages[:2]] != ["system", "user"]:
            raise
    (_, system), (_, first), *rest = messages
    return apply_template([("user", f"{system}\n\n{first}"), *rest], *args, **options)


def apply_template(
    messages: Sequence[tuple[str, str]], tokenizer: Any, where: str, ask: bool = False, thinking: bool | None = None
) -> str:
    """Return turns as text in the model's chat template.

    Args:
        messages: Each turn's role and content.
        tokenizer: A transformers tokenizer.
        where: Names them in messages: ``row 7``.
        ask: Whether the text ends in the opening of an answer.
        thinking: As of a `Task`.

    Raises:
        UserError: The model has no template, or one that cannot be used, knows no `thinking`, or does not take these
            turns.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("data.type=chat needs a model with a chat template, and this one has none; use data=questions")
    if thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
        raise UserError(
            f"data.thinking={as_typed(thinking)} is nothing that the model's chat template knows (enable_thinking); "
            "use data.thinking=null"
        )
    turns = [{"role": role, "content": content} for role, content in messages]
    options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    try:
        options["chat_template"] = undated(tokenizer.get_chat_template())
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask, **options))
    except Exception as error:  # whatever the template raises: roles it does not know, turns in the wrong order
        if type(error).__name__ not in ("TemplateError", "UndefinedError"):  # what a row can bring about
            why = f"the model's chat template cannot be used ({error})"
            raise UserError(f"{why}; mend it, or use data=questions with data.chat=false") from error
        raise UserError(
            f"{where} does not fit the model's chat template ({error}); mend the row, or leave it out"
        ) from error


def undated(template: Any) -> Any:
    """Return a chat template, or several by name, that writes the same date every day."""
    if isinstance(template, str):
        return _WRITE_DATE + template if "strftime_now" in template else template
    return {name: undated(one) for name, one in template.items()} if isinstance(template, Mapping) else template
