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
LONG = ("assessments", "export", "llama_cpp", "recipes", "recovery", "start", "studies")
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
        """Yield the arguments of each command, and the output that the document shows."""
        for part in re.split(r"^\$ ", self.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            yield shlex.split(line, comments=True), printed


def blocks(document: Path) -> list[Block]:
    """Return the console blocks of a document."""
    return [Block(*match.groups()) for match in BLOCK.finditer(document.read_text(encoding="utf-8"))]


def commands(document: Path) -> Iterator[list[str]]:
    """Yield the arguments of each raysearch command in a document: in its blocks, and with arguments in its lines."""
    for block in blocks(document):
        for arguments, _ in block.commands():
            if "raysearch" in arguments:
                yield arguments[arguments.index("raysearch") + 1 :]
    prose = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for span in SPAN.findall(prose):
        arguments = [argument for argument in shlex.split(span)[1:] if not PLACEHOLDER.search(argument)]
        if len(arguments) > 1 and arguments[-1] != "--help":
            yield arguments


def compose(job: str, arguments: list[str]) -> None:
    """Parse the arguments of a command, and build the specification of its overrides."""
    options = CLI.commands[job].make_context(job, list(arguments)).params
    job = options["command"] if job == "config" else job
    if job in COMMANDS and options["config_dir"] is None:
        built(job, tuple(options["overrides"] or ()))
        for also in options.get("also") or ():
            if "=" in also:
                evaluation_spec(options["overrides"] or [], [also])
    elif job == "recommend":
        Budget.parse(options["budget"] or [])


def test_commands_stand_in_console_blocks() -> None:
    assert sum(len(blocks(page)) for page in PAGES) > 25
    assert not [page.name for page in PAGES if OTHERWISE.search(page.read_text(encoding="utf-8"))]


def test_every_command_is_one_that_raysearch_takes(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        for job, *arguments in commands(page):
            with subtests.test(f"{page.name}: {job} {' '.join(arguments)}"):
                compose(job, arguments)


def test_every_file_of_configuration_works(cwd: Path, subtests: pytest.Subtests) -> None:
    used = re.compile(r"```yaml\n(# (\S+), used by: raysearch (\w+) --config-dir (\w+) ([^\n]*)\n[^`]*)```")
    files = [match for page in PAGES for match in used.findall(page.read_text(encoding="utf-8"))]
    assert len(files) >= 3
    for content, file, job, folder, overrides in files:
        with subtests.test(file):
            (cwd / file).parent.mkdir(parents=True, exist_ok=True)
            (cwd / file).write_text(content, encoding="utf-8")
            assert settings_of(job, shlex.split(overrides), folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama under the name of the real model."""
    return write_llama(tmp_path_factory.mktemp("models") / "smollm2-135m.gguf", n_layers=10, context=2048)


def smaller(job: str, arguments: list[str], model: Path) -> list[str]:
    """Return the arguments of a command, followed by overrides that make it quick."""
    values = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    small: dict[str, object] = {}
    if job in SEARCHES:
        small = {"model": model, "model.dtype": "float32"} | ({} if job == "study" else {"cluster": "inline"})
        small |= {"tracking": "none"} if job == "search" else {}
        if job != "study" and values.get("data", "sotu") in ("sotu", "file"):
            small |= {"data.samples": min(int(values.get("data.samples", 8)), 8), "data.seq_len": 16}
        small |= {"speed.context_tokens": 32, "speed.repeats": 1} if values.get("remove") == "auto" else {}
        small |= {"objective.max_new_tokens": 2} if values.get("objective") == "generation_accuracy" else {}
    elif job == "recover":
        small = {"data.samples": 24, "data.seq_len": 32, "recovery.max_steps": 2, "assess.limit": 2}
        small |= {"assess.probe.items": 4}
    elif job == "assess":
        small = {"assess.limit": 2, "assess.seq_len": 32, "assess.speed.context_tokens": 32, "assess.speed.repeats": 1}
    return [*arguments, *(f"{key}={value}" for key, value in small.items())]


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
    needs_search = any("latest" in arguments for arguments, _ in todo)
    first_arguments, _ = todo[0] if todo else ([], "")
    if needs_search and "search" not in first_arguments:
        run("search", *smaller("search", [], model))
    for (program, job, *arguments), printed in todo:
        with subtests.test(" ".join([program, job, *arguments])):
            assert program == "raysearch", "only raysearch is run; say why the others are not"
            outcome = run(job, *smaller(job, arguments, model))
            assert outcome.code == 0, outcome.err
            printed_words = set(WORD.findall(outcome.out + outcome.err))
            for line in printed.splitlines():  # numbers, judgements and what is in brackets depend on the model
                expected_words = set(WORD.findall(re.sub(r"\(.*?\)", "", line)))
                assert len(expected_words & printed_words) >= len(expected_words) / 2, (
                    f"{line}\n is not in:\n{outcome.out}{outcome.err}"
                )


@pytest.mark.real
@pytest.mark.parametrize("document", ["README.md", "docs/recipes.md"])
def test_every_block_of_python_runs(
    document: str, cwd: Path, model: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Each block runs with a tiny model and few samples, whatever it names."""
    search = raysearch.search

    def small_search(*overrides: str, **values: Any) -> raysearch.Search:
        small = ["model.dtype=float32", "cluster=inline", "tracking=none", "data.samples=8", "data.seq_len=16"]
        return search(*overrides, *small, **{**values, "model": model})

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
        subcommands = getattr(command, "commands", {name: command})
        commands |= {f"{name} {sub}": subcommand for sub, subcommand in subcommands.items()}
    without = set()
    for name, command in commands.items():
        if not any("--json" in option.opts for option in command.params):
            without.add(name.split()[-1])
    assert without == {"ui"}
