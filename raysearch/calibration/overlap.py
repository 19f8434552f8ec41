"""What texts have in common with samples by copying."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.packing import n_shared

_RUN = 13  # words in a row that two texts have in common by copying: GPT-3's measure of contamination
_FEWEST = 4  # words of a text that is no everyday phrase
#: A word; or a character of a script that has no spaces between words: Thai to Khmer, Chinese, Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[^\W{_UNSPACED}]+|[{_UNSPACED}]")

#: The words that more than half of some texts begin with, and those that they end with, backwards.
Template = tuple[Sequence[str], Sequence[str]]


class SeenTexts:
    """The words of everything that a model was searched or is assessed on."""

    def __init__(self, calibrations: Iterable[Calibration], tokenizer: Any) -> None:
        self._calibrations, self._tokenizer = list(calibrations), tokenizer
        self._runs = cache(lambda n: {run for words in self._texts for run in _runs(words, n)})

    @cached_property
    def _texts(self) -> list[list[str]]:
        return [
            words_of(self._tokenizer.decode(ids[:length].tolist(), skip_special_tokens=True))
            for one in self._calibrations
            for shard in one.shards
            for ids, length in zip(shard.input_ids, shard.lengths, strict=True)
        ]

    def shared(self, text: str, template: Template = ((), ())) -> set[int]:
        """Return the runs of 13 words that a text has in common with samples, hashed.

        A text of 4 … 12 words must match as a whole; one with fewer outside its template is compared together with it.
        """
        whole, (before, after) = words_of(text), template
        words = whole[n_shared(whole, before) :]
        words = words[: len(words) - n_shared(words[::-1], after)]
        if len(words) >= _FEWEST:
            n = min(_RUN, len(words))
        else:
            words, n = whole, len(whole)
        return self._runs(n).intersection(_runs(words, n)) if n >= _FEWEST else set()


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters, without what stands between them."""
    return _WORD.findall(text.lower())


def _runs(words: Sequence[str], n: int) -> Iterator[int]:
    return (hash(tuple(words[at : at + n])) for at in range(len(words) - n + 1))
