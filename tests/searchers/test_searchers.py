"""Every searcher that ships, by its YAML: the conformance suite, and what each is known to cost."""

import pytest
import yaml

from raysearch.config.parts import build_searcher, conf_dir
from raysearch.core.problem import Problem
from raysearch.testing.searcher_suite import SearcherSuite, drive, rugged_loss

FILES = sorted((conf_dir() / "searcher").glob("*.yaml"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def section(request):
    return yaml.safe_load(request.param.read_text())


class TestShippedSearchers(SearcherSuite):
    @pytest.fixture(autouse=True)
    def _section(self, section):
        self.section = section

    def make_searcher(self):
        return build_searcher(self.section)


def test_there_are_searchers():
    assert {file.stem for file in FILES} >= {
        *("one_shot", "greedy", "beam", "genetic", "bayesian", "cbo", "random", "exhaustive", "reverse"),
        *("block_influence", "magnitude", "taylor", "angular_distance", "fast_block_select", "cbo_gradient"),
    }


@pytest.mark.parametrize("name", ["genetic", "bayesian", "random"])
def test_another_seed_is_another_search(name):
    searcher = build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{name}.yaml").read_text()))
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, seed=0)
    assert drive(searcher, problem, loss, seed=1)[1] != drive(searcher, problem, loss, seed=2)[1]
