"""Compare the effects of the objective and of the data: {perplexity, margin} x {C4, Commonsense} on one model.

A greedy search uses one draw of samples. Single layers are evaluated on other draws too, which shows the noise.

    python experiments/calibrations_on_smollm2/run.py --store /tmp/cells

It takes about three quarters of an hour on two shared cores. If it is stopped, the same command continues. It writes
six CSV files, cells.png and, for people, tables.md next to this file.
"""

import argparse
import contextlib
import csv
import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

import raysearch
from raysearch.ledger.ledger import Ledger
from raysearch.reporting.sweep import sweep_figure
from raysearch.searching.score import Score

HERE = Path(__file__).parent
DRAWS = (0, 1)  # data.seed; masks are searched on the first
M = 5

C4 = "data.path={data}/c4/calibration.jsonl"
COMMONSENSE = "data=commonsense170k data.path={data}/commonsense170k/sample.jsonl data.samples=48"
#: The overrides of each cell, for its objective and its data; about as many scored tokens in each.
CELLS = {
    ("perplexity", "C4"): f"objective=perplexity data=c4 {C4} data.samples=16 data.seq_len=128",
    ("perplexity", "Commonsense"): f"objective=perplexity {COMMONSENSE} data.score=all",
    ("margin", "C4"): f"objective=task_margin data=continuation {C4} data.samples=16",
    ("margin", "Commonsense"): f"objective=task_margin {COMMONSENSE}",
}
#: More items of a third draw for single layers, in the cells in which few items are too noisy.
MORE = {("margin", "C4", 2): 48, ("margin", "Commonsense", 2): 192}
UNSEEN = "data.allow_evaluation_split=true data.seed=0 data.path={data}"
ARC = "data=arc_easy data.question=query data.choices=choices data.answer=gold data.prompt={{question}}"
ACCURACY = "objective=task_accuracy objective.normalise=characters data.samples=100"
#: Data that no search has used.
HELDOUT = {
    "C4 perplexity": f"objective=perplexity data=c4 {UNSEEN}/c4/evaluation.jsonl data.samples=32 data.seq_len=256",
    "ARC-Easy accuracy": f"{ACCURACY} {ARC} {UNSEEN}/arc_easy/test.jsonl",
    "PIQA accuracy": f"{ACCURACY} data=piqa {UNSEEN}/piqa/validation.jsonl",
}
#: Whether two calibrations have the same objective and the same data, and the name of their difference.
PAIRS = {(True, True): "the draw", (True, False): "data, draw", (False, True): "objective, draw", (False, False): "all"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger and of the results")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--model", default="smollm2-135m", help="the same as a folder of safetensors loads faster")
    args = parser.parse_args()
    common = [f"model={args.model}", "model.name=smollm2-135m", "model.dtype=bfloat16", "cluster.replicas=2"]
    common.append(f"store={args.store}")

    def overrides_of(text: str) -> list[str]:
        return [*common, *text.format(data=args.data).split()]

    keys = [(*cell, draw) for draw in DRAWS for cell in CELLS]
    calibrations = {key: f"{CELLS[key[:2]]} data.seed={key[2]}" for key in keys}
    calibrations |= {key: f"{CELLS[key[:2]]} data.seed={key[2]} data.samples={n}" for key, n in MORE.items()}
    cells = [search(key, overrides_of(calibrations[key]), args.store) for key in keys if key[2] == DRAWS[0]]
    masks = [json.loads(row["removed"]) for row in cells]

    first, *others = (text.format(data=args.data) for text in calibrations.values())
    swept = raysearch.sweep(*overrides_of(first), also=others)  # on the first draw, the ledger answers
    searched = dataclasses.replace(swept, calibrations=swept.calibrations[: len(cells)])
    sweep_figure(searched, M).savefig(HERE / "cells.png", dpi=150)
    names = [" ".join(map(str, key)) for key in calibrations]
    losses = zip(*(profile.losses for profile in swept.calibrations), strict=True)
    singles = [{"layer": layer, **dict(zip(names, row, strict=True))} for layer, row in enumerate(losses)]
    pairs = [
        {**labels(key), **labels(other_key, "other_"), "spearman": agreement.spearman, "shared": agreement.shared}
        for (key, other_key), agreement in zip(
            itertools.combinations(calibrations, 2), swept.agreements(M), strict=True
        )
    ]

    with contextlib.closing(Ledger(args.store / "ledger.db")) as ledger:
        noise = [{**labels(key), **split_halves(overrides_of(text), ledger)} for key, text in calibrations.items()]

    cross = []
    for key in keys:
        dense, *scores = score(overrides_of(calibrations[key]), masks)
        for row, mask_score in zip(cells, scores, strict=True):
            cross.append(
                {**labels_of_mask(row), **labels(key, "by_"), "loss": mask_score.loss, "dense_loss": dense.loss}
            )
    readouts = {name: score(overrides_of(text), masks) for name, text in HELDOUT.items()}
    heldout = [
        {**row, **{name: scores[place].measure.read(scores[place].loss) for name, scores in readouts.items()}}
        for place, row in enumerate([{"objective": "dense", "data": "", "removed": "[]"}, *map(labels_of_mask, cells)])
    ]
    write(HERE / "cells.csv", cells)
    write(HERE / "singles.csv", singles)
    write(HERE / "agreements.csv", pairs)
    write(HERE / "noise.csv", noise)
    write(HERE / "cross.csv", cross)
    write(HERE / "heldout.csv", heldout)
    (HERE / "tables.md").write_text("\n".join(tables(cells, pairs, noise, cross, heldout)) + "\n")


def search(key: tuple[str, str, int], overrides: list[str], store: Path) -> dict:
    """Return a cell as a row. Its costs are those of the first run; later, the ledger has all losses."""
    file = store / "rows" / f"{'-'.join(map(str, key))}.json"
    if not file.exists():
        result = raysearch.search(*overrides, "searcher=greedy", f"remove={M}", "tracking=none").result
        row = {
            **labels(key),
            "removed": str(list(result.removed)),
            "order": str(list(result.removal_order or ())),
            "dense_loss": result.dense_loss,
            "loss": result.loss,
            "unit": result.measure.unit,
            "samples": result.samples.n_samples,
            "scored_tokens": result.samples.n_tokens,
            "requested": result.work.evaluations.requested,
            "computed": result.work.evaluations.computed,
            "layer_forwards_computed": result.work.layer_forwards.computed,
            "layer_forwards_naive": result.work.layer_forwards.naive,
            "layer_tokens": result.work.layer_tokens.computed,
            "seconds": result.work.seconds,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row))
        print(f"{key}: {result.mask} {result.loss:.4f} after {result.work.seconds:.0f} s", flush=True)
    return json.loads(file.read_text())


def split_halves(overrides: list[str], ledger: Ledger, n_layers: int = 30) -> dict:
    """Return how well the rankings of single layers by two random halves of the samples agree."""
    (calibration,) = raysearch.inspect(*overrides, loss=False, samples=0)
    subjects = [raysearch.Mask(), *map(raysearch.Mask.of, range(n_layers))]
    evaluations = ledger.evaluations(calibration.fingerprint, subjects)
    shard_losses = ([values for _, values in sorted(evaluations[subject].items())] for subject in subjects)
    losses = np.array([np.concatenate(losses_by_shard) for losses_by_shard in shard_losses])
    added = losses[1:] - losses[0]
    rng = np.random.default_rng(0)
    orders = (np.array_split(rng.permutation(added.shape[1]), 2) for _ in range(500))
    correlations = [
        stats.spearmanr(added[:, half].sum(1), added[:, other_half].sum(1)).statistic for half, other_half in orders
    ]
    worth = np.abs(added.mean(1)) / stats.sem(added, axis=1)
    return {
        "samples": added.shape[1],
        "halves_spearman": float(np.mean(correlations)),
        "median_t": float(np.median(worth)),
    }


def score(overrides: list[str], masks: list[list[int]]) -> list[Score]:
    """Return the score of the dense model, followed by that of each mask."""
    return raysearch.score(*overrides, masks=[[], *masks])


def labels(key: tuple[str, str, int], prefix: str = "") -> dict:
    """Return a calibration as columns."""
    return {prefix + name: value for name, value in zip(("objective", "data", "draw"), key, strict=True)}


def labels_of_mask(row: dict) -> dict:
    """Return the labels of a mask: its calibration and its layers."""
    return {name: row[name] for name in ("objective", "data", "removed")}


def tables(
    cells: list[dict], pairs: list[dict], noise: list[dict], cross: list[dict], heldout: list[dict]
) -> Iterator[str]:
    """Yield the lines of the results in Markdown."""
    costs = ("scored tokens", "requested", "layer-forwards computed / naive", "s")
    yield from table("What each cell removes", ("cell", "in order of removal", "dense", "pruned", *costs))
    for row in cells:
        layers = f"{row['layer_forwards_computed']:,.0f} / {row['layer_forwards_naive']:,.0f}"
        columns = f"{named(row)} | {row['order']} | {row['dense_loss']:.4f} | {row['loss']:.4f}"
        yield f"| {columns} | {row['scored_tokens']:,} | {row['requested']} | {layers} | {row['seconds']:.0f} |"
    yield from table("Layers that two masks share, of 5, and Jaccard overlap", ("", *map(named, cells)))
    for row in cells:
        yield f"| {named(row)} | {' | '.join(overlap(row, other) for other in cells)} |"
    yield from table(
        "Single layers: how far two calibrations agree (mean, from … to)",
        ("they differ in", "pairs", "Spearman", "shared of the 5 missed least"),
    )
    for same, name in PAIRS.items():
        rows = [
            pair
            for pair in pairs
            if same == tuple(pair[part] == pair[f"other_{part}"] for part in ("objective", "data"))
            and {pair["draw"], pair["other_draw"]} == set(DRAWS)
        ]
        values = [[row[column] for row in rows] for column in ("spearman", "shared")]
        spans = (f"{statistics.mean(many):.2f} ({min(many):.3g} … {max(many):.3g})" for many in values)
        yield f"| {name} | {len(rows)} | {' | '.join(spans)} |"
    yield from table(
        "Single layers: signal and noise within one calibration",
        ("cell", "draw", "samples", "Spearman of its random halves", "median of added loss / standard error"),
    )
    for row in noise:
        halves = f"{row['halves_spearman']:.2f} | {row['median_t']:.1f}"
        yield f"| {named(row)} | {row['draw']} | {row['samples']} | {halves} |"
    title = "What each mask adds to each cell's loss: on the draw of the searches / on another"
    yield from table(title, ("mask of", *map(named, cells)))
    added = {
        (named(row), named(row, "by_"), row["by_draw"]): f"{row['loss'] - row['dense_loss']:+.3f}" for row in cross
    }
    for row in map(named, cells):
        yield f"| {row} | {' | '.join(' / '.join(added[row, named(by), draw] for draw in DRAWS) for by in cells)} |"
    yield from table("What no search has seen", ("mask of", "removed", *HELDOUT))
    for row in heldout:
        readouts = " | ".join(f"{row[name]:.4g}" for name in HELDOUT)
        yield f"| {named(row) if row['data'] else 'dense'} | {row['removed']} | {readouts} |"


def overlap(row: dict, other_row: dict) -> str:
    """Return how many layers two masks share, and the Jaccard similarity of the masks."""
    removed = set(json.loads(row["removed"]))
    other_removed = set(json.loads(other_row["removed"]))
    shared = removed & other_removed
    return f"{len(shared)}, {len(shared) / len(removed | other_removed):.2f}"


def table(title: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the heading and the header of a table."""
    yield f"\n### {title}\n"
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def named(row: dict, prefix: str = "") -> str:
    """Return the name of a cell."""
    return f"{row[prefix + 'objective']} on {row[prefix + 'data']}"


def write(path: Path, rows: list[dict]) -> None:
    """Write the rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
