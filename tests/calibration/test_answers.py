import pytest

from raysearch.calibration.answers import is_right
from raysearch.calibration.batch import Answer

LABELS = ("answer1", "answer2", "answer3")


@pytest.mark.parametrize(
    ("text", "answer", "match", "right"),
    [
        ("She has 5 + 3 = 8 left.\n#### 8", Answer("5+3=8\n#### 8"), "auto", True),
        ("so the total is $1,250.00", Answer("#### 1250"), "auto", True),
        ("#### 8 apples, not 9", Answer("#### 8"), "auto", True),
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
        ("False", Answer("false", ("true", "false")), "auto", True),
    ],
)
def test_what_is_right(text, answer, match, right):
    assert is_right(text, answer, match) is right
