"""What the same searches find on another device: masks and losses of a GPU beside those of a CPU.

    python experiments/rethinking_layer_redundancy/another_device.py

Searches are paired by calibration, searcher, M and draw; many_items_by_all has those of the GPU, three_draws
(perplexity) and many_items (margin) those of the CPU. Prints Markdown.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from raysearch.core.mask import Mask

RESULTS = Path(__file__).parent / "results"
PLACE = ["calibration", "searcher", "remove", "draw"]
#: The study that has the searches of a calibration.
ON_CPU = {"perplexity on C4": "three_draws", "margin on Commonsense": "many_items"}


def pairs() -> pd.DataFrame:
    """Return a row for each search, with ``_gpu`` and ``_cpu`` of what it found."""
    cells = pd.concat(pd.read_csv(RESULTS / study / "cells.csv").assign(study=study) for study in ON_CPU.values())
    on_cpu = cells[cells["study"] == cells["calibration"].map(ON_CPU)]
    on_gpu = pd.read_csv(RESULTS / "many_items_by_all" / "cells.csv")
    found = on_gpu.merge(on_cpu, on=PLACE, suffixes=("_gpu", "_cpu"), validate="1:1")
    masks = [[Mask.of(*json.loads(layers)) for layers in found[f"removed_{device}"]] for device in ("gpu", "cpu")]
    found["jaccard"] = [one.jaccard(other) for one, other in zip(*masks, strict=True)]
    found["same"] = found["jaccard"] == 1
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
