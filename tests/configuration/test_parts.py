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


def test_an_unusable_searcher_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raysearch.searchers, "__path__", [*raysearch.searchers.__path__, str(tmp_path)])
    whole = "@dataclass(frozen=True)"
    wrong = {
        module(tmp_path, "mine_misnamed", (whole, "Mine", "serach")): (0, r" \(Mine lacks search\)"),
        module(tmp_path, "mine_plain", ("", "Mine", "search")): (0, r" \(Mine is not a @dataclass\)"),
        module(tmp_path, "mine_two", (whole, "A", "search"), (whole, "B", "search")): (2, ""),
        module(tmp_path, "mine_empty"): (0, ""),
    }
    for name, (number, why) in wrong.items():
        sentence = (
            f"searcher.type={name} cannot be used: raysearch.searchers.{name} has {number} dataclasses that are a S"
        )
        with pytest.raises(UserError, match=f"^{sentence}.* methods{why}; .*choose one of conf/searcher/$"):
            build_searcher({"type": name})
    fine = module(tmp_path, "mine_fine", (whole, "Fine", "search"), (whole, "Helper", "help"))
    assert type(build_searcher({"type": fine})).__name__ == "Fine"


def test_an_objective_that_lacks_class_attributes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    source = "from raysearch.calibration.objectives.base import StateObjective\n"
    source += "@dataclass\nclass Formless(StateObjective):\n    def losses(self, states, batch, head, dense): ...\n"
    (tmp_path / "formless.py").write_text(_HEAD + source)
    with pytest.raises(UserError, match=r"\(Formless lacks form and measure\)"):
        build_objective({"type": "formless"})


def test_all_mistakes_of_a_section_are_reported() -> None:
    with pytest.raises(UserError) as caught:
        build_data({"type": "text", "path": 7, "samples": -1, "seq_len": "x", "feild": "text"})
    refused = [sentence.partition(" ")[0] for sentence in caught.value.sentences]
    assert refused == ["data.feild", "data.path=7", "data.samples=-1", "data.seq_len=x"]
    with pytest.raises(UserError) as caught:
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
