"""Golden files of sentences: what is compared, what is rewritten, and that no entry is left over."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.errors import EvaluationError, UserError
from tests.sentences import GOLDEN_FILES, GoldenFiles, Sentences

REWRITE = "--rewrite-sentences"


def test_every_entry_has_its_test(request: pytest.FixtureRequest) -> None:
    assert not request.config.stash[GOLDEN_FILES].left_over(), f"run: python -m pytest {REWRITE}"


def test_errors_commands_and_texts_have_entries() -> None:
    def needs_even(number: int) -> None:
        if number % 2:
            raise UserError(f"number={number} is odd; use {number + 1}")

    def fail() -> None:
        raise UserError("a is wrong; use b", "c is wrong; use d")

    sentences = Sentences(None)
    with sentences.refused(UserError) as caught:
        fail()
    assert len(caught.value.sentences) == 2
    sentences.refused_each(needs_even, [{"number": 1}, 3])
    sentences.hide("greedy-1", "search")
    sentences.hide(re.compile(r"\d+ GB"), "size")
    sentences.refused_command(SimpleNamespace(code=2, err="starts\nerror: greedy-1 needs 7 GB\n"), "of greedy-1")
    sentences.check("process 7 on my-machine", "of greedy-1")
    assert sentences.cases == {
        1: ["a is wrong; use b", "c is wrong; use d"],
        "number=1": "number=1 is odd; use 2",
        "3": "number=3 is odd; use 4",
        "of <search>": "<search> needs <size>",
        "of <search> (5)": "process <number> on <machine>",
    }


@pytest.mark.parametrize(
    "act",
    [
        lambda sentences: sentences.check("another"),
        lambda sentences: sentences.check("a sentence", "another case"),
        lambda sentences: sentences.check_all_used(),
        lambda sentences: sentences.refused_each(str, ["is accepted"]),
        lambda sentences: sentences.refused_command(SimpleNamespace(code=1, err="error: a sentence\n")),
        lambda sentences: sentences.refused_command(SimpleNamespace(code=2, err="a sentence\n")),
        lambda sentences: sentences.refused_command(SimpleNamespace(code=2, err="error: a sentence\nand more\n")),
    ],
    ids=["text", "case", "unused", "accepted", "code", "no error", "no last line"],
)
def test_a_difference_fails(act: Callable[[Sentences], object]) -> None:
    with pytest.raises(AssertionError):
        act(Sentences({1: "a sentence"}))
    sentences = Sentences({1: "a sentence"})
    sentences.check("a sentence")
    sentences.check_all_used()


def test_an_error_of_another_class_is_raised() -> None:
    with pytest.raises(EvaluationError), Sentences({}).refused(UserError):
        raise EvaluationError("out of luck")


def run(root: Path, sentence_of: dict[str, str], *words: str, rewrite: bool = False) -> GoldenFiles:
    """Run tests that each have a sentence.

    Args:
        root: The checkout.
        sentence_of: The sentence of each test, by its node id.
        words: The arguments of pytest.
        rewrite: Whether the golden files are rewritten.
    """
    config: Any = SimpleNamespace(rootpath=root, args=words, getoption={"rewrite_sentences": rewrite}.get)
    files = GoldenFiles(config)
    items: Any = [
        SimpleNamespace(nodeid=node, path=root / node.partition("::")[0], fixturenames=["sentences"])
        for node in sentence_of
    ]
    files.pytest_collection_modifyitems(items)
    for item in items:
        sentences = Sentences(files.expected(item))
        sentences.check(sentence_of[item.nodeid])
        files.end(item, sentences)
    files.pytest_sessionfinish()
    return files


def test_a_file_is_rewritten_and_left_over_entries_are_removed(tmp_path: Path) -> None:
    room = tmp_path / "tests" / "room"
    (room / "part").mkdir(parents=True)
    for name in ("test_a.py", "part/test_b.py"):
        (room / name).touch()
    golden = room / "sentences.yaml"
    one, two = "tests/room/test_a.py::test[1]", "tests/room/test_a.py::test[2]"
    in_part = "tests/room/part/test_b.py::test"
    with pytest.raises(AssertionError):
        run(tmp_path, {one: "old"})
    assert not golden.exists()
    run(tmp_path, {two: "new", one: "old", in_part: "é: {x}"}, rewrite=True)
    assert golden.read_text(encoding="utf-8") == (
        "part/test_b.py:\n  test:\n    1: 'é: {x}'\ntest_a.py:\n  test[1]:\n    1: old\n  test[2]:\n    1: new\n"
    )
    run(tmp_path, {one: "old", two: "new"})
    with pytest.raises(AssertionError):
        run(tmp_path, {one: "new"})
    assert not run(tmp_path, {one: "old"}, str(room / "test_a.py::test[1]")).left_over(), (
        "the others were not collected"
    )
    assert run(tmp_path, {one: "old"}).left_over() == [(golden, "test_a.py", "test[2]")]
    (room / "part" / "test_b.py").unlink()
    run(tmp_path, {one: "new"}, rewrite=True)
    assert golden.read_text() == "test_a.py:\n  test[1]:\n    1: new\n"
