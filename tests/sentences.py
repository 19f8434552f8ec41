"""Golden files: the sentences that tests expect, in one `sentences.yaml` for each folder of tests.

A test asks for the class of an error; its sentence is compared with the golden file. `pytest --rewrite-sentences`
writes the sentences of the tests that run, and removes those of tests that no longer exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import yaml

from raysearch.errors import UserError
from tests.cases import assert_each

_Error = TypeVar("_Error", bound=Exception)

#: The sentence of each case of a test, or its lines; a case without a name has a number.
Cases = dict[str | int, str | list[str]]


class Ended(Protocol):
    """A command that has ended."""

    @property
    def code(self) -> int: ...

    @property
    def err(self) -> str: ...


class GoldenFiles:
    """The golden files of all folders of tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath / "tests"
        self._rewrite = bool(config.getoption("rewrite_sentences"))
        self._partly_collected = {Path(word.split("::")[0]).resolve() for word in config.args if "::" in word}
        self._tests: dict[Path, set[str]] = {}  # those with sentences, of each file that was collected
        self._files: dict[Path, dict[str, dict[str, Cases]]] = {}  # by golden file, file of tests and test

    def expected(self, item: pytest.Item) -> Cases | None:
        """Return the sentences of a test; None if they are to be rewritten."""
        return None if self._rewrite else self._entries(item.path).get(_test(item), {})

    def end(self, item: pytest.Item, sentences: Sentences) -> None:
        """Check that a test that has passed used all of its entries, or replace them.

        Args:
            item: The test.
            sentences: Its sentences.
        """
        if self._rewrite:
            entries = self._entries(item.path)
            entries.pop(_test(item), None)
            if sentences.cases:
                entries[_test(item)] = sentences.cases
        else:
            sentences.check_all_used()

    def left_over(self) -> list[tuple[Path, str, str]]:
        """Return golden file, file and test of each entry that belongs to no test, as far as files were collected."""
        for file in self._tests:
            self._entries(file)
        return [
            (golden, name, test)
            for golden, files in self._files.items()
            for name, entries in files.items()
            for test in entries
            if not self._may_exist(golden.parent / name, test)
        ]

    def _may_exist(self, file: Path, test: str) -> bool:
        if file in self._tests and file not in self._partly_collected:
            return test in self._tests[file]
        return file.exists()

    def _entries(self, file: Path) -> dict[str, Cases]:
        folders = file.relative_to(self._root).parts[:-1]
        golden = self._root.joinpath(*folders[:1], "sentences.yaml")
        if golden not in self._files:
            text = golden.read_text(encoding="utf-8") if golden.exists() else ""
            self._files[golden] = yaml.load(text, yaml.CSafeLoader) or {}
        return self._files[golden].setdefault(file.relative_to(golden.parent).as_posix(), {})

    @pytest.hookimpl(tryfirst=True)  # before tests are deselected
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.path.is_relative_to(self._root):
                tests = self._tests.setdefault(item.path, set())
                if "sentences" in getattr(item, "fixturenames", ()):
                    tests.add(_test(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        result = yield
        sentences = pyfuncitem.funcargs.get("sentences")
        if isinstance(sentences, Sentences):
            self.end(pyfuncitem, sentences)
        return result

    def pytest_sessionfinish(self) -> None:
        if not self._rewrite:
            return
        for golden, name, test in self.left_over():
            del self._files[golden][name][test]
        for golden, files in self._files.items():
            full = {name: dict(sorted(tests.items())) for name, tests in sorted(files.items()) if tests}
            if full:
                text = yaml.safe_dump(full, allow_unicode=True, sort_keys=False, width=float("inf"))
                golden.write_text(text, encoding="utf-8")
            else:
                golden.unlink(missing_ok=True)


GOLDEN_FILES = pytest.StashKey[GoldenFiles]()


class Sentences:
    """Compares the sentences of a test with the golden file.

    Args:
        expected: The entries of the test; None if they are to be rewritten.
    """

    def __init__(self, expected: Cases | None) -> None:
        self.cases: Cases = {}
        self._expected = expected
        self._hidden = [
            # Each new part would change a long list.
            (r"(?<=choose one of: )(?:[\w.-]+, ){9,}[\w.-]+(?: … \(\d+ in all\))?", "<names>"),
            (r"\b0?x[0-9a-f]{8,}", "<address>"),
            (r"[\w-]+-m[\d-]+-[0-9a-f]{8}\b", "<search>"),
            (r"\b[0-9a-f]{32}\b", "<digest>"),
            (r"\b\d\.\de[+-]\d\d\b", "<measured>"),
            (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
            (r"process \d+ on [\w.-]+", "process <number> on <machine>"),
        ]

    def hide(self, text: str | re.Pattern[str], name: str) -> None:
        """Show a text that differs from run to run as its name in brackets.

        Args:
            text: The text, or a regular expression.
            name: What the golden file shows in its place; it may refer to groups of the expression.
        """
        pattern = text.pattern if isinstance(text, re.Pattern) else re.escape(text)
        self._hidden.insert(0, (pattern, f"<{name}>"))

    @contextmanager
    def refused(self, kind: type[_Error], case: str = "") -> Iterator[pytest.ExceptionInfo[_Error]]:
        """Expect an error of a class, with the sentence of the golden file.

        Args:
            kind: The class.
            case: The name of the case, if a test has several.
        """
        with pytest.raises(kind) as caught:
            yield caught
        self.check(str(caught.value), case)

    def refused_each(self, call: Callable[..., object], cases: Iterable[Any]) -> None:
        """Expect that a call refuses each case with a `UserError`.

        Args:
            call: What is called.
            cases: Keyword arguments, or one positional argument; they are the names of the cases.
        """

        def check(case: Any) -> None:
            named = isinstance(case, dict)
            name = ", ".join(f"{key}={value!r}" for key, value in case.items()) if named else str(case)
            with self.refused(UserError, case=name):
                call(**case) if named else call(case)

        assert_each(cases, check)

    def refused_command(self, ended: Ended, case: str = "") -> None:
        """Expect that the last lines of a command are errors, one for each mistake, and its exit code is 2.

        Args:
            ended: The command.
            case: The name of the case, if a test has several.
        """
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        lines = ended.err.splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        assert errors, ended.err
        assert lines[-len(errors) :] == [f"error: {sentence}" for sentence in errors], ended.err
        self.check("\n".join(errors), case)

    def check(self, text: str, case: str = "") -> None:
        """Compare a text with the golden file.

        Args:
            text: One or more lines.
            case: The name of the case, if a test has several.
        """
        lines = self._shown(text).splitlines()
        name = self._name(self._shown(case))
        self.cases[name] = lines if len(lines) > 1 else "".join(lines)
        if self._expected is not None:
            assert self.cases[name] == self._expected.get(name), f"{name}: if this is right, run --rewrite-sentences"

    def check_all_used(self) -> None:
        """Check that the golden file has no other entries of this test."""
        unused = [] if self._expected is None else [name for name in self._expected if name not in self.cases]
        assert not unused, f"no longer said: {unused}; run --rewrite-sentences"

    def _name(self, case: str) -> str | int:
        number = len(self.cases) + 1
        if not case:
            return number
        name = case if len(case) < 100 else f"{case[:98]}…"
        return f"{name} ({number})" if name in self.cases else name

    def _shown(self, text: str) -> str:
        for pattern, name in self._hidden:
            text = re.sub(pattern, name, text)
        return text


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-sentences", action="store_true", help="write the golden files of sentences anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("rewrite_sentences") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--rewrite-sentences writes files from one process; leave --numprocesses out")
    config.stash[GOLDEN_FILES] = GoldenFiles(config)
    config.pluginmanager.register(config.stash[GOLDEN_FILES])


@pytest.fixture
def sentences(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Sentences:
    """The sentences of this test."""
    base = tmp_path_factory.getbasetemp()
    of_session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    checkout = request.config.rootpath
    sentences = Sentences(request.config.stash[GOLDEN_FILES].expected(request.node))
    sentences.hide(re.compile(rf"{re.escape(str(of_session))}(?:/popen-gw\d+)?/([\w-]+?)\d*\b"), r"\1")
    sentences.hide(re.compile(rf"{re.escape(str(checkout))}(?![\w-])"), "checkout")
    sentences.hide(str(checkout.parent / "shared" / "data"), "data")
    sentences.hide(str(tmp_path), "tmp")
    return sentences
