"""Conversations, turned into text by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import kind_of, remedy_for, take
from raysearch.calibration.formats.base import Dialogue, Format
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError
from raysearch.text.sentences import did_you_mean

#: The names of the three roles in data sets: OpenAI's and ShareGPT's.
_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
_CALLS = ("tool_calls", "function_calls", "function_call")
_LEAVE_OUT = "leave the row out, or set data.unusable=skip"


@dataclass(frozen=True)
class ChatFormat(Format):
    """Conversations whose answers are the assistant's turns.

    Args:
        messages: The field of the turns: a list of ``{"role": …, "content": …}``, or of ``{"from": …, "value": …}``.
            The content may be a list of text parts, which are joined by line breaks.
        unusable: The treatment of conversations with tools, with empty turns, or without an answer: ``refuse`` stops
            with an error at the first one, ``skip`` leaves them out.
        thinking: Whether the chat template requests thinking before the answer; None for the template's default.
    """

    messages: str = "messages"
    unusable: Literal["refuse", "skip"] = "refuse"
    thinking: bool | None = None

    offers = frozenset({Form.TEXT, Form.PROMPT})
    draws = ItemOptions

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Dialogue | None:
        turns = take(row, "messages", self.messages, where)
        if not isinstance(turns, list) or not turns:
            kind = "an empty list" if turns == [] else kind_of(turns)
            remedy = remedy_for(turns, 'write [{"role": "user", "content": …}, …]')
            raise UserError(f"{where} holds {kind} in data.messages={self.messages}; {remedy}")
        for number, turn in enumerate(turns, start=1):
            # This is a mistake of the data set, not of the row, so `unusable=skip` does not skip the row.
            if not isinstance(turn, Mapping) or not {"role", "from"} & set(turn):
                raise UserError(_no_message(number, where))
        try:
            messages = tuple(_turn(turn, number, where) for number, turn in enumerate(turns, start=1))
            if "assistant" not in (role for role, _ in messages):
                raise UserError(f"{where} has no turn of the assistant, so nothing is answered; {_LEAVE_OUT}")
        except UserError:
            if self.unusable == "skip":
                return None
            raise
        return Dialogue(messages, self.thinking)


def _joined(parts: list[Any], number: int, where: str) -> str:
    """Return the text of a turn that is a list of parts: ``[{"type": "text", "text": …}, …]``."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else kind_of(part)
            raise UserError(
                f'turn {number} of {where} has a part that is not text ({kind}); write {{"type": "text", "text": …}}, '
                f"or {_LEAVE_OUT}"
            )
    return "\n".join(part["text"] for part in parts)


def _no_message(number: int, where: str) -> str:
    return f'turn {number} of {where} is not a message; write {{"role": "user", "content": …}}'


def _turn(turn: Mapping[str, Any], number: int, where: str) -> tuple[str, str]:
    """Return the role and the content of a turn."""
    if not ({"role", "content"} <= set(turn) or {"from", "value"} <= set(turn)):
        raise UserError(_no_message(number, where))
    is_openai = "role" in turn
    role = turn["role"] if is_openai else turn["from"]
    content = turn["content"] if is_openai else turn["value"]
    if not isinstance(role, str) or role not in _ROLES:
        raise UserError(
            f"turn {number} of {where} has the role {role!r} ({did_you_mean(str(role), _ROLES)}); {_LEAVE_OUT}"
        )
    if any(turn.get(key) for key in _CALLS):
        raise UserError(f"turn {number} of {where} calls a tool, which is not in its text; {_LEAVE_OUT}")
    if isinstance(content, list):
        content = _joined(content, number, where)
    if not isinstance(content, str) or not content.strip():
        raise UserError(f"turn {number} of {where} has no text; {_LEAVE_OUT}")
    return _ROLES[role], content
