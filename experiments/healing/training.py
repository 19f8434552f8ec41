"""What does training give back in equal minutes: by top-k logits, by hidden states, at which learning rate?

    python experiments/healing/training.py --store /tmp/healing --data path/to/folder-of-jsonl        hours on two cores
    python experiments/healing/training.py --store /tmp/healing --data … --minutes 2 --draws 0 --windows 16
    python experiments/healing/training.py --store /tmp/healing --data … --rows 89 --model gemma-3-270m.gguf --mask 8 9

The model is SmolLM2 without layers 13, 14, 16, 17 and 18, or another one, trained on C4. Repairs without training
stand beside the trainings. Each model is judged by two texts that it has not seen: other documents of C4, and
WikiText-2; with --tasks also by choosing tasks and small sums, with --problems by the Python that it writes. With
--rows all trainings see the same rows once, instead of taking as many minutes. If it is stopped, the same command
continues. It writes training.csv next to this file (with --tasks training-tasks.csv, with --problems
training-answers.csv), a row for each training, and prints the tables of the README. Nothing else should run on the
machine: what fits into the minutes depends on it. The column `load` has its load before the training.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import pandas as pd

import raysearch
from raysearch.api.search_handle import Search
from raysearch.configuration import build
from raysearch.models.description import describe

HERE = Path(__file__).parent
#: The folder with the data `humaneval_indented`.
CONFIGURATION = HERE.parent / "limits_of_layer_pruning" / "conf"

SMALL_STEPS = ["data.seq_len=128", "recovery.batch_size=4"]  # 512 tokens in a step
LARGE_STEPS = ["data.seq_len=256", "recovery.batch_size=8"]  # 2,048 tokens in a step

REPAIR = "recovery=closed_form"  # takes the time that it takes

MOST_ROWS = 1024  # of a training in minutes, which leaves out those that do not fit

#: The overrides of each training, and of the repairs without training.
METHODS = {
    "scale": [REPAIR, "recovery.repairs=[scale]"],
    "linear": [REPAIR, "recovery.repairs=[linear]"],
    "linear, scale": [REPAIR],
    "logits, small steps": SMALL_STEPS,
    "logits, large steps": LARGE_STEPS,
    "hidden, small steps": ["recovery=hidden", *SMALL_STEPS],
    "logits, small steps, 0.003": [*SMALL_STEPS, "recovery.learning_rate=0.003"],
    "next tokens, small steps": [*SMALL_STEPS, "recovery.loss=tokens"],
    "whole vocabulary, small steps": [*SMALL_STEPS, "recovery.top_k=all"],
    "hidden, large steps": ["recovery=hidden", *LARGE_STEPS],
    "logits, small steps, range test": [*SMALL_STEPS, "recovery.learning_rate=auto"],
}


def main() -> None:
    """Train what the results lack, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--mask", type=int, nargs="+", default=[13, 14, 16, 17, 18], help="the layers to remove")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--minutes", type=float, default=5.0, help="of each training, with the start and the checkpoint")
    limit.add_argument("--rows", type=int, help="of C4, a tenth of them held out, instead of minutes")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--windows", type=int, default=64, help="windows of 256 tokens of each text")
    judges = parser.add_mutually_exclusive_group()
    judges.add_argument("--tasks", nargs="*", default=[], help="of lm-eval, with 60 items each; and 100 small sums")
    judges.add_argument("--problems", type=int, default=0, help="of HumanEval, with answers of at most 64 tokens")
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    judge = "-tasks" if arguments.tasks else "-answers" if arguments.problems else ""
    results = HERE / f"training{judge}.csv"
    rows = pd.read_csv(results).to_dict("records") if results.exists() else []
    cell = {"model": Path(arguments.model).stem, "mask": str(raysearch.Mask(arguments.mask))}
    cell["limit"] = f"{arguments.rows} rows" if arguments.rows else f"{arguments.minutes:g} min"
    search = searched(arguments)
    for draw in arguments.draws:
        for method in arguments.methods:
            key = {**cell, "method": method, "draw": draw}
            if not any(key.items() <= row.items() for row in rows):
                rows.append({**key, **trained(search, method, draw, arguments)})
                pd.DataFrame(rows).to_csv(results, index=False, float_format="%.6g")
    for (model, mask), rows_of_mask in pd.DataFrame(rows).groupby(["model", "mask"], sort=False):
        print(f"{model} without {mask}\n\n{table(rows_of_mask)}\n")


def searched(arguments: argparse.Namespace) -> Search:
    """Return a search whose result is the mask: all other layers are protected."""
    model = f"model={arguments.model}"
    spec, _ = build.score_spec([model, "masks=[[]]"])
    protected = [layer for layer in range(describe(spec.model).sites.n_layers) if layer not in arguments.mask]
    return raysearch.search(
        *(model, f"remove={len(arguments.mask)}", "searcher=one_shot", f"protect={protected}", "tracking=none"),
        *("data=c4", f"data.path={arguments.data}/c4/calibration.jsonl", "data.samples=4", "data.seq_len=128"),
        f"store={arguments.store}",
    )


def trained(search: Search, method: str, draw: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Recover the mask once.

    Args:
        search: The search.
        method: A name in `METHODS`.
        draw: The seed of the rows and of the training.
        arguments: The arguments of the command.

    Returns:
        The row of the results. Losses are in nats per token.
    """
    load = os.getloadavg()[0]
    texts = {"c4": "c4/evaluation.jsonl", "wikitext2": "wikitext2/test.jsonl"}
    is_repair = REPAIR in METHODS[method]
    overrides = [
        *METHODS[method],
        *("data=file", f"data.path={arguments.data}/c4/calibration.jsonl", "data.part=all"),
        *(f"seed={draw}", f"recovery.seed={draw}", "assess=none", "assess.seq_len=256"),
        *(
            f"assess.texts.{name}=data=file data.path={arguments.data}/{file} data.sampling=sequential "
            f"data.samples={arguments.windows}"
            for name, file in texts.items()
        ),
    ]
    if not is_repair:
        overrides.append(f"data.samples={arguments.rows or MOST_ROWS}")
    if arguments.tasks:
        overrides += [f"assess.tasks=[{','.join(arguments.tasks)}]", f"assess.data_dir={arguments.data}"]
        overrides += ["assess.limit=60", "assess.probe.enabled=true", "assess.probe.items=100"]
        overrides += [f"assess.probe.file={arguments.data}/arithmetic/1dc.jsonl"]
    else:
        overrides += ["assess.probe.enabled=false", "assess.limit=null"]  # a repair has a limit of its own
    if arguments.problems:
        overrides += [f"assess.data_dir={arguments.data}", "assess.answers.max_new_tokens=64"]
        overrides += [f"assess.generation.humaneval=data=humaneval_indented data.samples={arguments.problems}"]
        overrides += ["assess.answers.run_code=true"]
    minutes = None if is_repair or arguments.rows else arguments.minutes
    recovered = search.recover(
        arguments.store / "healed", *overrides, minutes=minutes, overwrite=True, config_dir=CONFIGURATION
    )
    training = recovered.training
    seconds = sum(seconds for stage, seconds in recovered.stages.items() if stage != "assessment")
    row: dict[str, object] = {
        "load": load,
        "seconds": seconds,
        "steps": training.steps,
        "tokens": training.tokens,
        "tokens_per_s": training.tokens / training.seconds,
        "learning_rate": training.learning_rate,
        "held_out_first": training.held_out[0][1],
        "held_out_best": min(loss for _, loss in training.held_out),
    }
    for numbers in recovered.numbers:
        name = numbers.metric.name
        for model in ("dense", "pruned", "recovered"):
            value = getattr(numbers, model).value
            row[f"{name}_{model}"] = math.log(value) if name in texts else value
    return row


def table(results: pd.DataFrame) -> str:
    """Return the table of the README: the mean over the draws, with the changes by the training in brackets.

    Args:
        results: A row for each training of a mask, with each number of the dense, the pruned and the recovered model.

    Returns:
        The table in Markdown.
    """
    names = [column.removesuffix("_recovered") for column in results if column.endswith("_recovered")]
    headings = ["limit", "training", "rate", "tokens a second", "tokens", *names, "draws", "load"]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for model in ("dense", "pruned"):
        numbers = [f"{results[f'{name}_{model}'].mean():.3f}" for name in names]
        lines.append(f"| | ({model}) | | | | {' | '.join(numbers)} | | |")
    for (limit, method), rows in results.groupby(["limit", "method"], sort=False):
        mean = rows.mean(numeric_only=True)
        numbers = []
        for name in names:
            recovered = mean[f"{name}_recovered"]
            numbers.append(f"{recovered:.3f} ({recovered - mean[f'{name}_pruned']:+.3f})")
        is_repair = REPAIR in METHODS[method]
        training = ["", ""] if is_repair else [f"{mean['learning_rate']:.2g}", f"{mean['tokens_per_s']:.0f}"]
        cells = ["" if is_repair else limit, method, *training, f"{mean['tokens']:,.0f}", *numbers]
        cells += [str(len(rows)), f"{mean['load']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
