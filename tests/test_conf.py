"""Every file under conf/ works, and opens with the command that uses it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from raysearch.config import build
from raysearch.config import compose as config
from raysearch.config.parts import conf_dir
from raysearch.study.grid import choices_of

ROOT = conf_dir()
FILES = sorted(ROOT.rglob("*.yaml"))
EXPERIMENTS = sorted(ROOT.parent.glob("experiments/*/conf/study/*.yaml"))
JOBS = {
    "search": build.search_spec,
    "score": build.score_spec,
    "assess": build.assess_spec,
    "study": lambda config: build.assess_spec(config) if config["choices"]["assess"] != "none" else None,
    "data": lambda config: build.evaluation_spec(config, []),
    "sweep": lambda config: build.evaluation_spec(config, []),
}
NEEDED = {
    "model=custom": ["model.path=x"],
    "data=file": ["data.path=x.txt"],
    "data=hub": ["data.name=a/b"],
    "assess=none": ["assess.tasks=[piqa]"],
    **{f"data={name}": ["data.path=x.jsonl"] for name in ("chat", "continuation", "multiple_choice", "questions")},
}


def place(file: Path) -> str:
    """A file's place under conf/: ``searcher/beam.yaml``."""
    return file.relative_to(ROOT).as_posix()


def test_there_are_files() -> None:
    assert {"search.yaml", "score.yaml", "searcher/greedy.yaml"} <= set(map(place, FILES))


@pytest.mark.parametrize("file", [file for file in FILES if file.parent != ROOT], ids=place)
def test_every_choice_builds(file: Path) -> None:
    choice = f"{file.parent.name}={file.stem}"
    group = file.parent.name
    job = group if group in ("assess", "study") else "search" if group in ("searcher", "tracking") else "score"
    masks = ["masks=[[1]]"] if job == "score" else []
    composed = config.compose(job, [choice, *NEEDED.get(choice, []), *masks])
    JOBS[job](composed)
    if job == "study":
        assert build.study_spec([choice]).cells
    assert composed["choices"][file.parent.name] == file.stem


@pytest.mark.parametrize("file", FILES, ids=place)
def test_every_file_opens_with_a_command_that_parses(file: Path) -> None:
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    commands = [line.removeprefix("# ") for line in [first, *lines] if line.startswith("# raysearch ")]
    if (
        place(file) == "evaluation.yaml" or first == "# @package _global_"
    ):  # what commands share says so first, or Hydra
        first = lines[0]
    assert first.startswith("# raysearch "), "a file opens with the command that uses it"
    for command in commands:
        words = shlex.split(command.split("  ")[0])
        overrides = [word for word in words[2:] if "=" in word]
        job = "evaluation" if words[1] in ("data", "sweep") else words[1]
        JOBS[words[1]](config.compose(job, overrides))
        if job == "study":
            assert build.study_spec(overrides).cells


@pytest.mark.parametrize(
    "file", sorted(ROOT.parent.glob("experiments/*/conf/study/*.yaml")), ids=lambda file: file.stem
)
def test_the_studies_of_experiments_are_grids_of_searches(file: Path) -> None:
    section = config.compose("study", [f"study={file.stem}"], file.parents[1])["study"]
    choices = choices_of(section["grid"], section["include"], section["exclude"])
    words = {words for axis in section["grid"].values() if isinstance(axis, dict) for words in axis.values()}
    assert len(choices) > len(words) > 5
    for one in words:
        build.search_spec(config.compose("search", shlex.split(one)))
