"""Measures how far generated texts degenerate: repetition within an answer, and similarity within and between answers.

This is the only module that imports nltk, and it does so on first use. The trained English sentence splitter of nltk
needs a download. So this module uses the untrained splitter, with the abbreviations below.

Source: section 3.1 of `On the Limits of Layer Pruning for Generative Reasoning`; Self-BLEU between answers: `Texygen`,
Zhu et al. 2018.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysearch.generation.score import ScoredText
from raysearch.generation.scoring import SYNTAX

#: The numbers of `describe_texts` that tables show: key, title, unit, factor, and whether more is better.
DESCRIBED = (
    ("rep_4", "rep-4", "%", 1, False),
    ("self_bleu_within", "Self-BLEU within", "%", 100, False),
    ("self_bleu_across", "Self-BLEU", "%", 100, False),
    ("cut_off", "cut off", "%", 100, False),
    ("empty", "empty", "%", 100, False),
    ("tokens", "length", "tokens", 1, False),
    ("parses", "is Python", "%", 100, True),
    ("base", "base tests", "%", 100, True),
)

_ABBREVIATIONS = "dr mr mrs ms prof st jr sr vs etc e.g i.e u.s u.k u.n a.m p.m fig inc ltd co corp approx"
_N = 4  # the longest n-gram
_SMOOTHED_ZERO = 0.1  # in place of 0 common n-grams: smoothing method 1 of Chen and Cherry


@dataclass(frozen=True)
class Degeneration:
    """Measures of degeneration; None if no text is long enough."""

    #: Percent of an answer's 4-grams that repeat an earlier 4-gram; mean over answers of 4 words or more.
    rep_4: float | None
    #: BLEU-4 of each sentence of 4 words or more against the other sentences of its answer, 0 … 1; mean over sentences,
    #: then answers. The paper calls this Self-BLEU4.
    self_bleu_within: float | None
    #: BLEU-4 of each answer of 4 words or more against all other such answers, 0 … 1; the usual Self-BLEU.
    self_bleu_across: float | None
    words: float | None  #: mean number of words and punctuation marks of an answer


def degeneration(texts: Iterable[str]) -> Degeneration:
    """Return the measures of degeneration of texts, in a time that is proportional to their length."""
    answers = [sentences(text) for text in texts]
    answer_words = [[word for sentence in answer for word in sentence] for answer in answers]
    long_answers = [words for words in answer_words if len(words) >= _N]
    scores_within = [self_bleu_within(answer) for answer in answers]
    return Degeneration(
        rep_4=_mean([rep_4(words) for words in long_answers]),
        self_bleu_within=_mean([score for score in scores_within if score is not None]),
        self_bleu_across=_mean(self_bleu(long_answers)),
        words=_mean([len(words) for words in answer_words]),
    )


def describe_texts(texts: Sequence[ScoredText], code: bool) -> Mapping[str, Any]:
    """Return the properties of a task's answers besides their scores, as plain values.

    Args:
        texts: The answers.
        code: Whether the answers are Python code.

    Returns:
        ``cut_off``: the share of answers that end at the limit of tokens. ``empty``: the share of answers without a
        word; for code, an empty answer is Python if its opening is. ``tokens``: the mean length. ``failures``: the
        number of answers of each failure class. ``parses``: for code, the share of answers that are Python. ``base``:
        for code with two sets of tests, the share of answers that pass the first set. Also the numbers of
        `Degeneration`.
    """
    n = max(1, len(texts))
    passed_base = [text.score.base for text in texts if text.score.base is not None]
    failures = Counter(text.score.failure for text in texts if text.score.failure is not None)
    properties: dict[str, Any] = {
        "n_items": len(texts),
        "cut_off": sum(text.cut_off for text in texts) / n,
        "empty": sum(not text.text.strip() for text in texts) / n,
        "tokens": sum(text.n_tokens for text in texts) / n,
        **vars(degeneration([text.text for text in texts])),
    }
    if failures:
        properties["failures"] = dict(failures.most_common())
    if code:
        properties["parses"] = 1 - sum(failures[failure] for failure in SYNTAX) / n
    if passed_base:
        properties["base"] = sum(passed_base) / len(passed_base)
    return properties


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence in lower case, split by nltk."""
    splitter, tokenizer = _nltk()
    return [tokenizer.tokenize(sentence.lower()) for sentence in splitter.tokenize(text)]


@functools.cache
def _nltk() -> tuple[Any, Any]:
    """Return nltk's splitter of sentences and its splitter of words."""
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()


def rep_4(words: Sequence[str]) -> float:
    """Return the percentage of 4-grams that repeat an earlier 4-gram; the text must have 4 words or more."""
    counts = _ngrams(words, _N)
    return 100 * (1 - len(counts) / counts.total())


def self_bleu_within(answer: Sequence[Sequence[str]]) -> float | None:
    """Return the mean BLEU-4 of an answer's sentences against its other sentences; None if there is no pair."""
    scores = self_bleu(answer)
    return _mean([score for score, sentence in zip(scores, answer, strict=False) if len(sentence) >= _N])


class _LargestCounts(NamedTuple):
    """The two largest counts of an n-gram in a text."""

    first: int
    text_index: int  #: the text with the first count
    second: int  #: the largest count of all other texts

    def without(self, text_index: int) -> int:
        """Return the largest count of all texts but one."""
        return self.second if text_index == self.text_index else self.first


def self_bleu(texts: Sequence[Sequence[str]]) -> list[float]:
    """Return the BLEU-4 of each text against all other texts, 0 … 1; an empty list if there is only one text.

    The result equals nltk's ``sentence_bleu(others, text, smoothing_function=SmoothingFunction().method1)``. nltk
    counts the n-grams of all other texts for each text. This function counts them once, and stores for each n-gram its
    two largest counts, which are sufficient for the clipped counts.
    """
    if len(texts) < 2:
        return []
    logs = [0.0] * len(texts)
    has_no_common_word = [False] * len(texts)
    for n in range(1, _N + 1):
        counts = [_ngrams(text, n) for text in texts]
        largest: dict[tuple[str, ...], _LargestCounts] = {}
        for text_index, ngram_counts in enumerate(counts):
            for ngram, count in ngram_counts.items():
                before = largest.get(ngram, _LargestCounts(0, -1, 0))
                if count > before.first:
                    largest[ngram] = _LargestCounts(count, text_index, before.first)
                else:
                    largest[ngram] = _LargestCounts(before.first, before.text_index, max(before.second, count))
        for text_index, ngram_counts in enumerate(counts):
            n_common = 0
            for ngram, count in ngram_counts.items():
                n_common += min(count, largest[ngram].without(text_index))
            if n == 1 and n_common == 0:
                has_no_common_word[text_index] = True
            logs[text_index] += math.log((n_common or _SMOOTHED_ZERO) / max(1, ngram_counts.total())) / _N
    lengths = sorted(map(len, texts))
    return [
        0.0 if has_no_common_word[text_index] else _brevity(len(text), lengths) * math.exp(logs[text_index])
        for text_index, text in enumerate(texts)
    ]


def _brevity(length: int, lengths: Sequence[int]) -> float:
    """Return BLEU's penalty of a short text, by the closest length of the other texts.

    `lengths` are the lengths of all texts, this one included, in ascending order.
    """
    place = bisect.bisect_left(lengths, length)
    neighbours = [lengths[near] for near in (place - 1, place + 1) if 0 <= near < len(lengths)]
    closest = min(neighbours, key=lambda neighbour: (abs(neighbour - length), neighbour))
    return 1.0 if length > closest else math.exp(1 - closest / length)


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
