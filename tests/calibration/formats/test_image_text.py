from __future__ import annotations

from raysearch.calibration.formats.base import ImageQuestion
from raysearch.calibration.formats.image_text import ImageTextFormat
from tests.sentences import Sentences

WHERE = "row 3 of data.path=photos.jsonl"


def test_a_row_names_one_image_or_several() -> None:
    row = {"image": "a.png", "question": "Which colour?", "answer": "red"}
    assert ImageTextFormat().read(row, WHERE) == ImageQuestion(("a.png",), "Which colour?", "red")
    two_images = ImageTextFormat().read(row | {"image": ["a.png", "b/c.jpg"]}, WHERE)
    assert two_images.images == ("a.png", "b/c.jpg")


def test_fields_have_other_names() -> None:
    format_ = ImageTextFormat("file", "query", "label", "Q: {query} ({topic})\nA:", "", group="topic")
    row = {"file": "a.png", "query": "How many?", "label": 3, "topic": "sums"}
    assert format_.read(row, WHERE) == ImageQuestion(("a.png",), "Q: How many? (sums)\nA:", "3", "", "sums")


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    cases = [
        {"image": None},
        {"image": []},
        {"image": ["a.png", 3]},
        {"image": {"bytes": "…", "path": "a.png"}},
        {"image": " "},
        {"answer": None},
        {"question": ["Which?"]},
    ]
    valid = {"image": "a.png", "question": "Which colour?", "answer": "red"}
    sentences.refused_each(lambda **row: ImageTextFormat().read(valid | row, WHERE), cases)
    sentences.refused_each(lambda **row: ImageTextFormat().read(row, WHERE), [{"picture": "a.png"}])
