"""The claims of the README from the study's ``cells.csv`` and ``dense.csv``, each with its numbers and verdict.

Only these two files are read. The statistics are computed here, independently of the report. Prints Markdown;
``results/claims.md`` is its output for ``results/``.

    python experiments/limits_of_layer_pruning/claims.py experiments/limits_of_layer_pruning/results
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from scipy import stats

TASKS = {"arc_easy": 25.0, "piqa": 50.0}  # percent that a guess gets right
N_CODE = 24  # items of HumanEval
SYNTAX = ("humaneval.failed.parenthesis", "humaneval.failed.other_syntax")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    folder = parser.parse_args().results
    dense = pd.read_csv(folder / "dense.csv").set_index("metric")["value"]
    cells = pd.read_csv(folder / "cells.csv")
    cells = cells[cells["assessed.arc_easy"].notna()]
    masks = pd.DataFrame(
        [measures(lambda name, row=row: row[f"assessed.{name}"], dense) for _, row in cells.iterrows()]
    )
    masks = pd.concat([cells[["remove", "searcher", "removed"]].reset_index(drop=True), masks], axis=1)
    print(f"## What is left, by method\n\n{by_method(masks, dense)}\n")
    print(f"## The claims\n\n{claims(masks.drop_duplicates('removed'), dense)}")


def measures(value_of: Callable[[str], float], dense: pd.Series) -> dict[str, float]:
    """Return the remaining abilities of a mask: shares of the dense model's, and plain numbers."""
    above = sum(value_of(task) - chance for task, chance in TASKS.items())
    return {
        "perplexity": value_of("wikitext2"),
        "classification": sum(value_of(task) / dense[task] for task in TASKS) / len(TASKS),
        "above chance": above / sum(dense[task] - chance for task, chance in TASKS.items()),
        "probe": value_of("arithmetic_top1") / dense["arithmetic_top1"],
        "log p": value_of("arithmetic_log_p") - dense["arithmetic_log_p"],
        "python": value_of("humaneval.parses"),
        "syntax": sum(value_of(name) for name in SYNTAX),
        "names": value_of("humaneval.failed.undefined_name"),
        "code cut off": value_of("humaneval.cut_off"),
        "rep-4": value_of("gsm8k.rep_4"),
        "within": value_of("gsm8k.self_bleu_within"),
        "across": value_of("gsm8k.self_bleu_across"),
        "cut off": value_of("gsm8k.cut_off"),
    }


def by_method(masks: pd.DataFrame, dense: pd.Series) -> str:
    """Return the table of the dense model and of each mask."""
    first = {"remove": 0, "searcher": "dense", "removed": "[]", **measures(dense.__getitem__, dense)}
    rows = []
    for _, mask in pd.concat([pd.DataFrame([first]), masks]).sort_values("remove", kind="stable").iterrows():
        layers = ", ".join(map(str, json.loads(mask["removed"])))
        shares = [f"{100 * mask[name]:.0f} %" for name in ("classification", "above chance", "probe")]
        texts = [percent(mask[name]) for name in ("python", "code cut off", "rep-4", "within", "across", "cut off")]
        rows.append(
            [
                mask["remove"],
                mask["searcher"],
                layers,
                three(mask["perplexity"]),
                *shares,
                f"{mask['log p']:+.2f}",
                *texts,
            ]
        )
    heads = [
        *("M", "method", "layers", "WikiText-2", "classification", "above chance", "probe", "Δ log p"),
        *("is Python", "cut off (code)", "rep-4", "Self-BLEU within", "across", "cut off (GSM8K)"),
    ]  # fmt: skip
    return table(heads, rows)


def claims(masks: pd.DataFrame, dense: pd.Series) -> str:
    """Return each claim over the distinct masks: how many agree, by how much, and whether the effect is significant."""
    own = measures(dense.__getitem__, dense)
    alive = masks[masks["perplexity"] < 10 * dense["wikitext2"]]  # which still are language models
    rows = [
        paired("classification keeps more than the probe", masks["classification"] - masks["probe"], 100, "points"),
        paired("… counted above chance", masks["above chance"] - masks["probe"], 100, "points"),
        paired("… where perplexity is below 10 times the dense", alive["above chance"] - alive["probe"], 100, "points"),
        paired("classification keeps more than the share of code that is Python",
               masks["classification"] - masks["python"] / own["python"], 100, "points"),
        paired("the digit's log p falls", -masks["log p"], 1, "nats"),
        paired("answers to GSM8K repeat more 4-grams", masks["rep-4"] - own["rep-4"], 1, "points"),
        paired("sentences of an answer are more alike", masks["within"] - own["within"], 1, "points"),
        paired("less of the code is Python", own["python"] - masks["python"], 1, "points"),
        paired("more of the code runs into the limit of 64 tokens",
               masks["code cut off"] - own["code cut off"], 1, "points"),
        paired("syntax errors grow more than undefined names",
               (masks["syntax"] - own["syntax"]) - (masks["names"] - own["names"]), 1, "points"),
        *code(masks, own),
    ]  # fmt: skip
    return table(["claim", "masks that agree", "median", "range", "verdict"], rows)


def paired(claim: str, differences: pd.Series, scale: float, unit: str) -> list[str]:
    """Test the claim that a difference is positive, over the masks, by the exact sign test."""
    differences = (scale * differences).dropna().round(9) + 0.0  # no -0
    other = differences[differences != 0]
    agree, n = int((other > 0).sum()), len(other)
    p = stats.binomtest(agree, n).pvalue if n else 1.0
    span = f"{differences.min():+.3g} to {differences.max():+.3g}"
    return [claim, f"{agree} of {n}", f"{differences.median():+.3g} {unit}", span, verdict(agree, n, p)]


def code(masks: pd.DataFrame, own: dict[str, float]) -> list[list[str]]:
    """Test whether fewer answers of each mask are Python: Fisher's exact test on the counts, with Holm's correction."""
    before = round(own["python"] * N_CODE / 100)
    changes = []
    for _, mask in masks.iterrows():
        after = round(mask["python"] * N_CODE / 100)
        p = stats.fisher_exact([[before, N_CODE - before], [after, N_CODE - after]]).pvalue
        changes.append((f"{mask['searcher']}, M={mask['remove']}", before, after, p))
    rows = []
    worst = 0.0
    for place, (name, before, after, p) in enumerate(sorted(changes, key=lambda change: change[-1])):
        worst = max(worst, min(1.0, p * (len(changes) - place)))
        claim = f"less of the code is Python: {name}"
        rows.append([claim, "", f"{before} → {after} of {N_CODE}", "", verdict(before > after, 1, worst)])
    return rows


def verdict(agree: int, n: int, p: float) -> str:
    """Return whether the claim, or its opposite, is significant."""
    certainty = "not told" if p > 0.05 else "**clear**" if 2 * agree > n else "**the opposite**"
    return f"{certainty} ({'p < 0.001' if p < 0.001 else f'p = {p:.3f}'})"


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f} %"


def three(value: float) -> str:
    """Return a number in three digits."""
    return f"{float(f'{value:.3g}'):,.10g}" if math.isfinite(value) else "not finite"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
