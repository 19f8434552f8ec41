"""Every objective that ships, by its YAML: the conformance suite."""

import pytest
import yaml

from raysearch.config.parts import build_objective, conf_dir
from raysearch.testing.objective_suite import ObjectiveSuite

FILES = sorted(
    file
    for file in (conf_dir() / "objective").glob("*.yaml")
    if "type: weighted" not in file.read_text(encoding="utf-8")
)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def section(request):
    return yaml.safe_load(request.param.read_text())


class TestShippedObjectives(ObjectiveSuite):
    @pytest.fixture(autouse=True)
    def _section(self, section):
        self.section = section

    def make_objective(self):
        return build_objective(self.section)


class TestReverseKL(ObjectiveSuite):
    def make_objective(self):
        return build_objective({"type": "kl", "direction": "reverse"})


class TestJensenShannon(ObjectiveSuite):
    def make_objective(self):
        return build_objective({"type": "kl", "direction": "js"})


class TestMarginAgainstTheBest(ObjectiveSuite):
    def make_objective(self):
        return build_objective({"type": "task_margin", "against": "max", "tokens": "sum"})


def test_there_are_objectives():
    shipped = {file.stem for file in FILES}
    assert shipped >= {"perplexity", "task_margin", "task_accuracy", "kl", "hidden_cosine", "generation_accuracy"}
