"""Texts of numbers, so that the tokens of a text can be read off it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class NumberTokenizer:
    """A token a number: ``"5 6\\n\\n7"`` is [5, 6, 7], after `bos` if there is one."""

    bos: tuple[int, ...] = ()

    def __call__(self, text: str, verbose: bool, return_special_tokens_mask: bool = False) -> Mapping[str, list[int]]:
        assert not verbose
        own = [*map(int, text.split())]
        mask = {"special_tokens_mask": [1] * len(self.bos) + [0] * len(own)} if return_special_tokens_mask else {}
        return {"input_ids": [*self.bos, *own], **mask}


@pytest.fixture
def tokenizer() -> NumberTokenizer:
    return NumberTokenizer()
