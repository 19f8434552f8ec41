"""Every objective that ships, by its YAML, and other options of some: the conformance suite."""

import pytest
import yaml

from raysearch.configuration.parts import build_objective, conf_dir
from raysearch.testing.objective_suite import ObjectiveSuite

SHIPPED = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((conf_dir() / "objective").glob("*.yaml"))}
SECTIONS = {
    **{name: section for name, section in SHIPPED.items() if section["type"] != "weighted"},
    "kl, reverse": {"type": "kl", "direction": "reverse"},
    "kl, js": {"type": "kl", "direction": "js"},
    "task_margin, max": {"type": "task_margin", "against": "max", "tokens": "sum"},
}


class TestObjectives(ObjectiveSuite):
    @pytest.fixture(autouse=True, params=SECTIONS.values(), ids=[*SECTIONS])
    def _section(self, request):
        self.section = request.param

    def make_objective(self):
        return build_objective(self.section)


def test_there_are_objectives():
    assert SECTIONS.keys() >= {
        "perplexity",
        "task_margin",
        "task_accuracy",
        "kl",
        "hidden_cosine",
        "generation_accuracy",
    }
