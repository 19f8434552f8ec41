"""What does a repair in closed form give back, on masks that were found by loss, by similarity, or at random?

    python experiments/healing/repair.py --store /tmp/healing --data path/to/folder-of-jsonl          hours on two cores
    python experiments/healing/repair.py --store /tmp/healing --data … --draws 0 --sizes 5 --searchers block_influence

Layers of SmolLM2 or of another model are removed and repaired with rows of C4. Each repair is judged by two texts that
it has not seen: other documents of C4, and WikiText-2. If it is stopped, the same command continues. It writes
repair-MODEL.csv next to this file, a row for each repair, and prints the table of the README.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

import pandas as pd

import raysearch
from raysearch.api.search_handle import Search

HERE = Path(__file__).parent
SEARCHERS = {
    "greedy": ["searcher=greedy", "screening=confident"],
    "block_influence": ["searcher=block_influence"],
    "random": ["searcher=random", "searcher.k=1"],
}
#: The overrides of each repair.
REPAIRS = {
    "scale": ["recovery.repairs=[scale]"],
    "linear": ["recovery.repairs=[linear]"],
    "linear, scale": [],
    "linear, scale, 512 rows": ["data.samples=528", "recovery.held_out=0.03"],
}


def main() -> None:
    """Repair what the results lack, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 5, 7])
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--searchers", nargs="+", choices=SEARCHERS, default=[*SEARCHERS])
    parser.add_argument("--repairs", nargs="+", choices=REPAIRS, default=[*REPAIRS])
    parser.add_argument("--windows", type=int, default=32, help="windows of 256 tokens of each text")
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    results = HERE / f"repair-{Path(arguments.model).stem}.csv"
    rows = pd.read_csv(results).to_dict("records") if results.exists() else []
    done = {(row["searcher"], row["size"], row["draw"], row["repair"]) for row in rows}
    cells = itertools.product(arguments.draws, arguments.searchers, arguments.sizes, arguments.repairs)
    for draw, searcher, size, repair in cells:
        if (searcher, size, draw, repair) not in done:
            search = searched(arguments, searcher, size, draw)
            row = {"searcher": searcher, "size": size, "draw": draw, **repaired(search, repair, draw, arguments)}
            rows.append(row)
            pd.DataFrame(rows).to_csv(results, index=False, float_format="%.6g")
    print(table(pd.DataFrame(rows)))


def searched(arguments: argparse.Namespace, searcher: str, size: int, draw: int) -> Search:
    """Return a search for a mask on 32 windows of 32 tokens of C4.

    Args:
        arguments: The arguments of the command.
        searcher: A name in `SEARCHERS`.
        size: The number of layers to remove.
        draw: The seed of the windows and of the searcher.

    Returns:
        The search.
    """
    return raysearch.search(
        *(f"model={arguments.model}", f"store={arguments.store}", f"remove={size}", f"seed={draw}", "tracking=none"),
        *("data=c4", f"data.path={arguments.data}/c4/calibration.jsonl", "data.samples=32", "data.seq_len=32"),
        *SEARCHERS[searcher],
    )


def repaired(search: Search, repair: str, draw: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Repair the mask of a search once.

    Args:
        search: The search.
        repair: A name in `REPAIRS`.
        draw: The seed of the rows.
        arguments: The arguments of the command.

    Returns:
        The row of the results. Losses are in nats per token.
    """
    texts = {"c4": "c4/evaluation.jsonl", "wikitext2": "wikitext2/test.jsonl"}
    recovered = search.recover(
        arguments.store / "repaired",
        *("recovery=closed_form", f"seed={draw}", *REPAIRS[repair]),
        *("data=file", f"data.path={arguments.data}/c4/calibration.jsonl", "data.part=all"),
        *("assess=none", "assess.probe.enabled=false", "assess.seq_len=256", f"assess.limit={arguments.windows}"),
        *(
            f"assess.texts.{name}=data=file data.path={arguments.data}/{file} data.allow_evaluation_split=true "
            "data.sampling=sequential"
            for name, file in texts.items()
        ),
        overwrite=True,
    )
    cuts = recovered.training.cuts
    row: dict[str, object] = {
        "mask": str(recovered.mask),
        "repair": repair,
        "seconds": recovered.stages["repair"],
        "linear": sum(cut.ridge is not None for cut in cuts),
        "scaled": sum(cut.scale != 1 for cut in cuts),
        "cuts": len(cuts),
    }
    for numbers in recovered.numbers:
        for model in ("dense", "pruned", "recovered"):
            row[f"{numbers.metric.name}_{model}"] = math.log(getattr(numbers, model).value)
    return row


def table(results: pd.DataFrame) -> str:
    """Return the table of the README: means over the draws, with the share of the loss that is regained."""
    lines = [
        "| searcher | M | repair | s | cuts: linear, scaled | C4: pruned | repaired | regained | WikiText-2: pruned "
        "| repaired | regained | draws |",
        f"|{'---|' * 3}{'---:|' * 9}",
    ]
    for (searcher, size, repair), rows in results.groupby(["searcher", "size", "repair"], sort=False):
        mean = rows.mean(numeric_only=True)
        cells = [searcher, str(size), repair, f"{mean['seconds']:.0f}"]
        cells.append(f"{mean['linear']:.1f}, {mean['scaled']:.1f} of {mean['cuts']:.1f}")
        for text in ("c4", "wikitext2"):
            dense, pruned, recovered = (mean[f"{text}_{model}"] for model in ("dense", "pruned", "recovered"))
            regained = (pruned - recovered) / (pruned - dense)
            cells += [f"{pruned - dense:+.3f}", f"{recovered - dense:+.3f}", f"{regained:.0%}"]
        lines.append(f"| {' | '.join([*cells, str(len(rows))])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
