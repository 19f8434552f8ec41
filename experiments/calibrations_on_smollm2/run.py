"""Objective and data apart: {perplexity, margin} x {C4, Commonsense} on one model, each cell on two draws of samples.

    python experiments/calibrations_on_smollm2/run.py --store /tmp/cells        about half an hour on two cores

Stopped, the same command goes on. It writes five CSV files, cells.png and, for people, tables.md beside this
file.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import raysearch
from raysearch.study.sweep import Agreement
from raysearch.study.sweep_files import sweep_figure

HERE = Path(__file__).parent
SEEDS = (0, 1)
M = 5

C4 = "data.path={data}/c4/calibration.jsonl"
COMMONSENSE = "data=commonsense170k data.path={data}/commonsense170k/sample.jsonl data.samples=48"
#: Objective and data of each cell, in words of the command line; about as many scored tokens in each.
CELLS = {
    ("perplexity", "C4"): f"objective=perplexity data=c4 {C4} data.samples=16 data.seq_len=128",
    ("perplexity", "Commonsense"): f"objective=perplexity {COMMONSENSE} data.score=all",
    ("margin", "C4"): f"objective=task_margin data=continuation {C4} data.samples=16",
    ("margin", "Commonsense"): f"objective=task_margin {COMMONSENSE}",
}
UNSEEN = "data.allow_evaluation_split=true data.seed=0 data.path={data}"
ARC = "data=arc_easy data.question=query data.choices=choices data.answer=gold data.prompt={{question}}"
ACCURACY = "objective=task_accuracy objective.normalise=characters data.samples=100"
#: What no search has seen.
HELDOUT = {
    "C4 perplexity": f"objective=perplexity data=c4 {UNSEEN}/c4/evaluation.jsonl data.samples=32 data.seq_len=256",
    "ARC-Easy accuracy": f"{ACCURACY} {ARC} {UNSEEN}/arc_easy/test.jsonl",
    "PIQA accuracy": f"{ACCURACY} data=piqa {UNSEEN}/piqa/validation.jsonl",
}
#: In which of objective, data and draw two searches differ, for people.
PAIRS = {
    (True, True): "nothing but the draw of samples",
    (True, False): "the data",
    (False, True): "the objective",
    (False, False): "both",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger and of the results")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--model", default="smollm2-135m", help="the same as a folder of safetensors loads faster")
    args = parser.parse_args()
    common = [f"model={args.model}", "model.name=smollm2-135m", "model.dtype=bfloat16", "cluster.replicas=2"]
    common.append(f"store={args.store}")

    def words(text: str) -> list[str]:
        return [*common, *text.format(data=args.data).split()]

    keys = [(*cell, seed) for seed in SEEDS for cell in CELLS]
    calibrations = {key: f"{CELLS[key[:2]]} data.seed={key[2]}" for key in keys}
    cells = [search(key, words(calibrations[key]), args.store) for key in keys]
    masks = [row["removed"] for row in cells]

    # The single layers are the first round of each search, so the ledger answers.
    first, *others = (calibrations[key].format(data=args.data) for key in keys)
    swept = raysearch.sweep(*words(first), also=others)
    one_draw = dataclasses.replace(swept, profiles=swept.profiles[: len(CELLS)])
    sweep_figure(one_draw, M).savefig(HERE / "cells.png", dpi=150)
    singles = [
        {
            "layer": layer,
            **{" ".join(map(str, key)): one.losses[layer] for key, one in zip(keys, swept.profiles, strict=True)},
        }
        for layer in range(len(swept.profiles[0].losses))
    ]
    pairs = [
        overlap(one, other, agreement)
        for (one, other), agreement in zip(itertools.combinations(cells, 2), swept.agreements(M), strict=True)
    ]

    cross = []
    for key in keys:
        scores = score(words(calibrations[key]), masks)
        for row, (loss, _) in zip(cells, scores[1:], strict=True):
            of = {"objective": row["objective"], "data": row["data"], "seed": row["seed"], "removed": row["removed"]}
            by = {"by_objective": key[0], "by_data": key[1], "by_seed": key[2]}
            cross.append({**of, **by, "loss": loss, "dense_loss": scores[0][0]})

    readouts = {name: score(words(text), masks) for name, text in HELDOUT.items()}
    dense = {"objective": "dense", "data": "", "seed": "", "removed": "[]"}
    heldout = [
        {**{name: row[name] for name in dense}, **{name: scores[place][1] for name, scores in readouts.items()}}
        for place, row in enumerate([dense, *cells])
    ]
    for name, rows in zip(
        ("cells", "singles", "overlaps", "cross", "heldout"), (cells, singles, pairs, cross, heldout), strict=True
    ):
        write(HERE / f"{name}.csv", rows)
    (HERE / "tables.md").write_text("\n".join(tables(cells, pairs, cross, heldout)) + "\n")


def search(key: tuple[str, str, int], words: list[str], store: Path) -> dict:
    """One cell as a row: as it went the first time, when the ledger did not yet know it all."""
    kept = store / "rows" / f"{'-'.join(map(str, key))}.json"
    if not kept.exists():
        result = raysearch.search(*words, "searcher=greedy", f"remove={M}", "tracking=none")
        row = {
            **dict(zip(("objective", "data", "seed"), key, strict=True)),
            "removed": str(list(result.removed)),
            "order": str(list(result.removal_order or ())),
            "dense_loss": result.dense_loss,
            "loss": result.loss,
            "unit": result.measure.unit,
            "samples": result.n_samples,
            "scored_tokens": result.n_tokens,
            "asked": result.asked,
            "run": result.run,
            "layer_forwards_run": result.layer_forwards_run,
            "layer_forwards_naive": result.layer_forwards_naive,
            "layer_tokens": result.layer_tokens,
            "seconds": result.seconds,
        }
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(row))
        print(f"{key}: {result.mask} {result.loss:.4f} after {result.seconds:.0f} s", flush=True)
    return json.loads(kept.read_text())


def score(words: list[str], masks: list[str]) -> list[tuple[float, float]]:
    """Loss and readout of the dense model and of each mask."""
    lists = [json.loads(mask) for mask in dict.fromkeys(["[]", *masks])]
    scores = {str(list(one.mask)): one for one in raysearch.score(*words, masks=lists)}
    return [(scores[mask].loss, scores[mask].measure.read(scores[mask].loss)) for mask in ["[]", *masks]]


def overlap(one: dict, other: dict, agreement: Agreement) -> dict:
    """How far two searches agree: on the layers they remove, and on the order of the single layers."""
    removed, others = (set(json.loads(row["removed"])) for row in (one, other))
    return {
        **{name: one[name] for name in ("objective", "data", "seed")},
        **{f"other_{name}": other[name] for name in ("objective", "data", "seed")},
        "jaccard": len(removed & others) / len(removed | others),
        "shared_layers": len(removed & others),
        "spearman": agreement.spearman,
        "shared_of_single_best": agreement.shared,
    }


def tables(cells: list[dict], pairs: list[dict], cross: list[dict], heldout: list[dict]) -> Iterator[str]:
    """The results as Markdown."""
    costs = ("tokens", "asked", "layers run / naive", "s")
    yield from table("What each cell removes", ("mask of", "draw", "in order of removal", "dense", "pruned", *costs))
    for row in cells:
        layers = f"{row['layer_forwards_run']:,.0f} / {row['layer_forwards_naive']:,.0f}"
        losses = f"{row['dense_loss']:.4f} | {row['loss']:.4f}"
        cost = f"{row['scored_tokens']:,} | {row['asked']} | {layers} | {row['seconds']:.0f}"
        yield f"| {named(row)} | {row['seed']} | {row['order']} | {losses} | {cost} |"
    columns = {
        "jaccard": "Jaccard of masks",
        "shared_layers": "layers shared, of 5",
        "spearman": "Spearman of single layers",
    }
    yield from table("How far two searches agree: mean, and from … to", ("they differ in", "pairs", *columns.values()))
    for same, name in PAIRS.items():
        rows = [
            pair for pair in pairs if same == tuple(pair[of] == pair[f"other_{of}"] for of in ("objective", "data"))
        ]
        values = [[row[column] for row in rows] for column in columns]
        spans = (f"{statistics.mean(many):.2f} ({min(many):.2f} … {max(many):.2f})" for many in values)
        yield f"| {name} | {len(rows)} | {' | '.join(spans)} |"
    names = [f"{objective} on {data}" for objective, data in CELLS]
    yield from table("What each mask adds to each loss, on the draw that it was not found on", ("mask of", *names))
    for name in names:
        rows = [row for row in cross if named(row) == name and row["seed"] != row["by_seed"]]
        added = {(named(row, "by_"), row["seed"]): f"{row['loss'] - row['dense_loss']:+.3f}" for row in rows}
        yield f"| {name} | {' | '.join(' / '.join(added[by, seed] for seed in SEEDS) for by in names)} |"
    yield from table("What no search has seen", ("mask of", "draw", "removed", *HELDOUT))
    for row in heldout:
        readouts = " | ".join(f"{row[name]:.4g}" for name in HELDOUT)
        yield f"| {named(row) if row['data'] else 'dense'} | {row['seed']} | {row['removed']} | {readouts} |"


def table(title: str, names: Sequence[str]) -> Iterator[str]:
    """How a table begins."""
    yield f"\n### {title}\n"
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def named(row: dict, prefix: str = "") -> str:
    """A cell's name."""
    return f"{row[prefix + 'objective']} on {row[prefix + 'data']}"


def write(path: Path, rows: list[dict]) -> None:
    """The rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
