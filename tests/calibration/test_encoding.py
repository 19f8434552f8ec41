"""Spans counted by hand: with a token a character, an answer of n characters has n tokens, and its space one."""

from __future__ import annotations

from typing import Any

import pytest

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.encoding import encode_items
from raysearch.calibration.formats.base import Dialogue, Item, Sample, Text
from raysearch.calibration.items import ItemOptions, Located
from raysearch.calibration.packing import packed_lengths
from raysearch.generation.answer import Answer
from tests.calibration.tokenizers import BOS, EOS, PLAIN, SlowCharacters, characters, words
from tests.sentences import Sentences

CAT = Item("Who?", ("dog", "kitten"), 1)


def encode(
    *samples: Sample,
    form: Form = Form.CHOICES,
    tokenizer: Any = None,
    template: str | None = None,
    seq_len: int = 64,
    score: Any = "answer",
) -> tuple[Batch, int]:
    located = [Located(f"row {number}", sample) for number, sample in enumerate(samples, start=1)]
    options = ItemOptions(samples=1, seq_len=seq_len, score=score)
    return encode_items(located, form, options, tokenizer or characters(template=template))


def rows(batch: Batch) -> list[str]:
    return ["".join(map(chr, ids[:length])) for ids, length in zip(batch.input_ids, batch.lengths, strict=True)]


def scored(batch: Batch) -> list[str]:
    return ["".join(map(chr, ids[marks])) for ids, marks in zip(batch.input_ids, batch.scored, strict=True)]


class TestChoices:
    def test_a_row_a_choice_of_which_the_choice_is_scored(self) -> None:
        batch, truncated = encode(CAT)
        assert rows(batch) == ["Who? dog", "Who? kitten"]
        assert truncated == 0
        assert scored(batch) == [" dog", " kitten"]
        assert batch.choices is not None
        assert batch.answers is None
        assert batch.choices.item.tolist() == [0, 0]
        assert batch.choices.gold.tolist() == [False, True]
        assert batch.choices.characters.tolist() == [3, 6]

    def test_items_may_have_different_numbers_of_choices(self) -> None:
        batch, _ = encode(CAT, Item("How many?", ("one", "two", "three"), 2))
        assert batch.choices is not None
        assert batch.choices.item.tolist() == [0, 0, 1, 1, 1]
        assert batch.n_samples == 2
        assert batch.choices.gold.tolist() == [False, True, False, False, True]

    def test_spaces_at_the_end_of_a_prompt_are_the_answers(self) -> None:
        assert scored(encode(Item("Who? ", ("a", "b"), 0))[0]) == ["  a", "  b"]
        assert scored(encode(Item("Who? ", ("a", "b"), 0, separator=""))[0]) == [" a", " b"]
        assert scored(encode(Item("Who?\n", ("a", "b"), 0, separator=""))[0]) == ["a", "b"]

    def test_a_separator_of_ones_own(self) -> None:
        batch, _ = encode(Item("Who?", ("a", "b"), 0, separator=" The "))
        assert rows(batch)[0] == "Who? The a"
        assert scored(batch)[0] == " The a"
        assert batch.choices is not None
        assert batch.choices.characters.tolist() == [1, 1]

    def test_whole_texts_but_for_their_first_token(self) -> None:
        whole = Item("", ("It is me.", "It is I."), 0)
        assert scored(encode(whole)[0]) == ["t is me.", "t is I."]
        assert scored(encode(whole, tokenizer=characters(bos=True))[0]) == ["It is me.", "It is I."]

    def test_openings_are_not_scored(self) -> None:
        batch, _ = encode(Item("P. ", ("is big.", "is big."), 0, openings=("The box", "The bag")))
        assert rows(batch) == ["P. The box is big.", "P. The bag is big."]
        assert scored(batch) == [" is big.", " is big."]

    def test_words(self) -> None:
        batch, _ = encode(Item("who is it", ("a dog", "a big cat"), 0), tokenizer=words("who is it a dog big cat"))
        assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 5, 6]]
        assert batch.scored_per_row.tolist() == [2, 3]

    def test_a_tokenizer_without_offsets(self) -> None:
        batch, _ = encode(CAT, tokenizer=SlowCharacters())
        assert rows(batch) == ["Who? dog", "Who? kitten"], "the end that the tokenizer adds is not of the text"
        assert batch.scored[0].nonzero()[0].tolist() == [4, 5, 6, 7]

    def test_tokens_that_a_tokenizer_adds_at_the_end_are_left_out(self) -> None:
        tokenizer = characters(bos=True, eos=True)
        assert tokenizer("a")["input_ids"] == [BOS, ord("a"), EOS]
        for form in Form:
            batch, _ = encode(CAT, form=form, tokenizer=tokenizer)
            assert (batch.input_ids[:, 0] == BOS).all(), form
            assert EOS not in batch.input_ids, form


class TestText:
    def test_scores_the_right_answer(self) -> None:
        batch, _ = encode(CAT, form=Form.TEXT)
        assert rows(batch) == ["Who? kitten"]
        assert scored(batch) == [" kitten"]
        assert batch.choices is None

    def test_scores_all(self) -> None:
        assert scored(encode(CAT, form=Form.TEXT, score="all")[0]) == ["ho? kitten"]
        assert scored(encode(Text("abc"), form=Form.TEXT)[0]) == ["bc"]

    def test_scores_the_turns_of_the_assistant(self) -> None:
        talk = Dialogue((("user", "a"), ("assistant", "bc"), ("user", "d"), ("assistant", "ef")))
        tokenizer = characters(bos=True, template=PLAIN)
        batch, _ = encode(talk, form=Form.TEXT, tokenizer=tokenizer)
        end = chr(EOS)
        assert scored(batch) == [f"bc{end}ef{end}"], "and where each of them ends"
        assert BOS not in batch.input_ids, "the template says how a conversation begins"
        assert scored(encode(talk, form=Form.TEXT, tokenizer=tokenizer, score="all", seq_len=8)[0]) == ["user>a" + end]


class TestPrompt:
    def test_goes_on_from_the_prompt(self) -> None:
        batch, _ = encode(CAT, form=Form.PROMPT)
        assert rows(batch) == ["Who?"]
        assert batch.n_scored == 0
        assert batch.n_samples == 1
        assert batch.answers == (Answer("kitten", ("dog", "kitten")),)

    def test_an_open_question(self) -> None:
        item = Item("2 + 3 =", (" 5",), 0, separator="")
        assert encode(item, form=Form.PROMPT)[0].answers == (Answer("5"),)
        item = Item("2 + 3?", ("Adding gives 5.",), 0, answer="5")
        assert encode(item, form=Form.PROMPT)[0].answers == (Answer("5"),)

    def test_a_conversation(self) -> None:
        talk = Dialogue((("user", "a"), ("assistant", " b ")))
        batch, _ = encode(talk, form=Form.PROMPT, template=PLAIN)
        assert batch.answers == (Answer("b"),)
        assert batch.input_ids[0].tolist() == [*map(ord, "<user>a"), EOS, *map(ord, "<assistant>")]


class TestOrder:
    MANY = tuple(Item("Who?"[: n % 3 + 1], ("x" * n, "y"), 0) for n in range(1, 9))

    @pytest.mark.parametrize("form", list(Form))
    def test_is_by_length_then_content_whatever_the_order_of_rows(self, form: Form) -> None:
        batch, _ = encode(*self.MANY, form=form)
        turned, _ = encode(*reversed(self.MANY), form=form)
        assert batch.input_ids.tolist() == turned.input_ids.tolist()
        assert batch.answers == turned.answers
        assert packed_lengths(batch) == sorted(packed_lengths(batch))

    def test_what_choices_share_counts_once(self) -> None:
        batch, _ = encode(Item("?", ("dog", "cat", "cow", "pig", "hen"), 0), Item("Who barks", ("dog", "cow"), 0))
        assert rows(batch)[0] == "Who barks dog"  # 10 tokens and twice 3, before 2 and five times 3
        assert packed_lengths(batch) == [16, 17]

    def test_same_prompts_are_ordered_by_their_answers(self) -> None:
        same = [Item("Q", (answer,), 0) for answer in "bca"]
        batch, _ = encode(*same, form=Form.PROMPT)
        assert [answer.text for answer in batch.answers or ()] == ["a", "b", "c"]


class TestTruncation:
    LONG = Item("0123456789", ("ab", "c"), 0)

    def test_choices_lose_their_beginning_row_by_row(self) -> None:
        batch, truncated = encode(self.LONG, CAT, seq_len=12)
        assert rows(batch) == ["Who? dog", "Who? kitten", "123456789 ab", "0123456789 c"]
        assert scored(batch)[2:] == [" ab", " c"], "an item is counted once"
        assert truncated == 1, "an item is counted once"

    @pytest.mark.parametrize("form", list(Form))
    def test_the_token_that_begins_every_text_stays(self, form: Form) -> None:
        batch, truncated = encode(self.LONG, form=form, tokenizer=characters(bos=True), seq_len=6)
        assert batch.input_ids[0, 0] == BOS
        assert truncated == 1
        expected = "56789" if form is Form.PROMPT else "89 ab"
        assert rows(batch)[0][1:] == expected

    def test_prompts_and_answers_lose_their_beginning(self) -> None:
        assert rows(encode(self.LONG, form=Form.PROMPT, seq_len=4)[0]) == ["6789"]
        assert rows(encode(self.LONG, form=Form.TEXT, seq_len=4)[0]) == ["9 ab"]

    def test_whole_texts_lose_their_end(self) -> None:
        batch, truncated = encode(self.LONG, form=Form.TEXT, seq_len=4, score="all")
        assert rows(batch) == ["0123"]
        assert scored(batch) == ["123"]
        assert truncated == 1

    def test_a_first_token_left_over_is_not_scored(self) -> None:
        talk = Dialogue((("user", "a"), ("assistant", "bcdefgh"), ("user", "i"), ("assistant", "jk")))
        batch, _ = encode(talk, form=Form.TEXT, template=PLAIN, seq_len=25)
        assert rows(batch)[0].startswith("gh")
        assert scored(batch) == [f"h{chr(EOS)}jk{chr(EOS)}"]

    def test_what_follows_the_answer_gives_way_to_it(self) -> None:
        talk = Dialogue((("user", "a"), ("assistant", "bcdef"), ("user", "ghijklmnopq")))
        batch, _ = encode(talk, form=Form.TEXT, template=PLAIN, seq_len=8)
        assert rows(batch)[0].endswith("bcdef" + chr(EOS))
        assert scored(batch) == ["bcdef" + chr(EOS)]


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    cases = [
        (Item("Who?", ("abcdefgh", "b"), 1), {"seq_len": 9}),
        (
            Dialogue((("user", "a"), ("assistant", "bcdefgh"))),
            {"seq_len": 7, "form": Form.TEXT, "template": PLAIN},
        ),
        (Item("", ("a", "bc"), 1), {}),
        (Text(""), {"form": Form.TEXT, "score": "all"}),
        (Item("", ("a b", "a c"), 1), {"form": Form.PROMPT}),
        (Item("Who?", ("b", "b"), 1, openings=("a", "c")), {"form": Form.PROMPT}),
    ]
    sentences.refused_each(lambda case: encode(case[0], **case[1]), cases)


@pytest.mark.real
class TestWithTheRealTokenizer:
    def spans(self, tokenizer: Any, item: Item) -> list[list[str]]:
        batch, _ = encode(item, tokenizer=tokenizer)
        return [
            tokenizer.convert_ids_to_tokens(ids[marks])
            for ids, marks in zip(batch.input_ids, batch.scored, strict=True)
        ]

    def test_by_hand(self, smollm2_tokenizer: Any) -> None:
        item = Item("Question: What is 6 x 7?\nAnswer:", ("42", "about forty"), 0)
        assert self.spans(smollm2_tokenizer, item) == [["Ġ", "4", "2"], ["Ġabout", "Ġforty"]]

    def test_a_token_across_the_border_is_the_answers(self, smollm2_tokenizer: Any) -> None:
        assert self.spans(smollm2_tokenizer, Item("An un", ("happy end", "fair one"), 0, separator="")) == [
            ["Ġunhappy", "Ġend"],
            ["Ġunfair", "Ġone"],
        ]

    def test_characters_of_several_tokens(self, smollm2_tokenizer: Any) -> None:
        first, second = self.spans(smollm2_tokenizer, Item("Answer:", ("🦊", "é"), 0))
        assert smollm2_tokenizer.convert_tokens_to_string(first) == " 🦊"
        assert len(first) == 3
        assert smollm2_tokenizer.convert_tokens_to_string(second) == " é"

    def test_a_conversation(self, smollm2_tokenizer: Any) -> None:
        talk = Dialogue((("user", "Hello"), ("assistant", "Hello, how are you?")))
        batch, _ = encode(talk, form=Form.TEXT, tokenizer=smollm2_tokenizer)
        assert smollm2_tokenizer.decode(batch.targets) == "Hello, how are you?<|im_end|>"
        assert smollm2_tokenizer.decode(batch.input_ids[0]).startswith("<|im_start|>system\n")
