"""Compare the results of the same searches on two devices: masks and losses of a GPU and of a CPU.

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
    """Return a row for each search, with its results on both devices (``_gpu`` and ``_cpu``)."""
    cells = pd.concat(pd.read_csv(RESULTS / study / "cells.csv").assign(study=study) for study in ON_CPU.values())
    on_cpu = cells[cells["study"] == cells["calibration"].map(ON_CPU)]
    on_gpu = pd.read_csv(RESULTS / "many_items_by_all" / "cells.csv")
    searches = on_gpu.merge(on_cpu, on=PLACE, suffixes=("_gpu", "_cpu"), validate="1:1")
    masks = [[Mask.of(*json.loads(layers)) for layers in searches[f"removed_{device}"]] for device in ("gpu", "cpu")]
    searches["jaccard"] = [gpu_mask.jaccard(cpu_mask) for gpu_mask, cpu_mask in zip(*masks, strict=True)]
    searches["same"] = searches["jaccard"] == 1
    searches["difference"] = searches["loss_gpu"] - searches["loss_cpu"]
    return searches


def main() -> None:
    """Print the table."""
    searches = pairs()
    print("| calibration | searcher | the same mask | mean Jaccard | largest difference of their losses, nats |")
    print("|---|---|---:|---:|---:|")
    for (calibration, searcher), group in searches.groupby(["calibration", "searcher"], sort=False):
        same, largest = f"{group['same'].sum()} of {len(group)}", group["difference"].abs().max()
        print(f"| {calibration} | {searcher} | {same} | {group['jaccard'].mean():.2f} | {largest:.3f} |")
    same = searches[searches["same"]]
    print(f"\n{len(same)} of {len(searches)} searches found the same mask; its losses differ by", end=" ")
    print(f"{same['difference'].abs().median():.4f} nats (median), {same['difference'].abs().max():.4f} at most.")


if __name__ == "__main__":
    main()
