"""What the same searches find on another device: masks and losses of a GPU beside those of a CPU.

    python experiments/rethinking_layer_redundancy/another_device.py

Searches are paired by calibration, searcher, M and draw; ``results/h100.csv`` has those of the GPU, the ``cells.csv``
of three_draws (perplexity) and many_items (margin) those of the CPU. Prints Markdown.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"
PLACE = ["calibration", "searcher", "remove", "draw"]


def pairs() -> pd.DataFrame:
    """Return a row for each search, with ``_gpu`` and ``_cpu`` of what it found."""
    on_cpu = pd.concat(
        cells[cells["calibration"] == calibration]
        for study, calibration in (("three_draws", "perplexity on C4"), ("many_items", "margin on Commonsense"))
        for cells in [pd.read_csv(RESULTS / study / "cells.csv")]
    )
    found = pd.read_csv(RESULTS / "h100.csv").merge(on_cpu, on=PLACE, suffixes=("_gpu", "_cpu"), validate="1:1")
    masks = [found[f"removed_{device}"].map(json.loads).map(frozenset) for device in ("gpu", "cpu")]
    found["same"] = masks[0] == masks[1]
    found["jaccard"] = [len(one & other) / len(one | other) for one, other in zip(*masks, strict=True)]
    found["difference"] = found["loss_gpu"] - found["loss_cpu"]
    return found


def main() -> None:
    """Prints the table."""
    found = pairs()
    print("| calibration | searcher | the same mask | mean Jaccard | largest difference of their losses, nats |")
    print("|---|---|---:|---:|---:|")
    for (calibration, searcher), its in found.groupby(["calibration", "searcher"], sort=False):
        same, largest = f"{its['same'].sum()} of {len(its)}", its["difference"].abs().max()
        print(f"| {calibration} | {searcher} | {same} | {its['jaccard'].mean():.2f} | {largest:.3f} |")
    same = found[found["same"]]
    print(f"\n{len(same)} of {len(found)} searches found the same mask; its losses differ by", end=" ")
    print(f"{same['difference'].abs().median():.4f} nats (median), {same['difference'].abs().max():.4f} at most.")


if __name__ == "__main__":
    main()
