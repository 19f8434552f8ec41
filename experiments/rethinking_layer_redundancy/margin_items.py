"""How many items does a task margin need, so that another draw of items finds the same mask?

    python experiments/rethinking_layer_redundancy/margin_items.py --store mlruns > …/results/margin_items.md

Every layer is removed alone, on many items of Commonsense 170k and on many windows of C4; the ledger keeps the loss of
each. The items are those of the draws of study=many_items, whose store has their losses already. Then two groups of n,
drawn at random without a common one, rank the layers and choose the mask of one-shot, some hundred times for every n.
Prints Markdown. If it is stopped, the same command continues.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

import raysearch
from raysearch.ledger.ledger import Ledger
from raysearch.searching.inspection import ShownSample

N_LAYERS = 30
SIZES = (5, 7)
SAMPLES = (8, 16, 32, 64, 128, 256, 512, 1024, 1536)
SPLITS = 400
GOAL = 0.9  # of the correlation
C4 = "objective=perplexity data=c4 data.path={data}/c4/calibration.jsonl data.seq_len=64 data.samples=256"
COMMONSENSE = (
    "objective=task_margin data=commonsense170k data.path={data}/commonsense170k/sample.jsonl data.seq_len=256 "
    "data.samples=1570"
)


def main() -> None:
    """Print a table for each calibration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], help="draws of the margin's items")
    args = parser.parse_args()
    common = ["model=smollm2-135m", "model.dtype=bfloat16", f"store={args.store}"]
    for name, text, draws in (("Margin on Commonsense", COMMONSENSE, args.draws), ("Perplexity on C4", C4, [0])):
        overrides = [*common, *text.format(data=args.data).split()]
        added = added_losses(overrides, draws, args.store / "ledger.db")
        print(f"## {name}: {added.shape[1]} samples\n")
        print("| samples in each half | Spearman | Jaccard, M=5 | Jaccard, M=7 |\n|---:|---:|---:|---:|")
        for n, spearman, *shared in halves(added):
            print(f"| {n} | {spearman:.2f} | {' | '.join(f'{similarity:.2f}' for similarity in shared)} |")
        if spearman < GOAL:
            more = n * GOAL * (1 - spearman) / (spearman * (1 - GOAL))  # Spearman (1910) and Brown (1910)
            print(f"\nBy the formula of Spearman and Brown, {more:,.0f} samples would have a correlation of {GOAL}.")
        print(f"\nOf the variance between layers {noise_share(added):.2%} is due to which samples were drawn.\n")


def added_losses(overrides: list[str], draws: list[int], path: Path) -> npt.NDArray[np.float64]:
    """Return what each layer adds to the loss of each sample that is in one of the draws, layers x samples."""
    subjects = [raysearch.Mask(), *map(raysearch.Mask.of, range(N_LAYERS))]
    added_by_sample: dict[ShownSample, npt.NDArray[np.float64]] = {}
    for draw in draws:
        drawn = [*overrides, f"data.seed={draw}"]
        raysearch.sweep(*drawn)
        (calibration,) = raysearch.inspect(*drawn, loss=False, samples=sys.maxsize)
        with contextlib.closing(Ledger(path)) as ledger:
            evaluations = ledger.evaluations(calibration.fingerprint, subjects)
        shard_losses = ([values for _, values in sorted(evaluations[subject].items())] for subject in subjects)
        losses = np.array([np.concatenate(losses_by_shard) for losses_by_shard in shard_losses])
        added_by_sample |= zip(calibration.shown, (losses[1:] - losses[0]).T, strict=True)
    return np.array([*added_by_sample.values()]).T


def halves(added: npt.NDArray[np.float64]) -> Iterator[tuple[float, ...]]:
    """Yield n, and how much two groups of n samples agree: Spearman of the layers, Jaccard of the masks of each M."""
    random = np.random.default_rng(0)
    half = added.shape[1] // 2
    for n in (*(size for size in SAMPLES if size < half), half):
        agreements = []
        for _ in range(SPLITS):
            order = random.permutation(added.shape[1])
            first, second = (added[:, part].mean(1) for part in (order[:n], order[n : 2 * n]))
            agreements.append(
                [stats.spearmanr(first, second).statistic, *(jaccard(first, second, size) for size in SIZES)]
            )
        yield (n, *np.mean(agreements, axis=0))


def jaccard(effects_of_first: npt.NDArray[np.float64], effects_of_second: npt.NDArray[np.float64], size: int) -> float:
    """Return how much two masks of one-shot share."""
    mask, other_mask = (
        raysearch.Mask.of(*np.argsort(effects)[:size]) for effects in (effects_of_first, effects_of_second)
    )
    return mask.jaccard(other_mask)


def noise_share(added: npt.NDArray[np.float64]) -> float:
    """Return the share of the variance between layers that is due to which samples were drawn, of all together."""
    apart = added - added.mean(0)  # what an item adds to all layers alike changes no ranking
    return float((apart.var(1, ddof=1) / added.shape[1]).mean() / added.mean(1).var(ddof=1))


if __name__ == "__main__":
    main()
