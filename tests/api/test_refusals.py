"""Python values that no key accepts are refused with a `UserError` of one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysearch
from raysearch.api.location import StoreLocation
from raysearch.errors import UserError
from tests.cli.conftest import World, cwd, world
from tests.cli.refusals import is_sentence, tree
from tests.sentences import Sentences

__all__ = ["cwd", "world"]  # fixtures

#: Arguments of `raysearch.search`, added to those of a quick search.
SEARCHES: list[dict[str, Any]] = [
    {"model": 7},
    {"model": None},
    {"model": object()},
    {"model": {"a": 1}},
    {"model": "x" * 300},
    {"class": 2},
    {"remove": float("nan")},
    {"remove": 1 + 2j},
    {"remove": np.float32(1.5)},
    {"remove": {}},
    {"protect": {(1, 2): 3}},
    {"seed": "7"},
    {"store": "\0"},
    {"store": "\ud800"},
    {"data": {"path": object()}},
    {"data": {"path": ["a"]}},
    {"config_dir": 7},
    {"observer": 7},
]


def a_search() -> raysearch.Search:
    """Return a handle on a search that is in no ledger."""
    return raysearch.Search(StoreLocation(Path("mlruns")), "greedy-m5-1")


#: Calls of other functions.
CALLS: dict[str, Callable[[], object]] = {
    "samples below none": lambda: raysearch.inspect(samples=-1),
    "masks without their key": lambda: raysearch.score([[1]]),  # type: ignore[arg-type]
    "store that is a number": lambda: raysearch.open(7),  # type: ignore[arg-type]
    "store that is not there": lambda: raysearch.open("none").study(),
    "forgetting in words": lambda: raysearch.open().clean("x", yes="no"),  # type: ignore[arg-type]
    "overwriting in words": lambda: a_search().export("y", overwrite="no"),  # type: ignore[arg-type]
    "a public repository in words": lambda: a_search().export("y", public="no"),  # type: ignore[arg-type]
    "grid that is a list": lambda: raysearch.study(study={"grid": [1]}),
}


def _shown(error: UserError) -> str:
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in str(error))


def test_impossible_searches_are_refused(
    cwd: Path, world: World, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    data = {"path": world.text, "samples": 8, "seq_len": 16}
    usual: dict[str, Any] = {"model": world.model, "data": data, "cluster": "inline", "tracking": "none", "remove": 2}
    for values in SEARCHES:
        with subtests.test(str(values)):
            with pytest.raises(UserError) as caught:
                raysearch.search("data=file", **{**usual, **values})
            sentence = _shown(caught.value)
            is_sentence(sentence)
            sentences.check(sentence, ascii(values))
            assert not tree(cwd)


def test_impossible_calls_are_refused(cwd: Path, subtests: pytest.Subtests, sentences: Sentences) -> None:
    for wrong, call in CALLS.items():
        with subtests.test(wrong):
            with pytest.raises(UserError) as caught:
                call()
            sentence = _shown(caught.value)
            is_sentence(sentence)
            sentences.check(sentence, wrong)
            assert not tree(cwd)


def test_paths_may_be_text(cwd: Path, world: World, sentences: Sentences) -> None:
    data = {"path": str(world.text), "samples": 8, "seq_len": 16}
    usual: dict[str, Any] = {"model": str(world.model), "data": data, "cluster": "inline", "tracking": "none"}
    raysearch.search("data=file", remove=np.int64(2), searcher="one_shot", store=cwd / "a", **usual)
    for store in ("a", cwd / "a"):
        with sentences.refused(UserError):
            raysearch.open(store).study()
