"""Detects text that was copied: runs of words that a text and the samples of calibrations have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.packing import n_shared

_RUN = 13  # two texts with so many equal words in a row share copied text: GPT-3's measure of contamination
_FEWEST = 4  # a text of fewer words may be an everyday phrase
#: Characters of scripts that have no spaces between words: Thai to Khmer, Chinese, Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
#: A word; in such a script, each character counts as a word.
_WORD = re.compile(rf"[^\W{_UNSPACED}]+|[{_UNSPACED}]")

#: The words that more than half of a set of texts begin with, and those that they end with, in reverse order.
Template = tuple[Sequence[str], Sequence[str]]


class SeenTexts:
    """The words of all samples that a model was searched or is assessed on.

    Args:
        calibrations: The samples.
        tokenizer: The transformers tokenizer that their token ids are from.
    """

    def __init__(self, calibrations: Iterable[Calibration], tokenizer: Any) -> None:
        self._calibrations = list(calibrations)
        self._tokenizer = tokenizer
        self._runs = cache(lambda n: {run for words in self._texts for run in _runs(words, n)})

    @cached_property
    def _texts(self) -> list[list[str]]:
        return [
            words_of(self._tokenizer.decode(ids[:length].tolist(), skip_special_tokens=True))
            for calibration in self._calibrations
            for shard in calibration.shards
            for ids, length in zip(shard.input_ids, shard.lengths, strict=True)
        ]

    def shared(self, text: str, template: Template = ((), ())) -> set[int]:
        """Return the hashes of the runs of 13 words that a text has in common with the samples.

        A text of 4 … 12 words must match as a whole. The words of the template are not compared, unless fewer than 4
        words remain without them.

        Args:
            text: The text.
            template: The words that the text may share with many others: at its beginning, and at its end.

        Returns:
            The hashes of the runs that occur in both; empty if the text shares nothing or is too short.
        """
        all_words = words_of(text)
        before, after = template
        words = all_words[n_shared(all_words, before) :]
        words = words[: len(words) - n_shared(words[::-1], after)]
        if len(words) < _FEWEST:
            words = all_words
            n = len(all_words)
        else:
            n = min(_RUN, len(words))
        return self._runs(n).intersection(_runs(words, n)) if n >= _FEWEST else set()


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without spaces and punctuation."""
    return _WORD.findall(text.lower())


def _runs(words: Sequence[str], n: int) -> Iterator[int]:
    return (hash(tuple(words[at : at + n])) for at in range(len(words) - n + 1))
