"""Generated answers: which are right, and where generation ends."""

from types import SimpleNamespace

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.errors import UserError
from raysearch.generation.answer import Answer
from raysearch.generation.checks import Match, score_answers
from tests.models.families import tiny
from tests.sentences import Sentences

LABELS = ("answer1", "answer2", "answer3")


CASES: list[tuple[str, Answer, Match, bool]] = [
    ("She has 5 + 3 = 8 left.\n#### 8", Answer("5+3=8\n#### 8"), "auto", True),
    ("so the total is $1,250.00", Answer("#### 1250"), "auto", True),
    ("#### 8 apples, not 9", Answer("#### 8"), "auto", True),
    ("#### $8, not 9", Answer("#### 8"), "auto", True),
    ("#### Step 1\n5 + 3 = 8", Answer("#### 8"), "auto", True),
    ("##### 1. Add\n5 + 3 = 8", Answer("#### 8"), "auto", True),
    ("#### 1. Find the cost\nIt is 3 * 4 = 12\n#### 2. Answer\nThe answer is 12", Answer("#### 12"), "auto", True),
    ("#### 1) Find the cost\nIt is 3 * 4 = 12\n#### 12\n\nThat took 2 steps", Answer("#### 12"), "auto", True),
    ("#### \\$42. That took 3 days", Answer("#### 42"), "auto", True),
    ("#### 42. That took 3 days\nor 4", Answer("#### 42"), "auto", True),
    ("#### 1. That took 3 days", Answer("#### 1"), "auto", True),
    ("#### 42", Answer("#### 42"), "auto", True),
    ("first 8, then 9", Answer("#### 8"), "auto", False),
    ("I do not know", Answer("#### 8"), "auto", False),
    ("-5", Answer("#### -5"), "auto", True),
    ("about 3", Answer("no number"), "number", False),
    (" 34.", Answer("34"), "auto", True),
    (" 345", Answer("34"), "auto", False),
    (" -6", Answer("-6"), "auto", True),
    (" 6", Answer("-6"), "auto", False),
    ("The Amazon, of course", Answer("the amazon"), "exact", True),
    ("It is the Amazon", Answer("the amazon"), "exact", False),
    ("the correct answer is answer3", Answer("answer3", LABELS), "auto", True),
    ("answer1 or answer3", Answer("answer3", LABELS), "auto", False),
    ("nothing of the kind", Answer("answer3", LABELS), "auto", False),
    ("cold blooded animals", Answer("cold", ("cold", "cold blooded")), "choice", False),
    ("", Answer("answer3", LABELS), "auto", False),
    ("", Answer("+"), "exact", False),
    (" + of course", Answer("+"), "exact", True),
    ("It is < then", Answer("<", ("<", ">", "=")), "auto", True),
    ("It is > then", Answer("<", ("<", ">", "=")), "auto", False),
    ("x < 2", Answer("x > 2", ("x > 2", "x < 2")), "auto", False),
    ("yes", Answer("Yes", ("Yes", "No", "No")), "auto", True),
    ("100% rr", Answer("100% Rr", ("100% Rr", "100% rr")), "auto", False),
    ("False", Answer("false", ("true", "false")), "auto", True),
]


def test_right_answers():
    assert [case for case in CASES if score_answers([case[0]], [case[1]], case[2])[0].value != case[3]] == []


def test_an_answer_beyond_a_table_of_positions_is_refused(sentences: Sentences):
    model = tiny(
        "gpt2", vocab_size=8, n_embd=8, n_layer=1, n_head=1, n_positions=6, bos_token_id=None, eos_token_id=None
    )
    batch = Batch(np.full((1, 4), 3), np.zeros((1, 4), bool), answers=(Answer("1"),))
    tokenizer = SimpleNamespace(eos_token_id=None, decode=lambda ids, **_: "")
    result = GenerationAccuracyObjective(max_new_tokens=3).model_losses(model, tokenizer, batch)
    assert [(text.text, text.n_tokens, text.cut_off) for text in result.texts] == [("", 3, True)]
    assert result.n_tokens == 6
    with sentences.refused(UserError):
        GenerationAccuracyObjective(max_new_tokens=4).model_losses(model, tokenizer, batch)


def test_numbers_out_of_range_are_refused(sentences: Sentences):
    wrong = [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1), ("seed", -1), ("seed", 2**32)]
    wrong += [("max_new_tokens", 0), ("batch_size", 0)]
    sentences.refused_each(GenerationAccuracyObjective, [{name: value} for name, value in wrong])
