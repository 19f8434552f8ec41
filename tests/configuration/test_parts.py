"""A `type` names a module of raysearch with exactly one suitable class; anything else is refused in a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import raysearch.searchers
from raysearch.calibration import objectives
from raysearch.configuration.parts import build_data, build_objective, build_searcher
from raysearch.errors import UserError
from tests.sentences import Sentences

_HEAD = """
from dataclasses import dataclass
from raysearch.searchers.base import Searcher
"""
_CLASS = """
{decorator}
class {name}(Searcher):
    def {method}(self, problem, rng):
        yield
"""


def module(folder: Path, name: str, *classes: tuple[str, str, str]) -> str:
    """Write a contributor's module, with classes given as (decorator, name, method), and return its name."""
    text = _HEAD
    for decorator, class_name, method in classes:
        text += _CLASS.format(decorator=decorator, name=class_name, method=method)
    (folder / f"{name}.py").write_text(text)
    return name


def test_an_unusable_searcher_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr(raysearch.searchers, "__path__", [*raysearch.searchers.__path__, str(tmp_path)])
    whole = "@dataclass(frozen=True)"
    wrong = [
        module(tmp_path, "mine_misnamed", (whole, "Mine", "serach")),
        module(tmp_path, "mine_plain", ("", "Mine", "search")),
        module(tmp_path, "mine_two", (whole, "A", "search"), (whole, "B", "search")),
        module(tmp_path, "mine_empty"),
    ]
    for name in wrong:
        with sentences.refused(UserError, case=name):
            build_searcher({"type": name})
    fine = module(tmp_path, "mine_fine", (whole, "Fine", "search"), (whole, "Helper", "help"))
    assert type(build_searcher({"type": fine})).__name__ == "Fine"


def test_an_objective_that_lacks_class_attributes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    source = "from raysearch.calibration.objectives.base import StateObjective\n"
    source += "@dataclass\nclass Formless(StateObjective):\n    def losses(self, states, batch, head, dense): ...\n"
    (tmp_path / "formless.py").write_text(_HEAD + source)
    with sentences.refused(UserError):
        build_objective({"type": "formless"})


def test_all_mistakes_of_a_section_are_reported(sentences: Sentences) -> None:
    with sentences.refused(UserError) as caught:
        build_data({"type": "text", "path": 7, "samples": -1, "seq_len": "x", "feild": "text"})
    assert len(caught.value.sentences) == 4
    with sentences.refused(UserError) as caught:
        build_objective({"type": "task_margin", "tokens": "median", "against": "min"})
    assert len(caught.value.sentences) == 2


def test_a_searcher_is_built_and_tested_without_the_rest() -> None:
    heavy = "{'torch', 'transformers', 'ray', 'mlflow', 'hydra'}"
    code = f"""
import sys, yaml
from raysearch.configuration.parts import build_searcher, conf_dir
from raysearch.testing.searcher_suite import SearcherSuite
for name in ("beam", "genetic"):
    build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{{name}}.yaml").read_text()))
assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
