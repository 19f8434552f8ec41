"""The claims of the README on training, from ``recovery.csv`` of the study's report, with their numbers and verdicts.

No other file is read. Prints Markdown; ``results/recovery.md`` is its output for ``results/``.

    python experiments/limits_of_layer_pruning/recovery_claims.py experiments/limits_of_layer_pruning/results
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from claims import paired, percent, table, three
from scipy import stats

WAYS = ["answers of the data", "answers of the dense model", "distilled", "distilled, all weights"]
RIVALS = [
    ("answers of the dense model", "answers of the data"),
    ("distilled", "answers of the dense model"),
    ("distilled, all weights", "distilled"),
]
MEASURES = {  # its unit, and whether more is better
    "log perplexity": ("nats", False),
    "classification": ("points", True),
    "log p": ("nats", True),
    "top-1": ("points", True),
    "is Python": ("points", True),
    "code cut off": ("points", False),
    "rep-4": ("points", False),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    trained = trainings(pd.read_csv(parser.parse_args().results / "recovery.csv"))
    masks = trained.query("M > 0").index.droplevel(["way", "model"]).unique()
    print(f"## Before and after, by mask and training\n\n{by_training(trained)}\n")
    print(f"## What a training gives back\n\n{given_back(trained, masks)}\n")
    print(f"## Which training gives back more\n\n{rivals(trained)}\n")
    print(f"## Is the best mask before still the best after?\n\n{ranks(trained)}")


def trainings(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the measures of the dense, the pruned and the trained model, by M, mask, way of training and model."""
    wide = (
        numbers.rename(columns={"Mask of": "mask", "Way": "way"})
        .melt(["M", "mask", "way", "Number"], ["Dense", "Pruned", "Recovered"], "model")
        .pivot(index=["M", "mask", "way", "model"], columns="Number", values="value")
    )
    return pd.DataFrame(
        {
            "log perplexity": np.log(wide["WikiText-2 (perplexity)"]),
            "classification": (wide["ARC-E (%)"] + wide["PIQA (%)"]) / 2,
            "log p": wide["arithmetic log p (nats)"],
            "top-1": wide["arithmetic probe (%)"],
            "is Python": wide["HumanEval, is Python (%)"],
            "code cut off": wide["HumanEval, cut off (%)"],
            "rep-4": wide["GSM8K, rep-4 (%)"],
            "length": wide["GSM8K, length (tokens)"],
        }
    )


def by_training(trained: pd.DataFrame) -> str:
    """Return the numbers of each mask before and after each training."""
    rows = []
    for (remove, mask), ways in trained.groupby(level=["M", "mask"]):
        before = ways.xs("Pruned", level="model").iloc[0]
        after = ways.xs("Recovered", level="model").droplevel(["M", "mask"])
        for way, model in [("none", before), *((way, after.loc[way]) for way in WAYS)]:
            shares = [percent(model[name]) for name in MEASURES if name not in ("log perplexity", "log p")]
            perplexity, log_p = three(np.exp(model["log perplexity"])), f"{model['log p']:.2f}"
            rows.append([remove, mask, way, perplexity, log_p, *shares, f"{model['length']:.0f}"])
    heads = [
        *("M", "mask", "trained on", "WikiText-2", "log p (nats)", "classification", "top-1"),
        *("is Python", "cut off (code)", "rep-4", "tokens (GSM8K)"),
    ]  # fmt: skip
    return table(heads, rows)


def given_back(trained: pd.DataFrame, masks: pd.Index) -> str:
    """Return, by measure and training, the gain over the masks, and the gain of the dense model."""
    before, after = (trained.xs(model, level="model") for model in ("Pruned", "Recovered"))
    rows = []
    for name, (unit, more) in MEASURES.items():
        gain = ((after[name] - before[name]) * (1 if more else -1)).unstack("way")
        for way in WAYS:
            (control,) = gain.loc[0, way].round(9) + 0.0
            rows.append([*paired(f"{name}, {way}", gain.loc[masks, way], 1, unit), f"{control:+.3g}"])
    return table(["better after training", "masks that agree", "median", "range", "verdict", "dense"], rows)


def rivals(trained: pd.DataFrame) -> str:
    """Return, by measure, by how much one training is better than another over the masks."""
    after = trained.xs("Recovered", level="model").query("M > 0")
    rows = []
    for name, (unit, more) in MEASURES.items():
        by_way = after[name].unstack("way") * (1 if more else -1)
        rows += [
            paired(f"{name}: {better} over {worse}", by_way[better] - by_way[worse], 1, unit)
            for better, worse in RIVALS
        ]
    return table(["claim", "masks that agree", "median", "range", "verdict"], rows)


def ranks(trained: pd.DataFrame) -> str:
    """Return, by measure and training, the rank correlation of before and after, and the best mask of each size."""
    pruned = trained.query("M > 0")
    rows = []
    for name in ("log perplexity", "log p"):
        for way in WAYS:
            losses = pruned[name].xs(way, level="way").unstack("model") * (1 if MEASURES[name][1] else -1)
            rho = stats.spearmanr(losses["Pruned"], losses["Recovered"]).statistic
            best = losses.groupby(level="M")[["Pruned", "Recovered"]].idxmax()
            same = np.where(best["Pruned"] == best["Recovered"], "the same", "another")
            rows.append([name, way, f"{rho:+.2f}", *same])
    return table(["measure", "trained on", "ρ", *(f"best, M={remove}" for remove in best.index)], rows)


if __name__ == "__main__":
    main()
