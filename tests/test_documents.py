"""Every command in the documents is one that raysearch takes, and every console block runs or says why it does not.

A block under ``<!-- not run: REASON -->`` is not run. All others are typed as they stand, block after block in one
folder for each document, except that a tiny model and fewer samples take the place of the real ones.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

import raysearch
from raysearch.cli.app import app
from raysearch.configuration.build import evaluation_spec
from raysearch.configuration.origins import settings_of
from raysearch.searching.recommendation import Budget
from tests.cli.conftest import Run, cwd, run
from tests.models.conftest import write_llama
from tests.test_conf import COMMANDS, built
from tests.test_structure import ROOT

pytestmark = pytest.mark.documents

__all__ = ["cwd", "run"]  # fixtures

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
#: Pages that take long, so that `make faults` runs them.
LONG = ("assessments", "export", "recipes", "recovery", "start", "studies")
BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(raysearch [a-z][^`]*)`")
#: How commands are not to be written: nobody would run them.
OTHERWISE = re.compile(r"\n(?:```(?:bash|sh|shell)\n|\n    \$? ?(?:raysearch|pip|make) )")
PLACEHOLDER = re.compile(r"…|\.\.\.|KEY=VALUE|^\[.*\]$")
WORD = re.compile(r"[A-Za-z]{3,}")
#: The jobs that take a model and data.
SEARCHES = ("search", "score", "data", "sweep", "study")
CLI: Any = typer.main.get_command(app)


@dataclass(frozen=True)
class Block:
    """A console block of a document.

    Args:
        reason: Why it is not run; None if it is.
        text: The commands, each after ``$``, and what they print.
    """

    reason: str | None
    text: str

    def commands(self) -> Iterator[tuple[list[str], str]]:
        """Yield the words of each command and what the document says that it prints."""
        for part in re.split(r"^\$ ", self.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            yield shlex.split(line, comments=True), printed


def blocks(document: Path) -> list[Block]:
    """The console blocks of a document."""
    return [Block(*found.groups()) for found in BLOCK.finditer(document.read_text(encoding="utf-8"))]


def commands(document: Path) -> Iterator[list[str]]:
    """The words of each raysearch command in a document: in its blocks, and with options or words in its lines."""
    for block in blocks(document):
        for words, _ in block.commands():
            if "raysearch" in words:
                yield words[words.index("raysearch") + 1 :]
    prose = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for span in SPAN.findall(prose):
        words = [word for word in shlex.split(span)[1:] if not PLACEHOLDER.search(word)]
        if len(words) > 1 and words[-1] != "--help":
            yield words


def compose(job: str, words: list[str]) -> None:
    """Parse the options of a command, and build what its words say."""
    given = CLI.commands[job].make_context(job, list(words)).params
    job = given["command"] if job == "config" else job
    if job in COMMANDS and given["config_dir"] is None:
        built(job, tuple(given["overrides"] or ()))
        for also in (words for words in given.get("also") or () if "=" in words):
            evaluation_spec(given["overrides"] or [], [also])
    elif job == "recommend":
        Budget.parse(given["budget"] or [])


def test_commands_stand_in_console_blocks() -> None:
    assert sum(len(blocks(page)) for page in PAGES) > 25
    assert not [page.name for page in PAGES if OTHERWISE.search(page.read_text(encoding="utf-8"))]


def test_every_command_is_one_that_raysearch_takes(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        for job, *words in commands(page):
            with subtests.test(f"{page.name}: {job} {' '.join(words)}"):
                compose(job, words)


def test_every_file_of_configuration_works(cwd: Path, subtests: pytest.Subtests) -> None:
    used = re.compile(r"```yaml\n(# (\S+), used by: raysearch (\w+) --config-dir (\w+) ([^\n]*)\n[^`]*)```")
    found = [one for page in PAGES for one in used.findall(page.read_text(encoding="utf-8"))]
    assert len(found) >= 3
    for content, file, job, folder, words in found:
        with subtests.test(file):
            (cwd / file).parent.mkdir(parents=True, exist_ok=True)
            (cwd / file).write_text(content, encoding="utf-8")
            assert settings_of(job, shlex.split(words), folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama under the name of the real model."""
    return write_llama(tmp_path_factory.mktemp("models") / "smollm2-135m.gguf", n_layers=10, context=2048)


def smaller(job: str, words: list[str], model: Path) -> list[str]:
    """The words of a command, with those that make it quick in place of its own."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    small: dict[str, object] = {}
    if job in SEARCHES:
        small = {"model": model, "model.dtype": "float32"} | ({} if job == "study" else {"cluster": "inline"})
        small |= {"tracking": "none"} if job == "search" else {}
        if job != "study" and given.get("data", "sotu") in ("sotu", "file"):
            small |= {"data.samples": min(int(given.get("data.samples", 8)), 8), "data.seq_len": 16}
        small |= {"speed.context_tokens": 32, "speed.repeats": 1} if given.get("remove") == "auto" else {}
        small |= {"objective.max_new_tokens": 2} if given.get("objective") == "generation_accuracy" else {}
    elif job == "recover":
        small = {"data.samples": 24, "data.seq_len": 32, "recovery.max_steps": 2, "assess.limit": 2}
        small |= {"assess.probe.items": 4}
    elif job == "assess":
        small = {"assess.limit": 2, "assess.seq_len": 32, "assess.speed.context_tokens": 32, "assess.speed.repeats": 1}
    return [*words, *(f"{key}={value}" for key, value in small.items())]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(page, marks=[pytest.mark.faults] * (page.stem in LONG), id=page.stem)
        for page in PAGES
        if blocks(page)
    ],
)
def test_every_block_runs(
    document: Path,
    run: Run,
    cwd: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = document.read_text(encoding="utf-8")
    for file in re.findall(r"--from ([\w.-]+\.gguf)", text):
        (cwd / file).symlink_to(model)
    for rows, name in re.findall(r"```jsonl\n(.*?)```\n+```console\n.*? data.path=(\S+)", text, flags=re.DOTALL):
        (cwd / name).write_text(rows, encoding="utf-8")
    todo = [command for block in blocks(document) if block.reason is None for command in block.commands()]
    if any("latest" in words for words, _ in todo) and not any("search" in words for words, _ in todo[:1]):
        run("search", *smaller("search", [], model))
    for (program, job, *words), printed in todo:
        with subtests.test(" ".join([program, job, *words])):
            assert program == "raysearch", "only raysearch is run; say why the others are not"
            outcome = run(job, *smaller(job, words, model))
            assert outcome.code == 0, outcome.err
            told = set(WORD.findall(outcome.out + outcome.err))
            for line in printed.splitlines():  # numbers, judgements and what is in brackets depend on the model
                said = set(WORD.findall(re.sub(r"\(.*?\)", "", line)))
                assert len(said & told) >= len(said) / 2, f"{line}\n is not in:\n{outcome.out}{outcome.err}"


@pytest.mark.real
@pytest.mark.parametrize("document", ["README.md", "docs/recipes.md"])
def test_every_block_of_python_runs(
    document: str, cwd: Path, model: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Each block runs with a tiny model and few samples, whatever it names."""
    search = raysearch.search

    def small_search(*overrides: str, **values: Any) -> raysearch.Search:
        words = ["model.dtype=float32", "cluster=inline", "tracking=none", "data.samples=8", "data.seq_len=16"]
        return search(*overrides, *words, **{**values, "model": model})

    monkeypatch.setattr(raysearch, "search", small_search)
    python_blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / document).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert python_blocks
    for block in python_blocks:
        with subtests.test(block):
            exec(compile(block, document, "exec"), {})


def test_every_command_that_answers_does_so_in_json_too() -> None:
    """README: every command except `ui` takes `--json`."""
    commands: dict[str, Any] = {}
    for name, command in CLI.commands.items():
        commands |= {f"{name} {sub}": one for sub, one in getattr(command, "commands", {name: command}).items()}
    without = {name for name, one in commands.items() if not any("--json" in each.opts for each in one.params)}
    assert {name.split()[-1] for name in without} == {"ui"}
