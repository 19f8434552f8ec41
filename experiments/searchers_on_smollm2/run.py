"""Run every searcher on one model and one text with a shared ledger, and measure its gap to the true optimum.

    python experiments/searchers_on_smollm2/run.py --store /tmp/searchers        about an hour on two cores

If it is stopped, the same command continues. It writes compare.csv, gap.csv and tables.md (for people) next to
this file.
"""

import argparse
import csv
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import raysearch
from raysearch.configuration import build
from raysearch.models.loading import load_model, load_tokenizer
from raysearch.models.source import locate

HERE = Path(__file__).parent
MODEL = {"model.dtype": "bfloat16", "tracking": "none"}
LONG = {"data": "sotu", "data.samples": 8, "data.seq_len": 128, "data.seed": 0}  # 1,016 scored tokens
SHORT = {"data": "sotu", "data.samples": 2, "data.seq_len": 128, "data.seed": 0}  # 254 scored tokens
UNSEEN = {"data": "sotu", "data.samples": 32, "data.seq_len": 128, "data.seed": 1}

#: The order matters: a searcher pays for the masks that later searchers find in the ledger.
SEARCHERS = {
    "reverse": {},
    "random": {},
    "magnitude": {},
    "magnitude, L2": {"searcher": "magnitude", "searcher.criterion": "magnitude_l2"},
    "taylor": {},
    "block_influence": {},
    "angular_distance": {},
    "angular_distance, all tokens": {"searcher": "angular_distance", "searcher.tokens": "all"},
    "cbo_gradient": {},
    "cbo_gradient, first order": {"searcher": "cbo_gradient", "searcher.first_order": True},
    "fast_block_select": {},
    "one_shot": {},
    "greedy": {},
    "genetic, prior=none": {"searcher": "genetic", "searcher.prior": "none"},
    "genetic, prior=influence": {"searcher": "genetic", "searcher.prior": "influence"},
    "genetic": {},
    "bayesian, prior=none": {"searcher": "bayesian", "searcher.prior": "none"},
    "bayesian": {},
    "nevergrad": {},
    "ray_tune": {},
    "ray_tune, optuna": {"searcher": "ray_tune", "searcher.algorithm": "optuna"},
    "cbo": {},
    "beam": {},
}


COLUMNS = (
    *("remove", "searcher", "loss", "dense_loss", "removed", "requested", "computed", "cached"),
    *("layer_forwards_computed", "layer_forwards_naive", "seconds", "searcher_seconds"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the ledger and of the results")
    store = parser.parse_args().store
    convert(store / "model")
    compared = [run(name, LONG, remove, store) for remove in (5, 7) for name in SEARCHERS]
    compared = with_unseen(compared, store)
    gaps = []
    for remove, data in ((2, LONG), (3, SHORT)):
        run("exhaustive", data, remove, store)
        gaps += [with_gap(run(name, data, remove, store), store) for name in ("exhaustive", *SEARCHERS)]
    write(HERE / "compare.csv", compared)
    write(HERE / "gap.csv", gaps)
    (HERE / "tables.md").write_text("\n".join(tables(compared, gaps)) + "\n")


def convert(folder: Path) -> None:
    """Write the model as safetensors, once: every search loads it, and a GGUF file takes twenty times as long."""
    if not folder.exists():
        spec = build.search_spec(["model=smollm2-135m", "model.dtype=bfloat16"])
        model = locate(spec.evaluation.model)
        unfinished = folder.with_name("model.part")
        load_model(model).save_pretrained(unfinished)
        load_tokenizer(model).save_pretrained(unfinished)
        unfinished.rename(folder)


def run(name: str, data: dict, remove: int, store: Path) -> dict:
    """Return a search as a row. Its costs are those of the first run; later, the ledger has all losses."""
    file = store / "rows" / f"{remove} {name}.json"
    if not file.exists():
        options = {"searcher": name.partition(",")[0], **SEARCHERS.get(name, {}), "remove": remove, "store": store}
        result = raysearch.search(*overrides({"model": store / "model"}, MODEL, data, options)).result
        evaluations, forwards = result.work.evaluations, result.work.layer_forwards
        counts = {"requested": evaluations.requested, "computed": evaluations.computed, "cached": evaluations.cached}
        costs = {"layer_forwards_computed": forwards.computed, "layer_forwards_naive": forwards.naive}
        costs |= {"seconds": result.work.seconds, "searcher_seconds": result.work.searcher_seconds}
        row = {"remove": remove, "searcher": name, "removed": str(result.mask), "id": result.search_id}
        row |= {"loss": result.loss, "dense_loss": result.dense_loss, **counts, **costs}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({key: row[key] for key in (*COLUMNS, "id")}))
        print(f"M={remove} {name}: {result.mask} {result.loss:.4f} after {result.work.seconds:.0f} s", flush=True)
    return json.loads(file.read_text())


def with_gap(row: dict, store: Path) -> dict:
    """Return the row with the rank of its mask among all masks of its size."""
    shown = subprocess.run(
        ["raysearch", "show", row["id"], "--gap", "--json", "--store", str(store)], capture_output=True, check=True
    )
    *_, gap = json.loads(shown.stdout)["gap"]  # by size; the last one is the requested size
    return {**row, "gap": gap["gap"], "rank": gap["rank"], "masks": gap["n_masks"]}


def with_unseen(rows: list[dict], store: Path) -> list[dict]:
    """Return the rows with the loss of each mask on text that no search has used."""
    masks = sorted({row["removed"] for row in rows} | {"{}"})
    layers = [[int(layer) for layer in mask[1:-1].split(",") if layer] for mask in masks]
    model = {key: value for key, value in MODEL.items() if key != "tracking"}
    scores = raysearch.score(*overrides({"model": store / "model"}, model, UNSEEN, {"store": store}), masks=layers)
    losses = {str(score.mask): score.loss for score in scores}
    return [{**row, "unseen_loss": losses[row["removed"]], "unseen_dense_loss": losses["{}"]} for row in rows]


def tables(compared: list[dict], gaps: list[dict]) -> Iterator[str]:
    """Yield the lines of the results in Markdown, the best first."""
    for remove in (5, 7):
        rows = sorted((row for row in compared if row["remove"] == remove), key=lambda row: row["loss"])
        dense = math.exp(rows[0]["dense_loss"]), math.exp(rows[0]["unseen_dense_loss"])
        yield f"\n### M = {remove}\n\nDense: perplexity {dense[0]:.2f}, on unseen text {dense[1]:.2f}.\n"
        counts = "requested | computed | cached | layers computed / naive"
        yield f"| searcher | loss | perplexity | unseen | removed | {counts} | s |"
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for row in rows:
            yield (
                f"| {row['searcher']} | {row['loss']:.4f} | {math.exp(row['loss']):.2f} | "
                f"{math.exp(row['unseen_loss']):.2f} | {row['removed']} | {row['requested']:,} | {row['computed']:,} | "
                f"{row['cached']:,} | {row['layer_forwards_computed']:,.0f} / {row['layer_forwards_naive']:,.0f} | "
                f"{row['seconds']:.0f} |"
            )
    for remove in (2, 3):
        rows = sorted((row for row in gaps if row["remove"] == remove), key=lambda row: (row["rank"], row["requested"]))
        yield f"\n### M = {remove}: all {rows[0]['masks']:,} masks are known\n"
        yield "| searcher | rank | gap (nats) | loss | removed | requested |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            yield (
                f"| {row['searcher']} | {row['rank']:,} | {row['gap']:.4f} | {row['loss']:.4f} | {row['removed']} | "
                f"{row['requested']:,} |"
            )


def overrides(*parts: dict) -> list[str]:
    """Return options as overrides of the command line."""
    return [f"{key}={value}" for part in parts for key, value in part.items()]


def write(path: Path, rows: list[dict]) -> None:
    """Write the rows as CSV."""
    names = [name for name in rows[0] if name != "id"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
