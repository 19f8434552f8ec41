"""The rows to train on: answers in chat templates of several families, without rows that were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data
from raysearch.calibration.formats.chat import ChatFormat
from raysearch.calibration.formats.questions import QuestionsFormat
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.rows import Rows
from raysearch.errors import UserError
from raysearch.recovery.prompts import Prompts, Question, TrainingRow, check_enough, draw_prompts, encode, row_of
from raysearch.recovery.spec import RecoveryOptions
from tests.calibration.tokenizers import PLAIN, STRICT, THINKING, characters
from tests.sentences import Sentences

#: As Qwen's and SmolLM2's, with a system prompt of its own and a line break after a turn.
CHATML = (
    "{% if messages[0].role != 'system' %}<system>be good</s>\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
SPEECH = "we the people of the united states in order to form a more perfect union establish justice and peace"


def test_an_answer_is_what_follows_the_prompt_in_templates_of_every_family() -> None:
    expected = {PLAIN: "yes</s>", STRICT: "yes</s>", CHATML: "yes</s>\n", None: "yes</s>"}
    for template, answer in expected.items():
        tokenizer = characters(template=template)
        messages = (("user", "is it so"),)
        question = Question(messages, "", encode(messages, None, tokenizer, "row"))
        row = row_of(question, "yes", False, RecoveryOptions(), tokenizer)
        assert isinstance(row, TrainingRow)
        assert tokenizer.decode(row.ids[row.n_prompt :]).replace(" ", "") == answer.replace(" ", ""), template


def test_thinking_is_disabled_in_the_chat_template(tmp_path: Path) -> None:
    data = chats(tmp_path, *([("user", word), ("assistant", word)] for word in "xyz"), thinking=False)
    prompts = draw(data, template=THINKING)
    ends = {characters().decode(question.ids).replace(" ", "")[-4:] for question in prompts.questions}
    assert (len(prompts.questions), ends) == (3, {"<no>"})


def test_a_mistake_in_every_row_is_reported_even_if_rows_are_skipped(tmp_path: Path, sentences: Sentences) -> None:
    rows = [[("user", word), ("assistant", "yes")] for word in "abc"]
    for template, options in (
        (PLAIN, {"thinking": False}),
        ("{{ nonsense( }}", {}),
    ):
        data = chats(tmp_path, *rows, unusable="skip", **options)
        with sentences.refused(UserError):
            draw(data, template=template)


def test_rows_that_a_limit_leaves_out_name_it(sentences: Sentences) -> None:
    chat, plain = (Data(Rows("any.jsonl"), format, ItemOptions(1)) for format in (ChatFormat(), QuestionsFormat()))
    for data, left_out in (
        (chat, {"cut off": 3, "empty": 1}),
        (plain, {"cut off": 3, "empty": 1}),
        (chat, {"beyond recovery.tokens": 3, "overlapping": 1}),
        (chat, {"cut off": 1, "empty": 1}),
    ):
        with sentences.refused(UserError):
            check_enough(1, left_out, data)


def measured(texts: Sequence[str], tokenizer: Any) -> SeenTexts:
    ids = [tokenizer(text)["input_ids"] for text in texts]
    batch = Batch.of(ids, [[False, *[True] * (len(tokens) - 1)] for tokens in ids])
    return SeenTexts([Calibration.create(PerplexityObjective(), batch, None, {}, {})], tokenizer)


class Joined:
    """A tokenizer of characters that joins them again."""

    def __init__(self) -> None:
        self._characters = characters()

    def __call__(self, text: str) -> Any:
        return self._characters(text)

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(chr(code) for code in np.asarray(ids).tolist())


def test_measured_text_is_detected() -> None:
    seen = measured([SPEECH, "Question: how many apples are there?\nAnswer: 4. Please continue"], Joined())
    assert seen.shared("it says: " + SPEECH[7:85] + " and so on"), "thirteen words in a row"
    assert not seen.shared(SPEECH[:40] + " something else " + SPEECH[60:]), "no thirteen words in a row"
    assert seen.shared("How many apples are there?")
    assert seen.shared(SPEECH.upper())
    assert not seen.shared("How many pears are there?")
    assert not seen.shared("")
    assert not seen.shared("Continue"), "everyday words"
    assert not seen.shared("we continue the union"), "everyday words"


SUM = "a farmer has {} sheep and buys three more of them each year so how many are there then"


def chats(folder: Path, *rows: Sequence[tuple[str, str]], **options: Any) -> Data:
    """Write conversations to a file, and return its data."""
    file = folder / "chats.jsonl"
    turns = [{"messages": [{"role": role, "content": content} for role, content in row]} for row in rows]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in turns))
    return Data(Rows(str(file)), ChatFormat(**options), ItemOptions("all", seq_len=2048, sampling="sequential"))


def draw(data: Data, measured_texts: Sequence[str] = (), template: str = PLAIN, **options: Any) -> Prompts:
    """Draw prompts; by default of any length, and without measured texts."""
    how = RecoveryOptions(**{"max_prompt_tokens": 2048, "max_tokens": 4096, **options})
    return draw_prompts(data, how, characters(template=template), measured(measured_texts, Joined()), None)


def test_a_question_that_was_measured_is_left_out_in_other_words_around_it(tmp_path: Path) -> None:
    measured_texts = ["be brief. " + SUM.format("seven"), SUM.format("two")[:70], SPEECH]
    fresh = "what is the way from here to the station and how long does it take to walk on foot"
    rows = [
        [("user", f"Question: {SUM.format('seven')}?\nAnswer:"), ("assistant", "x")],
        [("user", f"Tell me: {SUM.format('two')}"), ("assistant", "x")],
        [("user", SUM.format("seven")), ("assistant", "x"), ("user", "go on"), ("assistant", "y")],
        [("user", "recite"), ("assistant", SPEECH)],
    ]
    rows += [[("system", SPEECH), ("user", f"{word} {fresh}"), ("assistant", "x")] for word in ("say", "so", "and", "")]
    for responses, overlapping in (("data", 4), ("self", 3)):
        prompts = draw(chats(tmp_path, *rows), measured_texts, responses=responses)
        assert prompts.left_out == {"overlapping": overlapping}
        assert len(prompts.questions) == 8 - overlapping
    rows = [[("user", f"{SPEECH} {n}"), ("assistant", "x")] for n in range(5)]
    prompts = draw(chats(tmp_path, *rows), measured_texts)
    assert len(prompts.questions) == 5, "the words of most rows are their template's"


def test_a_template_with_an_opening_that_many_share_is_no_overlap(tmp_path: Path) -> None:
    wrapped = "Below is a question of a pupil, please answer it in one sentence. {} Now write the answer here, in short"
    openings = ["What is the colour of", "How many people live in", "Who was the king of", "Why do we like the"]
    fresh = [f"{opening} {n}" for n in "abcde" for opening in openings]
    measured_texts = [*(wrapped.format(f"{opening} measured") for opening in openings), f"so: {SUM.format('ten')}"]
    planted = ["Who was the king of measured", "What is the colour of measured", f"tell me {SUM.format('ten')} please"]
    for template in (wrapped, "{}", "first {}", "{} then think"):
        rows = [[("user", template.format(text)), ("assistant", "x")] for text in [*planted, *fresh]]
        prompts = draw(chats(tmp_path, *rows), measured_texts)
        assert prompts.left_out == {"overlapping": 3}
        assert len(prompts.questions) == 20


def test_a_short_question_is_compared_with_its_template(tmp_path: Path) -> None:
    template = "Please tell me in a single number and nothing else at all how much is {}"
    rows = [[("user", template.format(f"{n} + 3")), ("assistant", "x")] for n in range(6)]
    prompts = draw(chats(tmp_path, *rows), [template.format("2 + 3")])
    assert prompts.left_out == {"overlapping": 1}
    assert len(prompts.questions) == 5


def test_refuses_options_out_of_range(sentences: Sentences) -> None:
    cases = [
        {"top_k": 0},
        {"max_tokens": 1},
        {"max_new_tokens": 0},
        {"batch_size": 0},
        {"batch_size": 6, "micro_batch_size": 4},
        {"learning_rate": 0.0},
        {"epochs": -1.0},
        {"held_out": 1.0},
        {"held_out": 0.0},
        {"top_p": 0.0},
        {"lora_r": 0},
        {"lora_dropout": 1.0},
        {"targets": []},
        {"packing": True, "loss": "distill"},
        {"seed": -1},
        {"seed": 2**32},
    ]
    sentences.refused_each(RecoveryOptions, cases)


def test_rows_at_once_divide_those_of_a_step() -> None:
    eight = RecoveryOptions(batch_size=8)
    assert (eight.rows_at_once(on_gpu=False), eight.rows_at_once(on_gpu=True)) == (2, 8)
    nine = RecoveryOptions(batch_size=9, workers=3)
    assert (nine.rows_at_once(on_gpu=False), nine.rows_at_once(on_gpu=True)) == (1, 3)
    assert RecoveryOptions(batch_size=8, workers=4, micro_batch_size=4).rows_at_once() == 2


def test_a_template_that_refuses_a_prompt_is_named(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        encode((("user", "x"), ("user", "y")), None, characters(template=STRICT), "row 3")


def test_a_template_without_system_prompts_gets_them_before_the_question(tmp_path: Path, sentences: Sentences) -> None:
    tokenizer = characters(template=STRICT)
    talks = [[("user", word), ("assistant", "yes")] for word in ("a", "b")]
    wrong = [[("user", "x"), ("user", "y"), ("assistant", "no")], [("assistant", "x")]]
    options: dict[str, Any] = {"template": STRICT, "system": "be good", "responses": "data"}
    prompts = draw(chats(tmp_path, *wrong, *talks, unusable="skip"), **options)
    assert prompts.left_out == {"unusable": 2}
    row = row_of(prompts.questions[0], "yes", False, RecoveryOptions(), tokenizer)
    assert isinstance(row, TrainingRow)
    assert "".join(tokenizer.convert_ids_to_tokens(row.ids)) == ("<s><user>be good\n\na</s><assistant>yes</s>")
    assert "".join(tokenizer.convert_ids_to_tokens(row.ids[row.n_prompt :])) == "yes</s>"
    with sentences.refused(UserError):
        draw(chats(tmp_path, *wrong, *talks), **options)
