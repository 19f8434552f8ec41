"""Prints the tables of README.md from the files of evidence.py.

PYTHONPATH=. python experiments/half_layers/tables.py --model smollm2-135m
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


def with_error(mean: float, error: float) -> str:
    return f"{mean:+.3f} ± {error:.3f}"


def error_of_draws(values: pd.Series, errors: pd.Series) -> float:
    """Return the error of a mean over draws: that between them, and that of the windows or items that they share."""
    between = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.hypot(between, errors.mean()))


def mean_of_draws(values: pd.Series, errors: pd.Series) -> str:
    return with_error(values.mean(), error_of_draws(values, errors))


def pairs_table(held_out: pd.DataFrame) -> str:
    """Return what pairs cost beside layers, by searcher and size."""
    lines = ["| searcher | M | calibration: layers | pairs | no worse in | held out: layers | pairs | pairs − layers |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for (searcher, size), rows in held_out.groupby(["searcher", "size"], sort=False):
        by_space = {space: of_space.set_index("draw") for space, of_space in rows.groupby("space")}
        if not {"layers", "pairs"} <= by_space.keys():
            continue
        layers = by_space["layers"]
        pairs = by_space["pairs"]
        draws = layers.index.intersection(pairs.index)
        layers = layers.loc[draws]
        pairs = pairs.loc[draws]
        n_not_worse = int((pairs["delta"] <= layers["delta"] + 1e-6).sum())
        cells = [
            str(searcher),
            str(size),
            f"{layers['delta'].mean():+.3f}",
            f"{pairs['delta'].mean():+.3f}",
            f"{n_not_worse} of {len(draws)}",
            mean_of_draws(layers["held_out"], layers["held_out_error"]),
            mean_of_draws(pairs["held_out"], pairs["held_out_error"]),
            mean_of_draws(pairs["over"], pairs["over_error"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spaces_table(held_out: pd.DataFrame, n_parameters: int, kv_bytes: int) -> str:
    """Return what the masks of each space save and cost, by size; those of a beam if `pairs_table` lacks them."""
    lines = ["| space | searcher | M | parameters | KV cache | calibration | held out |"]
    lines.append("|---|---|---|---|---|---|---|")
    shown = held_out[(held_out["searcher"] == "greedy") | ~held_out["space"].isin(["layers", "pairs"])]
    for (space, searcher, size), rows in shown.groupby(["space", "searcher", "size"], sort=False):
        cells = [
            str(space),
            str(searcher),
            str(size),
            f"−{rows['parameters'].mean() / n_parameters:.1%}",
            f"−{rows['kv_bytes'].mean() / kv_bytes:.1%}",
            f"{rows['delta'].mean():+.3f}",
            mean_of_draws(rows["held_out"], rows["held_out_error"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def windows_table(held_out: pd.DataFrame) -> str:
    """Return what the masks of searches on long windows cost, beside those of searches on short ones, by size."""
    lines = ["| space | M | mask | calibration | held out | mask of short windows | held out | difference |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    is_long = held_out["over"].notna()
    short_rows = held_out[~is_long].set_index(["draw", "space", "size"])
    for row in held_out[is_long].itertuples():
        short = short_rows.loc[(row.draw, row.space, row.size)]
        cells = [row.space, str(row.size), row.mask, f"{row.delta:+.3f}", with_error(row.held_out, row.held_out_error)]
        cells += [short["mask"], with_error(short["held_out"], short["held_out_error"])]
        lines.append(f"| {' | '.join([*cells, with_error(row.over, row.over_error)])} |")
    return "\n".join(lines)


def assessed_table(assessed: pd.DataFrame) -> str:
    """Return the numbers of masks that save as much as whole layers do, as means over the draws."""
    metrics = [*assessed["metric"].unique()]
    dense = assessed.groupby("metric")["dense"].mean()
    lines = [f"| saves as much as | space | M | draws | {' | '.join(metrics)} |"]
    lines.append(f"|---|---|---|---|{'---|' * len(metrics)}")
    lines.append(f"| (dense) | | | | {' | '.join(f'{dense[metric]:.4g}' for metric in metrics)} |")
    rows = assessed.assign(equal=assessed["equal"].str.split("; ")).explode("equal")
    for (equal, space), of_space in rows.groupby(["equal", "space"], sort=False):
        sizes = "/".join(map(str, sorted(of_space["size"].unique())))
        cells = []
        for metric in metrics:
            of_metric = of_space[of_space["metric"] == metric]
            error = error_of_draws(of_metric["value"], of_metric["error"])
            error_text = "" if np.isnan(error) else f" ± {error:.2g}"
            cells.append(f"{of_metric['value'].mean():.4g}{error_text}")
        n_draws = of_space["draw"].nunique()
        lines.append(f"| {equal} | {space} | {sizes} | {n_draws} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--parameters", type=int, required=True, help="of the dense model")
    parser.add_argument("--kv-bytes", type=int, required=True, help="of the dense model at 8192 tokens")
    arguments = parser.parse_args()
    held_out = pd.read_csv(HERE / f"heldout-{arguments.model}.csv")
    if "seq_len" in held_out:
        print(windows_table(held_out))
        return
    print(pairs_table(held_out), spaces_table(held_out, arguments.parameters, arguments.kv_bytes), sep="\n\n")
    assessed = HERE / f"assessed-{arguments.model}.csv"
    if assessed.is_file():
        print(f"\n{assessed_table(pd.read_csv(assessed))}")


if __name__ == "__main__":
    main()
