"""Every file under conf/ works, and opens with commands that use it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from raysearch.configuration import build
from raysearch.configuration.compose import compose
from raysearch.configuration.parts import conf_dir
from raysearch.studies.grid import combinations_of

ROOT = conf_dir()
FILES = sorted(ROOT.rglob("*.yaml"))
EXPERIMENTS = sorted(ROOT.parent.glob("experiments/*/conf/study/*.yaml"))
#: By command, the file in conf/ that it composes, and what builds from its words.
COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], object]]] = {
    "search": ("search", build.search_spec),
    "score": ("score", build.score_spec),
    "study": ("study", build.study_spec),
    "assess": ("assess", lambda overrides: build.assess_spec(compose("assess", overrides))),
    "recover": ("recover", lambda overrides: build.recover_spec(compose("recover", overrides))),
    "data": ("evaluation", lambda overrides: build.evaluation_spec(overrides, [])),
    "sweep": ("evaluation", lambda overrides: build.evaluation_spec(overrides, [])),
}


def place(file: Path) -> str:
    """A file's place under conf/: ``searcher/beam.yaml``."""
    return file.relative_to(ROOT).as_posix()


@cache
def built(command: str, overrides: tuple[str, ...]) -> object:
    """What a command builds from its words, which several files may open with."""
    return COMMANDS[command][1](overrides)


def test_there_are_files() -> None:
    assert {"search.yaml", "score.yaml", "searcher/greedy.yaml"} <= set(map(place, FILES))


@pytest.mark.documents
@pytest.mark.slow
def test_every_file_opens_with_commands_that_choose_it_and_work(subtests: pytest.Subtests) -> None:
    for file in FILES:
        with subtests.test(place(file)):
            lines = file.read_text(encoding="utf-8").splitlines()
            if lines[0] == "# @package _global_" or file.name == "evaluation.yaml":  # Hydra's, or what commands share
                del lines[0]
            assert lines[0].startswith("# raysearch "), "a file opens with the command that uses it"
            group, chosen = file.parent.name, file.parent == ROOT
            for line in lines:
                if line.startswith("# raysearch "):
                    command, *overrides = shlex.split(line.removeprefix("# raysearch ").split("  ")[0])
                    overrides = [word for word in overrides if "=" in word]
                    assert built(command, tuple(overrides))
                    chosen = chosen or f"{group}={file.stem}" in overrides
                    chosen = chosen or compose(COMMANDS[command][0], overrides)["choices"].get(group) == file.stem
            assert chosen, "one of the commands chooses it"


def test_the_studies_of_experiments_are_grids_of_searches(subtests: pytest.Subtests) -> None:
    for file in EXPERIMENTS:
        with subtests.test(file.stem):
            section = compose("study", [f"study={file.stem}"], file.parents[1])["study"]
            combinations = combinations_of(section["grid"], section["include"], section["exclude"])
            axes = [axis for axis in section["grid"].values() if isinstance(axis, dict)]
            texts = {text for axis in axes for text in axis.values()}
            assert len(combinations) > len(texts) > 3
            for text in texts:
                build.search_spec(shlex.split(text))
