"""Searchers and objectives of one's own: as objects in Python, and by the entry points of an installed package."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import raysearch
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.configuration.build import study_spec
from raysearch.configuration.compose import compose
from raysearch.configuration.overrides import as_overrides
from raysearch.configuration.parts import build_objective, build_searcher
from raysearch.errors import UserError
from raysearch.searchers.beam import BeamSearcher
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World, cwd, run, world
from tests.sentences import Sentences
from tests.test_structure import ROOT

__all__ = ["cwd", "run", "world"]  # fixtures
MODULE = "own_searcher_and_objective"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module, imported as a user's is."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE)


def settings(world: World) -> dict[str, Any]:
    data = {"path": world.text, "samples": 8, "seq_len": 16}
    return {"model": world.model, "data": data, "cluster": "inline"}


def test_objects_search_and_stand_on_record(world: World, cwd: Path, own: Any, sentences: Sentences) -> None:
    values = settings(world)
    parts = {"searcher": own.Annealing(steps=4), "objective": own.Bits()}
    search = raysearch.search("data=file", remove=2, tracking="none", **parts, **values)
    result = search.result
    assert result.config["searcher"] == {"type": f"{MODULE}.Annealing", "steps": 4, "temperature": 0.1}
    assert result.search_id.startswith("Annealing-m2-")
    assert result.config["choices"]["objective"] == "Bits"
    [nats] = raysearch.score("data=file", masks=[result.removed], **values)
    assert result.loss == pytest.approx(nats.loss / math.log(2), abs=1e-12)
    again = search.resume().result
    assert (again.removed, again.loss, again.work.evaluations.computed) == (result.removed, result.loss, 0)
    sys.modules.pop(MODULE)
    with sentences.refused(UserError):
        search.export("out")
    sys.modules[MODULE] = own


def test_objects_stand_in_the_grid_of_a_study(own: Any) -> None:
    grid = {"searcher": {"it's mine": own.Annealing(steps=2), "greedy": "searcher=greedy"}, "remove": [1]}
    cells = study_spec(as_overrides({"study": {"name": "own", "grid": grid}})).cells
    assert {cell.searcher: cell.search.searcher for cell in cells} == {
        "it's mine": own.Annealing(steps=2),
        "greedy": BeamSearcher(width=1),
    }


def test_objects_of_ours_are_what_their_words_are(own: Any) -> None:
    [searcher, objective] = as_overrides({"searcher": BeamSearcher(width=3), "objective": KLObjective("reverse")})
    composed = compose("search", [searcher, objective, "searcher.width=4"])
    assert build_searcher(composed["searcher"]) == BeamSearcher(width=4)
    assert build_objective(composed["objective"]) == KLObjective("reverse")
    overrides = compose("search", ["searcher=beam", "searcher.width=4", "objective=kl", "objective.direction=reverse"])
    assert (composed["searcher"], composed["objective"]) == (overrides["searcher"], overrides["objective"])


@dataclass(frozen=True)
class Plain:
    """No searcher."""


def test_what_is_no_searcher_is_told_so(own: Any, sentences: Sentences) -> None:
    @dataclass(frozen=True)
    class Hidden(own.Annealing):
        pass

    wrong = [
        own.Annealing,
        Hidden(),
        Plain(),
        own.Annealing(steps="many"),
    ]
    for value in wrong:
        with sentences.refused(UserError):
            raysearch.forecast(searcher=value)
    with sentences.refused(UserError):
        raysearch.forecast("searcher={width: 3}")


def test_an_installed_package_adds_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, world: World, sentences: Sentences
) -> None:
    """Named by its entry points and chosen by a file of one's own, as on the command line."""
    package = tmp_path / "site"
    (package / "mine-1.0.dist-info").mkdir(parents=True)
    (package / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    names = f"[raysearch.searchers]\nannealing = {MODULE}:Annealing\nbroken = no_such_module\n"
    names += f"[raysearch.objectives]\nbits = {MODULE}\n"
    (package / "mine-1.0.dist-info" / "entry_points.txt").write_text(names)
    (package / f"{MODULE}.py").write_bytes((ROOT / "examples" / f"{MODULE}.py").read_bytes())
    monkeypatch.syspath_prepend(str(package))
    hot, bits = "type: annealing\nsteps: 3\ntemperature: 0.1", "type: bits"
    for place, text in {"searcher/hot": hot, "objective/bits": bits}.items():
        file = tmp_path / "conf" / f"{place}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    overrides = world.search(searcher="hot", objective="bits", searcher__temperature=0.2)
    printed = json_answer(run("search", *overrides, "--config-dir", str(tmp_path / "conf"), "--json"))
    assert printed["search_id"].startswith("hot-m2-")
    assert printed["measure"]["unit"] == "bits per token"
    assert raysearch.open().search().result.config["searcher"] == {"type": "annealing", "steps": 3, "temperature": 0.2}
    assert run("export", "latest", "--out", "out").code == 0
    refused = run("search", *world.search(), "searcher={type:broken}")
    sentences.refused_command(refused)
    sys.modules.pop(MODULE)
