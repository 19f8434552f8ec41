"""docs/papers.md: the presets set the values that it states, and the papers have the sentences that it quotes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from raysearch.configuration.compose import compose
from raysearch.configuration.parts import conf_dir
from tests.conftest import DATA_FOLDER

PAGE = Path(__file__).parents[1] / "docs" / "papers.md"
SEEDS = DATA_FOLDER.with_name("seeds")
PAPERS = {"A": "rethinking_layer_redundancy.txt", "B": "limits_of_layer_pruning.txt"}
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [AB] ", line)
]


def composed(overrides: str) -> dict[str, object]:
    jobs = {"study": "study", "assess": "assess", "recovery": "recover"}
    job = jobs.get(overrides.split("=")[0], "search")
    return compose(job, shlex.split(overrides))


def value_of(config: dict[str, object], key: str) -> object:
    value: object = config
    for part in key.split("."):
        assert isinstance(value, dict), f"{key} has no {part}"
        assert part in value, f"{key} has no {part}"
        value = value[part]
    return value


def test_presets_set_what_the_page_says(subtests: pytest.Subtests) -> None:
    assert len(ROWS) > 15
    for paper, _, overrides, values, *_ in ROWS:
        with subtests.test(f"{paper}: {overrides}"):
            pairs = [pair.split("=", 1) for pair in re.findall(r"`([^`]+)`", values)]
            config = composed(overrides.strip("`"))
            assert pairs
            assert [value_of(config, key) for key, _ in pairs] == [yaml.safe_load(value) for _, value in pairs]


def test_the_papers_study_has_the_words_of_the_page() -> None:
    grid = yaml.safe_load((conf_dir() / "study" / "paper.yaml").read_text(encoding="utf-8"))["grid"]
    documented = {overrides.strip("`") for paper, _, overrides, *_ in ROWS if paper.startswith("A 4")}
    assert {*grid["searcher"].values(), *grid["calibration"].values()} <= documented


@pytest.mark.data
def test_the_papers_have_the_sentences(subtests: pytest.Subtests) -> None:
    if not SEEDS.is_dir():
        pytest.skip("needs ../shared/seeds")
    texts = {name: plain(once((SEEDS / file).read_text(encoding="utf-8"))) for name, file in PAPERS.items()}
    for paper, sentence, *_ in ROWS:
        if sentence != "(the same)":
            with subtests.test(f"{paper}: {sentence}"):
                assert plain(sentence) in texts[paper.split()[0]]


def once(text: str) -> str:
    """A paper's text with its numbers once: copied from a browser, it has each formula twice."""
    return re.sub(r"(\d+(?:\.\d+)?|[A-Z]=\d+)\1(?![\d.])", r"\1", text)


def plain(text: str) -> str:
    """Text without references, in lower case, its spaces alike."""
    text = re.sub(r"\([^()]*\b(19|20)\d\d[a-z]?\)", "", text)
    return re.sub(r"\s+", " ", re.sub(r"\s+([,.)])", r"\1", text)).lower()
