from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raysearch.calibration.batch import Form
from raysearch.calibration.data import Data
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.windows import WindowOptions
from raysearch.configuration.parts import build_data, conf_dir
from raysearch.errors import UserError
from tests.calibration.presets import preset_values
from tests.calibration.tokenizers import EOS, PLAIN, characters
from tests.sentences import Sentences

CHOICES = sorted(file.stem for file in (conf_dir() / "data").glob("*.yaml"))
ITEMS = [
    {"question": f"{n} and {n}?", "choices": [str(2 * n), "many"], "answer": 0, "task": "odd" if n % 2 else "even"}
    for n in range(10, 20)
]


def choose(preset: str, /, **changes: Any) -> Data:
    """Return the data of ``data=preset`` with other values of its keys."""
    return build_data(preset_values(preset) | changes)


def missing(preset: str) -> dict[str, Any]:
    """Return the keys that ``data=preset`` requires: a file, a set of the hub, or permission to use a test split."""
    values = preset_values(preset)
    missing_keys = [key for key in ("path", "name") if values.get(key) == "???"]
    if not missing_keys and not any(values.get(key) for key in ("path", "name", "package")):
        missing_keys = ["path"]
    permission = {} if values.get("split") in (None, "train", "???") else {"allow_evaluation_split": True}
    return dict.fromkeys(missing_keys, "a.jsonl") | permission


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def items(tmp_path: Path) -> str:
    return write(tmp_path / "items.jsonl", ITEMS)


class TestConf:
    def test_every_choice_builds(self) -> None:
        for name in CHOICES:
            data = choose(name, **missing(name), seed=7)
            assert data.draw.seed == 7, name
            draws_windows = data.format.offers == {Form.TEXT} and not data.format.has_images
            assert isinstance(data.draw, WindowOptions if draws_windows else ItemOptions), name

    def test_every_choice_names_a_licence(self) -> None:
        texts = {name: (conf_dir() / "data" / f"{name}.yaml").read_text() for name in CHOICES}
        comments = {name: " ".join(line for line in texts[name].splitlines() if line[0] == "#") for name in CHOICES}
        assert not [name for name in CHOICES if "licence" not in comments[name].lower()]

    def test_sets_of_the_hub_are_taken_from_their_training_split(self) -> None:
        hub = [name for name in CHOICES if not missing(name) and choose(name).rows.name]
        assert {"c4", "gsm8k", "piqa"} <= set(hub)
        only_tests = {name for name in CHOICES if "allow_evaluation_split" in missing(name)}
        assert only_tests == {"humaneval", "humaneval_plus", "mbpp_plus", "mmlu", "math500"}, (
            "sets without a training split"
        )
        for name in hub:
            rows = choose(name).rows
            assert rows.split == "train", name
            assert rows.path is None, name
            assert not rows.allow_evaluation_split, name
            assert choose(name, path="a.jsonl").rows.describe() == {"source": "file", "path": "a.jsonl"}, name


class TestBuild:
    def test_names_the_key_and_the_way_out(self, sentences: Sentences) -> None:
        cases = [
            {},
            {"type": "texts"},
            {"type": "text", "pth": "a"},
            {"type": "text", "sample": 3},
            {"type": "text", "score": "all"},
            {"type": "text", "path": "a", "sampling": "randm"},
            {"type": "chat", "path": "a", "unusable": "skp"},
            {"type": "chat", "path": "a", "balance": "equally"},
            {"type": "text", "samples": "x", "path": "a"},
            {"type": "text", "package": "soto"},
            {"type": "text"},
            {"type": "chat", "path": "a", "style": "x"},
            {"type": "commonsense170k", "path": "a", "style": "x"},
            {"type": "multiple_choice", "path": "a", "labels": "AB"},
        ]
        sentences.refused_each(lambda **values: build_data(values), cases)


class TestForms:
    @pytest.mark.parametrize(
        ("name", "form"),
        [
            ("file", Form.CHOICES),
            ("file", Form.PROMPT),
            ("questions", Form.CHOICES),
            ("chat", Form.CHOICES),
        ],
    )
    def test_refuses_what_is_not_offered(self, items: str, name: str, form: Form, sentences: Sentences) -> None:
        data = choose(name, path=items)
        for ask in (lambda: data.check_form(form), lambda: data.samples(characters(), form)):
            with sentences.refused(UserError):
                ask()

    @pytest.mark.parametrize("form", list(Form))
    def test_items_offer_all(self, items: str, form: Form) -> None:
        data = choose("multiple_choice", path=items, samples=4)
        data.check_form(form)
        batch = data.samples(characters(), form).batch
        assert batch.n_samples == 4
        assert (batch.choices is None, batch.answers is None) == (form is not Form.CHOICES, form is not Form.PROMPT)


class TestSamples:
    def test_windows_score_all_but_their_first_token(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("abcdefghij")
        data = choose("file", path=str(tmp_path / "a.txt"), samples=2, seq_len=4, seed=3)
        drawn = data.samples(characters(), Form.TEXT)
        assert sorted(map(bytes, drawn.batch.input_ids.tolist())) == [b"abcd", b"efgh"]
        assert drawn.batch.scored.tolist() == [[False, True, True, True]] * 2
        assert drawn.batch.attention_mask is None
        assert drawn.description == {
            "source": "file",
            "path": str(tmp_path / "a.txt"),
            "samples": 2,
            "seq_len": 4,
            "sampling": "random",
            "seed": 3,
        }

    def test_describes_items_in_plain_values(self, tmp_path: Path) -> None:
        path = write(tmp_path / "my_test.jsonl", [*ITEMS, ITEMS[0]])
        changes = {"samples": 4, "seq_len": 20, "group": "task", "allow_evaluation_split": True}
        drawn = choose("multiple_choice", path=path, **changes).samples(characters(), Form.TEXT)
        assert drawn.description == {
            "source": "file",
            "path": path,
            "evaluation_split": True,
            "samples": 4,
            "seq_len": 20,
            "sampling": "random",
            "seed": 0,
            "score": "answer",
            "balance": "equal",
            "groups": {"even": 2, "odd": 2},
            "rows_read": 11,
            "duplicates": 1,
            "truncated": 4,
        }
        json.dumps(drawn.description)

    def test_refuses_rows_longer_than_the_model_takes(self, items: str, sentences: Sentences) -> None:
        data = choose("multiple_choice", path=items, samples=1)
        with sentences.refused(UserError):
            data.samples(characters(), Form.CHOICES, max_positions=64)
        assert data.samples(characters(), Form.CHOICES, max_positions=2048).batch.n_samples == 1

    def test_conversations(self, tmp_path: Path) -> None:
        rows = [
            {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}]}
            for n in "abc"
        ]
        data = choose("chat", path=write(tmp_path / "a.jsonl", rows), samples=3)
        batch = data.samples(characters(template=PLAIN), Form.TEXT).batch
        assert [chr(token) for token in batch.targets[::2]] == ["a", "b", "c"]
        assert {*batch.targets[1::2]} == {EOS}

    def test_from_the_hub(self, tmp_path: Path) -> None:
        pytest.importorskip("datasets")
        rows = [
            {"question": f"Which is {n}?", "choices": {"text": ["a", str(n)], "label": ["A", "B"]}, "answerKey": "B"}
            for n in range(9)
        ]
        write(tmp_path / "train.jsonl", rows)
        data = choose("arc_easy", name=str(tmp_path), config=None, samples=9)
        drawn = data.samples(characters(), Form.CHOICES)
        assert drawn.batch.n_samples == 9
        assert drawn.description["source"] == "hub"


class TestCheck:
    def test_reads_a_first_row_at_most(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", [ITEMS[0], {}, "broken"])
        choose("multiple_choice", path=path).check()

    def test_asks_the_hub_for_nothing(self) -> None:
        pytest.importorskip("datasets")
        choose("c4").check()

    @pytest.mark.parametrize(
        ("rows", "changes"),
        [
            ([{"q": "a"}], {}),
            ([*ITEMS, {"question": "a", "text": "b"}], {"samples": 3}),
            ([*ITEMS, {**ITEMS[0], "answer": 9}], {"samples": 3}),
            (ITEMS, {"samples": 11}),
            (ITEMS, {"samples": 10, "seq_len": 3}),
        ],
    )
    def test_names_the_row_and_the_way_out(
        self, tmp_path: Path, rows: list[Any], changes: dict[str, Any], sentences: Sentences
    ) -> None:
        path = write(tmp_path / "a.jsonl", rows)
        with sentences.refused(UserError):
            choose("multiple_choice", path=path, sampling="sequential", **changes).samples(characters(), Form.CHOICES)


@pytest.mark.real
@pytest.mark.data
class TestRealData:
    """What lies in ../shared/data, by the presets."""

    READY: ClassVar = {"question": "query", "choices": "choices", "answer": "gold", "prompt": "{question}"}

    @pytest.mark.parametrize(
        ("name", "file", "changes", "rows"),
        [
            ("piqa", "piqa/validation", {}, 128),
            ("boolq", "boolq/validation", {}, 128),
            ("hellaswag", "hellaswag/validation", {}, 256),
            ("winogrande", "winogrande/validation", {}, 128),
            ("arc_easy", "arc_easy/test", READY, 255),
            ("arc_challenge", "arc_challenge/test", READY, 256),
            ("openbookqa", "openbookqa/test", READY, 256),
        ],
    )
    def test_choices(
        self,
        data_folder: Path,
        smollm2_tokenizer: Any,
        name: str,
        file: str,
        changes: dict[str, str],
        rows: int,
        sentences: Sentences,
    ) -> None:
        path = str(data_folder / f"{file}.jsonl")
        with sentences.refused(UserError):
            choose(name, path=path, **changes)
        drawn = choose(name, path=path, **changes, allow_evaluation_split=True).samples(smollm2_tokenizer, Form.CHOICES)
        batch = drawn.batch
        assert drawn.description["evaluation_split"]
        assert drawn.description["truncated"] == 0
        assert (batch.n_samples, len(batch.input_ids)) == (64, rows)
        assert batch.choices is not None
        assert batch.choices.gold.sum() == 64
        assert (batch.scored_per_row > 0).all()

    @pytest.mark.parametrize(("style", "form"), [("text", Form.CHOICES), ("text", Form.TEXT), ("label", Form.PROMPT)])
    def test_commonsense170k(self, data_folder: Path, smollm2_tokenizer: Any, style: str, form: Form) -> None:
        path = str(data_folder / "commonsense170k" / "sample.jsonl")
        drawn = choose("commonsense170k", path=path, style=style).samples(smollm2_tokenizer, form)
        assert drawn.batch.n_samples == 64
        assert drawn.description["rows_read"] == 6760
        assert drawn.description["duplicates"] > 300, "WinoGrande's sizes lie one inside the other"
        assert len(drawn.description["groups"]) == 6
        assert set(drawn.description["groups"].values()) == {10, 11}

    def test_gsm8k(self, data_folder: Path, smollm2_tokenizer: Any) -> None:
        data = choose("gsm8k", path=str(data_folder / "gsm8k" / "train.jsonl"))
        answers = data.samples(smollm2_tokenizer, Form.PROMPT).batch.answers
        assert answers
        assert all("#### " in answer.text for answer in answers)

    def test_c4(self, data_folder: Path, smollm2_tokenizer: Any) -> None:
        path = str(data_folder / "c4" / "calibration.jsonl")
        assert choose("c4", path=path, samples=16).samples(smollm2_tokenizer, Form.TEXT).batch.input_ids.shape == (
            16,
            2048,
        )
