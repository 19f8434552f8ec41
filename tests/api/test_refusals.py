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

__all__ = ["cwd", "world"]  # fixtures

#: Arguments of `raysearch.search`, added to those of a quick search, and parts of the message.
SEARCHES: list[tuple[dict[str, Any], list[str]]] = [
    ({"model": 7}, ["model=7 is unknown", "choose one of"]),
    ({"model": None}, ["model=null is unknown"]),
    ({"model": object()}, ["model=<object", "cannot be written down", "give text"]),
    ({"model": {"a": 1}}, ["model.a is not a key"]),
    ({"model": "x" * 300}, ["model=xxx", "is unknown"]),
    ({"class": 2}, ["class is not a key"]),
    ({"remove": float("nan")}, ["remove=NaN should be a valid integer"]),
    ({"remove": 1 + 2j}, ["remove=(1+2j) cannot be written down"]),
    ({"remove": np.float32(1.5)}, ["remove=1.5 should be a valid integer"]),
    ({"remove": {}}, ["remove={} should be a valid integer"]),
    ({"protect": {(1, 2): 3}}, ["protect"]),
    ({"seed": "7"}, ["seed=7 should be a valid integer"]),
    ({"store": "\0"}, ["store=\\x00 cannot be used"]),
    ({"store": "\ud800"}, ["cannot be used"]),
    ({"data": {"path": object()}}, ["data.path=<object", "cannot be written down"]),
    ({"data": {"path": ["a"]}}, ["data.path=[a] should be a valid string"]),
    ({"config_dir": 7}, ["--config-dir=7 is a int", "give a path"]),
    ({"observer": 7}, ["observer=7 is not an Observer"]),
]


def a_search() -> raysearch.Search:
    """Return a handle on a search that is in no ledger."""
    return raysearch.Search(StoreLocation(Path("mlruns")), "greedy-m5-1")


#: Calls of other functions, and parts of the message.
CALLS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "samples below none": (lambda: raysearch.inspect(samples=-1), ["--samples=-1 is negative"]),
    "masks without their key": (lambda: raysearch.score([[1]]), ["[[1]] has no key; name it, as in", "masks=[[1]]"]),  # type: ignore[arg-type]
    "store that is a number": (lambda: raysearch.open(7), ["--store=7 is a int"]),  # type: ignore[arg-type]
    "store that is not there": (lambda: raysearch.open("none").study(), ["there is no ledger at none/ledger.db"]),
    "forgetting in words": (lambda: raysearch.open().clean("x", yes="no"), ["yes=no should be a valid boolean"]),  # type: ignore[arg-type]
    "overwriting in words": (lambda: a_search().export("y", overwrite="no"), ["--overwrite=no should be"]),  # type: ignore[arg-type]
    "a public repository in words": (lambda: a_search().export("y", public="no"), ["--public=no should be"]),  # type: ignore[arg-type]
    "grid that is a list": (lambda: raysearch.study(study={"grid": [1]}), ["study.grid"]),
}


def _shown(error: UserError) -> str:
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in str(error))


def test_impossible_searches_are_refused(cwd: Path, world: World, subtests: pytest.Subtests) -> None:
    data = {"path": world.text, "samples": 8, "seq_len": 16}
    usual: dict[str, Any] = {"model": world.model, "data": data, "cluster": "inline", "tracking": "none", "remove": 2}
    for values, fragments in SEARCHES:
        with subtests.test(fragments[0]):
            with pytest.raises(UserError) as caught:
                raysearch.search("data=file", **{**usual, **values})
            is_sentence(_shown(caught.value), fragments)
            assert not tree(cwd)


def test_impossible_calls_are_refused(cwd: Path, subtests: pytest.Subtests) -> None:
    for wrong, (call, fragments) in CALLS.items():
        with subtests.test(wrong):
            with pytest.raises(UserError) as caught:
                call()
            is_sentence(_shown(caught.value), fragments)
            assert not tree(cwd)


def test_paths_may_be_text(cwd: Path, world: World) -> None:
    data = {"path": str(world.text), "samples": 8, "seq_len": 16}
    usual: dict[str, Any] = {"model": str(world.model), "data": data, "cluster": "inline", "tracking": "none"}
    raysearch.search("data=file", remove=np.int64(2), searcher="one_shot", store=cwd / "a", **usual)
    for store in ("a", cwd / "a"):
        with pytest.raises(UserError, match="holds no study yet"):
            raysearch.open(store).study()
