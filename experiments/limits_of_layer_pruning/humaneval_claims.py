"""The claims of the README on longer answers to all of HumanEval, from ``humaneval.csv``: a row for each answer.

No other file is read. Prints Markdown; ``results/humaneval.md`` is its output for ``results/``. With a store, it first
reads the answers from the store's ledger.

    python experiments/limits_of_layer_pruning/humaneval_claims.py experiments/limits_of_layer_pruning/results
    python experiments/limits_of_layer_pruning/humaneval_claims.py … --store mlruns
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd
from claims import table, verdict
from scipy import stats
from statsmodels.stats.multitest import multipletests

import raysearch
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import opened

SYNTAX = ("parenthesis", "other syntax")
DENSE = "{}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    file = options.results / "humaneval.csv"
    if options.store:
        answers_of(options.store).to_csv(file, index=False)
    answers = pd.read_csv(file, keep_default_na=False)
    answers["python"] = ~answers["failure"].isin(SYNTAX)
    answers["cut_off"] = answers["cut_off"].astype(bool)
    masks = {name: mask_answers.set_index("item") for name, mask_answers in answers.groupby("removed", sort=False)}
    dense = masks.pop(DENSE)
    print(f"## {len(dense)} answers of each model\n\n{shares({DENSE: dense, **masks})}\n")
    print(f"## Against the dense model, item by item\n\n{tests(dense, masks)}")


def answers_of(store: Path) -> pd.DataFrame:
    """Return every answer of the store's ledger, and the searchers that found its mask."""
    searches = raysearch.open(store).to_frame()
    rows = []
    with opened(store / "ledger.db") as ledger:
        written = {calibration for (calibration,) in ledger.read("SELECT DISTINCT calibration FROM texts")}
        (calibration,) = written - {*searches["calibration"]}
        # A search that had texts written is the iterative one, which is greedy by another name.
        by_texts = searches["calibration"].isin(written)
        searches["searcher"] = searches.index.str.replace("-m.*", "", regex=True).where(~by_texts, "iterative")
        distinct = searches.sort_values("remove").groupby("removed", sort=False)["searcher"]
        methods = {DENSE: ["dense"], **{mask: sorted(set(mask_searchers)) for mask, mask_searchers in distinct}}
        for removed, names in methods.items():
            mask = Mask.of(*json.loads(f"[{removed[1:-1]}]"))
            rows += [
                {
                    "removed": removed,
                    "searcher": " and ".join(names),
                    "item": item,
                    "tokens": text.n_tokens,
                    "cut_off": int(text.cut_off),
                    "failure": text.score.failure or "",
                }
                for item, text in enumerate(ledger.texts(calibration, mask))
            ]
    return pd.DataFrame(rows)


def shares(masks: dict[str, pd.DataFrame]) -> str:
    """Return how many answers of each model end and are Python, and why the others fail."""
    rows = []
    for name, answers in masks.items():
        ended = answers[~answers["cut_off"]]
        causes = ("undefined name", "assertion", "")
        failed = [f"{100 * (answers['failure'] == cause).mean():.0f} %" for cause in causes]
        rows.append(
            [
                *(name.count(",") + 1 if name != DENSE else 0, answers["searcher"].iloc[0], name[1:-1]),
                *(f"{100 * share:.0f} %" for share in (answers["cut_off"].mean(), answers["python"].mean())),
                f"{100 * ended['python'].mean():.0f} % of {len(ended)}" if len(ended) else "–",
                *failed,
            ]
        )
    heads = ["M", "method", "layers", "cut off", "Python", "Python, of those that end"]
    return table([*heads, "undefined name", "failed assertion", "passes"], rows)


def tests(dense: pd.DataFrame, masks: dict[str, pd.DataFrame]) -> str:
    """Test whether fewer answers are Python: McNemar's exact test on all items, and on those that both models ended."""
    rows = []
    for kind in ("all items", "both end"):
        counted = {}
        for name, answers in masks.items():
            pairs = dense.join(answers, suffixes=("", "_mask"))
            if kind == "both end":
                pairs = pairs[~pairs["cut_off"] & ~pairs["cut_off_mask"]]
            lost = int((pairs["python"] & ~pairs["python_mask"]).sum())
            won = int((~pairs["python"] & pairs["python_mask"]).sum())
            p = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
            counted[name] = (len(pairs), lost, won, p)
        corrected = multipletests([p for *_, p in counted.values()], method="holm")[1]
        for (name, (n, lost, won, _)), p in zip(counted.items(), corrected, strict=True):
            rows.append([name[1:-1], kind, n, lost, won, verdict(lost, lost + won, float(p))])
    heads = ["layers", "items", "n", "Python before, not after", "after, not before", "less of it is Python (Holm)"]
    return table(heads, rows)


if __name__ == "__main__":
    main()
