"""How far generated texts degenerate: repetition within an answer, and likeness within and between answers.

The only place of nltk, which loads when it is first needed. Its trained splitter of English sentences is a download;
here its untrained one splits them, which knows the abbreviations below, so that nothing is downloaded.

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
from typing import Any

from raysearch.generation.score import ScoredText
from raysearch.generation.scoring import SYNTAX

#: The numbers of `describe_texts` that tables show: title, unit, factor, and whether more is better.
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
_NOTHING_IN_COMMON = 0.1  # n-grams, where there is none: smoothing method 1 of Chen and Cherry


@dataclass(frozen=True)
class Degeneration:
    """How far texts degenerate; None where no text is long enough to say."""

    #: Percent of an answer's 4-grams that repeat an earlier one; mean over answers of 4 words or more.
    rep_4: float | None
    #: BLEU-4 of each sentence of 4 words or more against the other sentences of its answer, 0 … 1; mean over sentences,
    #: then answers. The paper calls this Self-BLEU4.
    self_bleu_within: float | None
    #: BLEU-4 of each answer of 4 words or more against all other such answers, 0 … 1; the usual Self-BLEU.
    self_bleu_across: float | None
    words: float | None  #: mean number of words and punctuation marks of an answer


def degeneration(texts: Iterable[str]) -> Degeneration:
    """Return how far texts degenerate; the time grows with their length alone, not with its square."""
    answers = [sentences(text) for text in texts]
    words = [[word for sentence in answer for word in sentence] for answer in answers]
    long = [answer for answer in words if len(answer) >= _N]
    within = [one for answer in answers if (one := self_bleu_within(answer)) is not None]
    return Degeneration(
        rep_4=_mean([rep_4(answer) for answer in long]),
        self_bleu_within=_mean(within),
        self_bleu_across=_mean(self_bleu(long)),
        words=_mean([len(answer) for answer in words]),
    )


def describe_texts(texts: Sequence[ScoredText], code: bool) -> Mapping[str, Any]:
    """Return what the answers of a task show besides their scores, plain values.

    Returns:
        ``cut_off``: the share that ends at the limit of tokens; ``empty``: the share without a word, which is Python
        after an opening that is; ``tokens``: the mean length; ``failures``: how many fail in each way; ``parses``:
        for code, the share that is Python; ``base``: for code with two sets of tests, the share that passes the first;
        and the numbers of `Degeneration`.
    """
    n = max(1, len(texts))
    based = [one.score.base for one in texts if one.score.base is not None]
    failures = Counter(one.score.failure for one in texts if one.score.failure is not None)
    return {
        "n_items": len(texts),
        "cut_off": sum(one.cut_off for one in texts) / n,
        "empty": sum(not one.text.strip() for one in texts) / n,
        "tokens": sum(one.n_tokens for one in texts) / n,
        **vars(degeneration([one.text for one in texts])),
        **({"failures": dict(failures.most_common())} if failures else {}),
        **({"parses": 1 - sum(failures[one] for one in SYNTAX) / n} if code else {}),
        **({"base": sum(based) / len(based)} if based else {}),
    }


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence, in lower case, as nltk's splitters give them."""
    splitter, tokenizer = _nltk()
    return [tokenizer.tokenize(sentence.lower()) for sentence in splitter.tokenize(text)]


@functools.cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    known = PunktParameters()
    known.abbrev_types.update(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(known), NLTKWordTokenizer()


def rep_4(words: Sequence[str]) -> float:
    """Return the percentage of 4-grams that repeat an earlier one, of 4 words or more."""
    counts = _ngrams(words, _N)
    return 100 * (1 - len(counts) / counts.total())


def self_bleu_within(answer: Sequence[Sequence[str]]) -> float | None:
    """Return the mean BLEU-4 of an answer's sentences against its others; None where there is nothing to compare."""
    scores = self_bleu(answer)
    return _mean([score for score, sentence in zip(scores, answer, strict=False) if len(sentence) >= _N])


def self_bleu(texts: Sequence[Sequence[str]]) -> list[float]:
    """Return the BLEU-4 of each text against all others, 0 … 1; nothing where there is only one.

    It equals nltk's ``sentence_bleu(others, text, smoothing_function=SmoothingFunction().method1)``. That counts
    the n-grams of all others for each text; this counts them once, and knows for each n-gram the two texts that have
    it most often: all that clipping needs.
    """
    if len(texts) < 2:
        return []
    logs = [0.0] * len(texts)
    lost = [False] * len(texts)
    for n in range(1, _N + 1):
        counts = [_ngrams(text, n) for text in texts]
        best: dict[tuple[str, ...], tuple[int, int, int]] = {}  # most, in which text, and most of all other texts
        for at, own in enumerate(counts):
            for ngram, times in own.items():
                most, where, second = best.get(ngram, (0, -1, 0))
                best[ngram] = (times, at, most) if times > most else (most, where, max(second, times))
        for at, own in enumerate(counts):
            common = 0
            for ngram, times in own.items():
                most, where, second = best[ngram]
                common += min(times, second if where == at else most)
            lost[at] |= n == 1 and common == 0
            logs[at] += math.log((common or _NOTHING_IN_COMMON) / max(1, own.total())) / _N
    lengths = sorted(map(len, texts))
    return [0.0 if lost[at] else _brevity(len(text), lengths) * math.exp(logs[at]) for at, text in enumerate(texts)]


def _brevity(length: int, lengths: Sequence[int]) -> float:
    """Return BLEU's penalty of a text of a length, from the closest length among the others; `lengths` has its own."""
    at = bisect.bisect_left(lengths, length)  # one of its own length, which may be itself
    others = [lengths[place] for place in (at - 1, at + 1) if 0 <= place < len(lengths)]
    closest = min(others, key=lambda other: (abs(other - length), other))
    return 1.0 if length > closest else math.exp(1 - closest / length)


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
