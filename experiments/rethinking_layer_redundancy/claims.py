"""What the study's report does not say by itself: the shape of masks, the prior's share, objective and data apart.

Reads the ``cells.csv`` of a report and prints Markdown tables.

    python experiments/rethinking_layer_redundancy/claims.py results/cells.csv
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import product
from pathlib import Path

import pandas as pd

#: The paper's seven searchers.
SEVEN = ("one-shot", "greedy", "beam", "GA", "BO", "CBO", "fast-block-select")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path)
    cells = pd.read_csv(parser.parse_args().cells)
    cells = cells[cells["loss"].notna()]
    cells["layers"] = cells["removed"].map(json.loads)
    print(f"## Shape of the masks (the paper's seven searchers)\n\n{shapes(cells)}\n")
    print(f"## The prior of single layers\n\n{priors(cells)}\n")
    print(f"## Objective and data apart\n\n{crossed(cells)}")


def shapes(cells: pd.DataFrame) -> str:
    """Runs of neighbouring layers, where they lie, and how alike searchers' masks are."""
    rows = []
    seven = cells[cells["searcher"].isin(SEVEN)]
    for (calibration, remove), group in seven.groupby(["calibration", "remove"], sort=False):
        first = group.drop_duplicates("searcher")
        alike = [jaccard(a, b) for i, a in enumerate(first["layers"]) for b in first["layers"].iloc[i + 1 :]]
        runs = group["layers"].map(n_runs)
        middle = group["layers"].map(lambda layers: sum(layers) / len(layers))
        places = f"{middle.mean():.1f} ± {middle.std():.1f}"
        mean, span = f"{sum(alike) / len(alike):.2f}", f"{min(alike):.2f} to {max(alike):.2f}"
        rows.append([calibration, remove, f"{runs.mean():.1f}", places, mean, span])
    heads = ["calibration", "M", "runs of neighbours", "middle layer (sd)", "mean Jaccard", "range"]
    return table(heads, rows)


def priors(cells: pd.DataFrame) -> str:
    """What GA and BO lose without the prior, over the same seeds; and one-shot, which is the prior."""
    rows = []
    for (calibration, remove), group in cells.groupby(["calibration", "remove"], sort=False):
        best = group["loss"].min()
        behind = {name: one["loss"] - best for name, one in group.groupby("searcher")}
        names = ("one-shot", "GA", "GA without prior", "BO", "BO without prior", "random")
        rows.append([calibration, remove, *(over_seeds(behind[name]) if name in behind else "" for name in names)])
    return table(["calibration", "M", "one-shot", "GA", "GA, no prior", "BO", "BO, no prior", "random"], rows)


def crossed(cells: pd.DataFrame) -> str:
    """How alike the masks of two calibrations are: mean Jaccard over the seven searchers and both M, like with like."""
    seven = cells[cells["searcher"].isin(SEVEN) & (cells["seed"] == 0)]
    names = list(dict.fromkeys(seven["calibration"]))
    rows = []
    for one in names:
        row = [one]
        for other in names:
            pairs = [
                jaccard(a, b)
                for searcher, remove in product(SEVEN, sorted(set(seven["remove"])))
                for a in pick(seven, one, searcher, remove)
                for b in pick(seven, other, searcher, remove)
            ]
            row.append(f"{sum(pairs) / len(pairs):.2f}" if pairs and one != other else "")
        rows.append(row)
    return table(["", *names], rows)


def pick(cells: pd.DataFrame, calibration: str, searcher: str, remove: int) -> list[list[int]]:
    chosen = (cells["calibration"] == calibration) & (cells["searcher"] == searcher) & (cells["remove"] == remove)
    return list(cells[chosen]["layers"])


def n_runs(layers: list[int]) -> int:
    """How many runs of neighbours a mask falls into."""
    return sum(layer - 1 not in layers for layer in layers)


def jaccard(one: list[int], other: list[int]) -> float:
    return len({*one} & {*other}) / len({*one} | {*other})


def over_seeds(values: pd.Series) -> str:
    """A mean, and its standard error where there are several."""
    if len(values) == 1:
        return f"{values.iloc[0]:.3f}"
    return f"{values.mean():.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


def table(heads: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
