"""What every recorded searcher reaches on toy losses: a change of behaviour shows.

For a new searcher, or after a change that is meant, write the record anew and look at the difference:

    python tests/searchers/test_golden.py
"""

import json
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from raysearch.config.build import build_searcher
from raysearch.config.compose import conf_dir
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.testing.searcher_suite import additive_loss, drive, rugged_loss

RECORD = Path(__file__).with_name("golden.json")
PROBLEM = Problem.create(n_layers=16, remove=5)
LOSSES = {"additive": additive_loss, "pairwise": rugged_loss}
SEEDS = range(3)
FILES = sorted((conf_dir() / "searcher").glob("*.yaml"))
RECORDED = [file for file in FILES if file.stem in json.loads(RECORD.read_text())["reached"]]


def optimum(kind: str, seed: int) -> float:
    """The lowest loss of any mask, by brute force."""
    loss = LOSSES[kind](PROBLEM, seed)
    return min(loss(Mask(layers)) for layers in combinations(PROBLEM.free, PROBLEM.n_remove))


def reached(file: Path, kind: str, seed: int) -> tuple[float, int]:
    """The loss of the mask that a searcher returns, and the distinct masks it asked for."""
    loss = LOSSES[kind](PROBLEM, seed)
    searcher = build_searcher(yaml.safe_load(file.read_text()))
    # Another seed than the loss has: from the same stream, random masks would know the costs.
    found, rounds = drive(searcher, PROBLEM, loss, 100 + seed)
    return loss(found), len({mask for proposed in rounds for mask in proposed.masks})


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text())


@pytest.mark.parametrize("kind", LOSSES)
def test_the_optima_are_those_recorded(record, kind):
    assert [optimum(kind, seed) for seed in SEEDS] == pytest.approx(record["optimum"][kind])


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_searchers_reach_what_they_reached(record, file, kind):
    losses, masks = zip(*(reached(file, kind, seed) for seed in SEEDS), strict=True)
    assert list(losses) == pytest.approx(record["reached"][file.stem][kind])
    assert list(masks) == record["masks"][file.stem][kind]


def write_record() -> None:
    """Runs everything and writes the record."""
    runs = {file.stem: {kind: [reached(file, kind, seed) for seed in SEEDS] for kind in LOSSES} for file in FILES}
    contents = {
        "optimum": {kind: [optimum(kind, seed) for seed in SEEDS] for kind in LOSSES},
        "reached": {name: {kind: [loss for loss, _ in seen] for kind, seen in of.items()} for name, of in runs.items()},
        "masks": {name: {kind: [masks for _, masks in seen] for kind, seen in of.items()} for name, of in runs.items()},
    }
    RECORD.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    write_record()
