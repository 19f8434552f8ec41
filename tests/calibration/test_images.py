"""Questions about images are encoded as the model's own processor does, and the tokens of their answers are scored."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import processors

from raysearch.calibration.batch import Form
from raysearch.calibration.data import Data
from raysearch.calibration.formats.base import ImageQuestion
from raysearch.calibration.images import ImageRow, encode_question
from raysearch.configuration.parts import build_data
from raysearch.errors import UserError
from tests.calibration.presets import preset_values
from tests.cases import assert_each
from tests.models.vlms import IMAGE, VLMS, processor_of, write_photos
from tests.sentences import Sentences

QUESTION = ImageQuestion(("a.png",), "Which colour?", "deep red")
PICTURE = np.zeros((28, 40, 3), np.uint8)


def photos_data(file: Path, **changes: Any) -> Data:
    values = {"path": str(file), "samples": "all", "sampling": "sequential", "seq_len": 512}
    return build_data(preset_values("image_text") | values | changes)


def drawn(data: Data, processor: Any) -> Any:
    """Return the batch of data."""
    return data.samples(processor.tokenizer, Form.TEXT, None, processor).batch


def scored_text(row: ImageRow, processor: Any) -> str:
    return str(processor.tokenizer.decode([token for token, scored in zip(row.ids, row.scored, strict=True) if scored]))


def test_the_answer_is_scored_and_the_images_have_their_places() -> None:
    def check(kind: str) -> None:
        for chats, scored in ((True, "deep red<end>"), (False, " deep red")):
            processor = processor_of(kind, chats)
            row = encode_question(QUESTION, [PICTURE], processor, "row 1")
            assert scored_text(row, processor) == scored
            assert IMAGE in row.ids
            assert {"pixel_values"} <= row.images.keys()
            assert not {"input_ids", "attention_mask"} & row.images.keys()

    assert_each(VLMS, check)


def test_rows_are_what_the_processor_makes_of_the_conversation() -> None:
    processor = processor_of("llava")
    row = encode_question(QUESTION, [PICTURE], processor, "row 1")
    turns = [
        {"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "Which colour?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "deep red"}]},
    ]
    own = processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="np")
    assert list(row.ids) == own["input_ids"][0].tolist()
    assert np.array_equal(row.images["pixel_values"], own["pixel_values"])


def test_a_token_that_ends_every_text_is_not_scored() -> None:
    processor = processor_of("llava", chats=False)
    backend = processor.tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    row = encode_question(QUESTION, [PICTURE], processor, "row 1")
    assert (row.ids[0], row.ids[-1]) == (1, 2)
    assert scored_text(row, processor) == " deep red"


def test_pictures_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    """A camera stores the picture of a person who stands on its side, and the angle by which to turn it."""
    file = write_photos(tmp_path / "photos", sizes=[(40, 28)])
    picture = file.parent / "pictures" / "0.png"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    processor = processor_of("llava")
    upright = drawn(photos_data(file), processor)
    with Image.open(picture) as image:
        exif = Image.Exif()
        exif[0x0112] = 6  # stored a quarter turn to the left
        image.rotate(90, expand=True).save(picture, exif=exif)
    turned = drawn(photos_data(file), processor)
    assert np.array_equal(turned.images[0]["pixel_values"], upright.images[0]["pixel_values"])


def test_the_order_of_rows_and_the_draw(tmp_path: Path) -> None:
    """Random rows depend on the set of rows and the seed, and come in the order of their lengths."""
    file = write_photos(tmp_path / "photos")
    processor = processor_of("llava")
    data = photos_data(file, samples=3, sampling="random", seed=1)
    before = drawn(data, processor)
    file.write_text("".join(f"{line}\n" for line in reversed(file.read_text().splitlines())))
    assert before.keys == drawn(data, processor).keys
    assert before.lengths.tolist() == sorted(before.lengths.tolist())


def test_rows_that_cannot_be_used_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    file = write_photos(tmp_path / "photos", sizes=[(40, 28)])
    (file.parent / "torn.png").write_bytes((file.parent / "pictures" / "0.png").read_bytes()[:50])
    (file.parent / "text.png").write_text("no picture")
    processor = processor_of("llava")

    def draw(row: dict[str, Any], **changes: Any) -> None:
        rows = [{"image": "pictures/0.png", "question": "Who?", "answer": "me"} | row]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        drawn(photos_data(file, **changes), processor)

    rows: list[dict[str, Any]] = [
        {"image": "pictures/none.png"},
        {"image": "pictures"},
        {"image": "torn.png"},
        {"image": "text.png"},
        {"question": "Is <image> me?"},
        {"answer": "<image>"},
    ]
    sentences.refused_each(lambda **row: draw(row), rows)
    sentences.refused_each(lambda **changes: draw({}, **changes), [{"seq_len": 20}, {"score": "all"}])


def test_processors_that_cannot_be_used_are_refused(sentences: Sentences) -> None:
    processor = processor_of("llava", chats=False)
    processor.image_token = None
    with sentences.refused(UserError):
        encode_question(QUESTION, [PICTURE], processor, "row 1")
    blind = processor_of("llava")
    blind.chat_template = "{% for turn in messages %}{{ turn.content[-1].text }}{% endfor %}"
    with sentences.refused(UserError):
        encode_question(QUESTION, [PICTURE], blind, "row 1")
    plain = processor_of("llava")

    def shouting(text: list[str], **options: Any) -> Any:
        return plain(text=[text[0].replace("deep", "DEEP")], **options)

    shouting.tokenizer, shouting.chat_template = plain.tokenizer, plain.chat_template  # type: ignore[attr-defined]
    with sentences.refused(UserError):
        encode_question(QUESTION, [PICTURE], shouting, "row 1")


def test_pillow_is_required(tmp_path: Path, sentences: Sentences, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_photos(tmp_path / "photos")
    processor = processor_of("llava")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with sentences.refused(UserError):
        drawn(photos_data(file), processor)


def test_data_are_checked_before_a_model_is_read(tmp_path: Path, sentences: Sentences) -> None:
    file = write_photos(tmp_path / "photos")
    photos_data(file).check()
    (file.parent / "pictures" / "0.png").unlink()
    with sentences.refused(UserError):
        photos_data(file).check()
    on_hub = build_data({**preset_values("image_text"), "path": None, "name": "owner/photos"})
    with sentences.refused(UserError):
        on_hub.check()
