"""How many items a margin needs until two halves of them rank the single layers alike.

Removes each layer alone on many items, draws two disjoint sets of n of them again and again, and compares the rankings.
Prints Markdown. Stopped, the same command goes on.

    python experiments/rethinking_layer_redundancy/margin_items.py --data data --store /tmp/margin_items
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import numpy as np
from scipy import stats

import raysearch
from raysearch.ledger.ledger import Ledger

N_LAYERS = 30
SPLITS = 2000
ENOUGH = 0.8  # of Spearman's correlation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger")
    parser.add_argument("--items", type=int, default=768)
    args = parser.parse_args()
    added = added_margins(
        args.store,
        "model=smollm2-135m model.dtype=bfloat16 objective=task_margin data=commonsense170k data.seq_len=256",
        f"data.path={args.data}/commonsense170k/sample.jsonl data.samples={args.items}",
    )
    rng = np.random.default_rng(0)
    n_items = added.shape[1]
    sizes = [size for size in (16, 32, 64, 96, 128, 192, 256, 384, 512, 768) if 2 * size <= n_items]
    print(f"{n_items} items of Commonsense170k, {N_LAYERS} single layers, {SPLITS} random pairs of disjoint sets\n")
    print("| items in each set | Spearman of the two rankings, mean (middle 95 %) |\n|---:|---:|")
    for size in sizes:
        found = np.array([agreement(added, rng.permutation(n_items)[: 2 * size], size) for _ in range(SPLITS)])
        low, high = np.quantile(found, (0.025, 0.975))
        print(f"| {size} | {found.mean():.2f} ({low:+.2f} to {high:+.2f}) |")
    # Spearman and Brown: two sets of n items correlate by n r / (1 + (n - 1) r), where r is that of single items.
    one = found.mean() / (size - (size - 1) * found.mean())
    needed = ENOUGH * (1 - one) / (one * (1 - ENOUGH))
    print(f"\nSets of {needed:,.0f} items would agree by {ENOUGH} (Spearman and Brown's formula, from sets of {size}).")
    worth = np.abs(added.mean(1)) / stats.sem(added, axis=1)
    print(f"Median of a layer's added margin, in standard errors over all items: {np.median(worth):.1f}.")


def added_margins(store: Path, *words: str) -> np.ndarray:
    """What each layer's removal adds to each item's loss, [layers, items]."""
    given = [f"store={store}", *(word for text in words for word in text.split())]
    subjects = [raysearch.Mask(), *map(raysearch.Mask.of, range(N_LAYERS))]
    raysearch.score(*given, masks=[list(subject) for subject in subjects])
    (calibration,) = raysearch.inspect(*given, loss=False, samples=0)
    with contextlib.closing(Ledger(store / "ledger.db")) as ledger:
        known = ledger.known(calibration.fingerprint, subjects)
    losses = np.array([np.concatenate([shard for _, shard in sorted(known[one].items())]) for one in subjects])
    return losses[1:] - losses[0]


def agreement(added: np.ndarray, items: np.ndarray, size: int) -> float:
    """How far two sets of items rank the layers alike."""
    ours, theirs = (added[:, some].sum(1) for some in (items[:size], items[size:]))
    return float(stats.spearmanr(ours, theirs).statistic)


if __name__ == "__main__":
    main()
