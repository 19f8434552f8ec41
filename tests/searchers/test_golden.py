"""The losses that every searcher reached on toy losses, recorded: a change of behaviour shows.

For a new searcher, or after an intended change, write its record anew by name and look at the difference:

    python tests/searchers/test_golden.py beam greedy
"""

import json
import sys
from pathlib import Path

import pytest
import yaml

from raysearch.config.parts import build_searcher, conf_dir
from raysearch.core.problem import Problem
from raysearch.searchers.toolbox.subsets import all_masks
from raysearch.testing.searcher_suite import additive_loss, drive, rugged_loss

RECORD = Path(__file__).with_name("golden.json")
PROBLEM = Problem.create(n_layers=16, remove=5)
LOSSES = {"additive": additive_loss, "pairwise": rugged_loss}
SEEDS = range(3)
SLOW = {"bayesian", "nevergrad"}  # of which the first seed is looked at
FILES = {file.stem: file for file in sorted((conf_dir() / "searcher").glob("*.yaml"))}


def reached(name: str, kind: str, seed: int) -> tuple[float, int]:
    """The loss of the mask that a searcher returns, and the number of distinct masks it asked for."""
    loss = LOSSES[kind](PROBLEM, seed)
    searcher = build_searcher(yaml.safe_load(FILES[name].read_text()))
    # Another seed than the loss has: from the same stream, random masks would know the costs.
    found, rounds = drive(searcher, PROBLEM, loss, 100 + seed)
    return loss(found), len({mask for proposed in rounds for mask in proposed.masks})


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text())


def test_the_optima_are_those_recorded(record):
    for kind, loss_of in LOSSES.items():
        optima = [min(map(loss_of(PROBLEM, seed), all_masks(PROBLEM))) for seed in SEEDS]
        assert optima == pytest.approx(record["optimum"][kind])


@pytest.mark.parametrize("name", FILES)
def test_searchers_reach_what_they_reached(record, name):
    assert name in record["reached"], f"write its record: python tests/searchers/test_golden.py {name}"
    for kind in LOSSES:
        seeds = SEEDS[:1] if name in SLOW else SEEDS
        losses, masks = zip(*(reached(name, kind, seed) for seed in seeds), strict=True)
        assert list(losses) == pytest.approx(record["reached"][name][kind][: len(seeds)])
        assert list(masks) == record["masks"][name][kind][: len(seeds)]


def write_record(names: list[str]) -> None:
    """Run some searchers and write their results into the record."""
    unknown = [name for name in names if name not in FILES]
    if unknown or not names:
        raise SystemExit(f"name searchers of conf/searcher/ ({', '.join(FILES)}), not {' '.join(unknown) or 'none'}")
    contents = json.loads(RECORD.read_text())
    for name in names:
        runs = {kind: [reached(name, kind, seed) for seed in SEEDS] for kind in LOSSES}
        contents["reached"][name] = {kind: [loss for loss, _ in seen] for kind, seen in runs.items()}
        contents["masks"][name] = {kind: [masks for _, masks in seen] for kind, seen in runs.items()}
    for part in ("reached", "masks"):
        contents[part] = dict(sorted(contents[part].items()))
    RECORD.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    write_record(sys.argv[1:])
