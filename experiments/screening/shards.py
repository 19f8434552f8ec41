"""Do the first shards stand for all samples, if neighbours in length share a shard, and if they are dealt out?

    python experiments/screening/shards.py --store /tmp/shards --data path/to/folder-of-jsonl

Every layer is removed alone on items of Commonsense 170k, whose lengths tell its eight sources apart; the ledger keeps
each item's loss. Then 256 of the items, drawn many times, are put into 16 shards in three ways, and from the first two
in screening order, at every turn of the circle, the differences of all pairs of layers are estimated. Their distance
from the true difference, in standard errors for a finite population, should be more than 3 in 0.27 % of cases, and more
than 4 in 0.006 %. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import raysearch
from raysearch.ledger.ledger import Ledger

N_LAYERS, N_SHARDS = 30, 16
WORDS = "model=smollm2-135m model.dtype=bfloat16 objective=task_margin data=commonsense170k data.seq_len=256"

Array = npt.NDArray[np.float64]


def neighbours(losses: Array, lengths: Array, random: np.random.Generator) -> list[Array]:
    """Shards of about as many tokens, each of samples of about one length, as raysearch made them once."""
    tokens = lengths.cumsum()
    return np.split(losses, np.searchsorted(tokens, tokens[-1] * np.arange(1, N_SHARDS) / N_SHARDS))


def dealt(losses: Array, lengths: Array, random: np.random.Generator) -> list[Array]:
    """Shards as raysearch makes them."""
    return [losses[first::N_SHARDS] for first in range(N_SHARDS)]


def shuffled(losses: Array, lengths: Array, random: np.random.Generator) -> list[Array]:
    """Shards of samples by chance."""
    return np.array_split(random.permutation(losses), N_SHARDS)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger")
    parser.add_argument("--data", type=Path, required=True, help="a folder with commonsense170k/sample.jsonl")
    parser.add_argument("--items", type=int, default=800, help="how many have their losses computed")
    parser.add_argument("--drawn", type=int, default=256, help="how many of them make a calibration")
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    losses, lengths = losses_and_lengths(options)
    print(f"| shards of {options.drawn} items | root mean square | above 3 | above 4 |\n|---|---:|---:|---:|")
    for deal in (neighbours, dealt, shuffled):
        apart = np.concatenate([*draws(losses, lengths, deal, options.drawn, options.draws)])
        shares = " | ".join(f"{(apart > far).mean():.3%}" for far in (3, 4))
        print(f"| {deal.__name__} | {np.sqrt((apart**2).mean()):.2f} | {shares} |", flush=True)


def losses_and_lengths(options: argparse.Namespace) -> tuple[Array, Array]:
    """Return the loss of each item without each layer, [items, layers], and its longest row's tokens, ascending."""
    words = [*WORDS.split(), f"data.path={options.data}/commonsense170k/sample.jsonl", f"data.samples={options.items}"]
    words.append(f"store={options.store}")
    raysearch.sweep(*words)
    (calibration,) = raysearch.inspect(*words, loss=False, samples=sys.maxsize)
    with contextlib.closing(Ledger(options.store / "ledger.db")) as ledger:
        masks = [raysearch.Mask.of(layer) for layer in range(N_LAYERS)]
        known = ledger.known(calibration.fingerprint, masks)
    losses = np.array([np.concatenate([shard for _, shard in sorted(known[mask].items())]) for mask in masks]).T
    rows = [[sum(span.n_tokens for span in row.spans) for row in item.rows] for item in calibration.shown]
    lengths = np.array([max(of_item) for of_item in rows])
    order = np.argsort(lengths, kind="stable")
    return losses[order], lengths[order].astype(np.float64)


def draws(
    losses: Array, lengths: Array, deal: Callable[..., Sequence[Array]], size: int, count: int
) -> Iterator[Array]:
    """Yield, for each of some draws of items, how far estimated differences are from the true ones."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        drawn = np.sort(random.choice(len(losses), size, replace=False))
        yield distances(deal(losses[drawn], lengths[drawn], random))


def distances(shards: Sequence[Array]) -> Array:
    """Return them for each turn of the circle of shards and pair of layers, in standard errors."""
    whole, found = np.concatenate(shards), []
    one, other = np.triu_indices(N_LAYERS, 1)
    for turn in range(N_SHARDS):
        seen = np.concatenate([shards[(turn + half) % N_SHARDS] for half in (0, N_SHARDS // 2)])
        apart = seen[:, one] - seen[:, other]
        error = apart.std(axis=0, ddof=1) * np.sqrt(1 / len(seen) - 1 / len(whole))
        found.append(np.abs(apart.mean(axis=0) - (whole[:, one] - whole[:, other]).mean(axis=0)) / error)
    return np.concatenate(found)


if __name__ == "__main__":
    main()
