"""Every objective that ships, by its YAML: the conformance suite."""

import pytest
import yaml

from raysearch.build import build_objective
from raysearch.config import conf_dir
from raysearch.testing.objective_suite import ObjectiveSuite

FILES = sorted((conf_dir() / "objective").glob("*.yaml"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def section(request):
    return yaml.safe_load(request.param.read_text())


class TestShippedObjectives(ObjectiveSuite):
    @pytest.fixture(autouse=True)
    def _section(self, section):
        self.section = section

    def make_objective(self):
        return build_objective(self.section)


def test_there_are_objectives():
    assert {file.stem for file in FILES} >= {"perplexity"}
