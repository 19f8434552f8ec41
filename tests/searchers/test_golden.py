"""The recorded losses that every searcher reached on toy losses; a change of behaviour changes them.

For a new searcher, or after an intended change, write its record again by name and check the difference:

    python tests/searchers/test_golden.py beam greedy
"""

import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from raysearch.configuration.parts import build_searcher, conf_dir
from raysearch.core.problem import Problem
from raysearch.searchers.toolbox.subsets import all_masks
from raysearch.testing.searcher_suite import additive_loss, drive, rugged_loss

RECORD = Path(__file__).with_name("golden.csv")
PROBLEM = Problem.create(n_layers=16, remove=5)
LOSSES = {"additive": additive_loss, "pairwise": rugged_loss}
SEEDS = range(3)
SLOW = {"bayesian", "nevergrad"}  # tested with the first seed only
FILES = {file.stem: file for file in sorted((conf_dir() / "searcher").glob("*.yaml"))}


def reached(name: str, kind: str, seed: int) -> tuple[float, int]:
    """The loss of the mask that a searcher returns, and the number of distinct masks that it proposes."""
    loss = LOSSES[kind](PROBLEM, seed)
    searcher = build_searcher(yaml.safe_load(FILES[name].read_text()))
    # The seed differs from that of the loss: with the same random numbers, random masks would depend on the costs.
    mask, rounds = drive(searcher, PROBLEM, loss, 100 + seed)
    return loss(mask), len({mask for proposed in rounds for mask in proposed.masks})


@pytest.fixture(scope="module")
def record():
    return pd.read_csv(RECORD)


def test_exhaustive_search_reached_the_optima(record):
    rows = record[record["searcher"] == "exhaustive"]
    optima = [min(map(LOSSES[row.losses](PROBLEM, row.seed), all_masks(PROBLEM))) for row in rows.itertuples()]
    assert len(optima) == len(LOSSES) * len(SEEDS)
    assert optima == pytest.approx(rows["reached"].tolist())


@pytest.mark.parametrize("name", FILES)
def test_searchers_reach_their_recorded_losses(record, name):
    rows = record[record["searcher"] == name]
    assert len(rows), f"write its record: python tests/searchers/test_golden.py {name}"
    for row in rows[rows["seed"].isin(SEEDS[:1] if name in SLOW else SEEDS)].itertuples():
        loss, n_masks = reached(name, row.losses, row.seed)
        assert loss == pytest.approx(row.reached)
        assert n_masks == row.masks


def write_record(names: list[str]) -> None:
    """Run these searchers and write their results into the record."""
    unknown = [name for name in names if name not in FILES]
    if unknown or not names:
        raise SystemExit(f"name searchers of conf/searcher/ ({', '.join(FILES)}), not {' '.join(unknown) or 'none'}")
    before = pd.read_csv(RECORD, dtype={"reached": str})  # every digit stays
    rows = [(name, kind, seed, *reached(name, kind, seed)) for name in names for kind in LOSSES for seed in SEEDS]
    after = pd.concat([before[~before["searcher"].isin(names)], pd.DataFrame(rows, columns=before.columns)])
    after.sort_values(["searcher", "losses", "seed"]).to_csv(RECORD, index=False)


if __name__ == "__main__":
    write_record(sys.argv[1:])
