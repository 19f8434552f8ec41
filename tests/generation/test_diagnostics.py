"""Measures of degeneration equal numbers computed by hand, and Self-BLEU equals nltk's BLEU."""

from __future__ import annotations

import time

import numpy as np
import pytest

from raysearch.generation.diagnostics import degeneration, rep_4, self_bleu, self_bleu_within, sentences


def nltk_self_bleu(texts: list[list[str]]) -> list[float]:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smooth = SmoothingFunction().method1
    return [
        sentence_bleu(texts[:index] + texts[index + 1 :], text, smoothing_function=smooth)
        for index, text in enumerate(texts)
    ]


def test_self_bleu_is_nltks_bleu() -> None:
    rng = np.random.default_rng(0)
    for case in range(60):
        n_words = int(rng.integers(1, 12))
        lengths = rng.integers(0, 25, size=int(rng.integers(2, 9)))
        texts = [[f"w{word}" for word in rng.integers(0, n_words, length)] for length in lengths]
        assert self_bleu(texts) == pytest.approx(nltk_self_bleu(texts), rel=1e-12, abs=1e-300), f"{case}: {texts}"


def test_real_sentences_are_compared_as_nltk_does() -> None:
    text = (
        "Janet sells 16 eggs a day. She eats 3 of them for breakfast. She eats 3 of them for lunch, doesn't she? "
        "Dr. Smith sells 16 eggs a day, e.g. on Monday. So the answer is $18.\n\nNo."
    )
    split = sentences(text)
    assert [len(sentence) for sentence in split] == [7, 8, 12, 12, 7, 2], split
    assert split[2][-5:] == [",", "does", "n't", "she", "?"]
    expected = [score for score, sentence in zip(nltk_self_bleu(split), split, strict=True) if len(sentence) >= 4]
    assert self_bleu_within(split) == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_numbers_that_are_known() -> None:
    assert rep_4(list("abcdef")) == 0
    assert rep_4(list("abcdabcd")) == pytest.approx(100 / 5)
    assert rep_4(["a"] * 103) == 99
    assert self_bleu([]) == self_bleu([["a"]]) == []
    assert self_bleu([list("abcde")] * 3) == [1.0] * 3
    same = degeneration(["We find that it is four. We find that it is four."] * 2)
    assert same.rep_4 == pytest.approx(100 * 4 / 11)
    assert (same.self_bleu_within, same.self_bleu_across) == (1.0, 1.0)
    assert same.words == 14
    nothing = degeneration(["", "No."])
    assert (nothing.rep_4, nothing.self_bleu_within, nothing.self_bleu_across, nothing.words) == (None, None, None, 1.0)
    assert degeneration([]).words is None


def test_many_long_answers_take_no_longer_than_their_words() -> None:
    rng = np.random.default_rng(0)
    texts = [[str(word) for word in rng.integers(0, 2000, 200)] for _ in range(1000)]
    start = time.process_time()
    assert len(self_bleu(texts)) == 1000
    assert time.process_time() - start < 20, "nltk takes many minutes"
