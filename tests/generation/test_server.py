"""A server that speaks OpenAI's protocol, or something else."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from raysearch.errors import UserError
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.generation.server import Server
from tests.sentences import Sentences


class Tokens:
    bos_token_id = None

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return "a"


def answering(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO(json.dumps(answer).encode())

    monkeypatch.setattr("urllib.request.urlopen", urlopen)


def test_what_is_no_list_of_models_is_refused(monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    answers: list[Any] = [[1], 5, {"data": None}, {"data": [{"name": "x"}]}]
    for answer in answers:
        answering(answer, monkeypatch)
        with sentences.refused(UserError):
            Server.at("http://h/v1")


def test_what_is_no_completion_is_refused(monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    answers: list[Any] = [[], {}, {"choices": []}, {"choices": None}, {"choices": [{"text": None}]}]
    for answer in answers:
        answering(answer, monkeypatch)
        with sentences.refused(UserError):
            Server("http://h/v1", "m").generate([Prompt((3, 4), 5, ("x",))], Tokens(), Decoding())


def test_a_server_need_not_count_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for usage in ({}, {"usage": None}, {"usage": {"completion_tokens": None}}):
        answering({"choices": [{"text": "b", "finish_reason": "stop"}], **usage}, monkeypatch)
        assert Server("http://h/v1", "m").generate([Prompt((3,), 5)], Tokens(), Decoding()) == [Written("b", 0, False)]


def test_an_address_that_is_none_is_refused(sentences: Sentences) -> None:
    for url in ("http://[bad/v1", "http://a b/v1"):
        with sentences.refused(UserError):
            Server.at(url)
