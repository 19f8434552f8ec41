"""Further tasks for the masks that a study found: their accuracies join its ``cells.csv`` and ``items.csv``.

    python experiments/rethinking_layer_redundancy/more_tasks.py \\
      experiments/rethinking_layer_redundancy/results/many_items_by_all piqa arc_challenge

If it is stopped, the same command continues from the ledger in ``--store``. Files change only at the end.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

import pandas as pd

from raysearch.assessment.assess import assess_masks, plan_assessment
from raysearch.assessment.results import Assessments
from raysearch.assessment.spec import AssessSpec
from raysearch.configuration.build import search_spec
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.searching.speed_options import SpeedOptions


def main() -> None:
    """Assess the masks, and join the results with the study's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of a study of SmolLM2-135M")
    parser.add_argument("tasks", nargs="+", help="names of lm-eval tasks")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--limit", type=int, default=200, help="items of each task")
    parser.add_argument("--store", default="mlruns", help="where the ledger is")
    options = parser.parse_args()
    cells = pd.read_csv(options.results / "cells.csv")
    evaluation = search_spec(["model=smollm2-135m", "model.dtype=bfloat16", f"store={options.store}"]).evaluation
    speed = SpeedOptions(enabled=False)
    spec = AssessSpec(tasks=options.tasks, data_dir=options.data_dir, limit=options.limit, speed=speed)
    plan = plan_assessment(spec, evaluation.model, evaluation.cluster, evaluation.ledger)
    masks = sorted({mask_of(removed) for removed in cells["removed"]})
    with closing(Ledger(evaluation.ledger)) as ledger:
        assessments = assess_masks(plan, ledger, masks, on_progress=lambda line: print(line, flush=True))
    join(options.results, cells, assessments)


def mask_of(removed: str) -> Mask:
    """Return the mask that a line of a file has as JSON."""
    return Mask.of(*json.loads(removed))


def join(results: Path, cells: pd.DataFrame, assessments: Assessments) -> None:
    """Write the files of a study again, with the accuracies that were found and without averages of fewer tasks."""
    (model,) = cells["model"].unique()
    for name in (metric.name for metric in assessments.metrics):
        estimates = cells["removed"].map(
            lambda removed, name=name: assessments.by_mask[mask_of(removed)][name].estimate
        )
        cells[f"assessed.{name}"] = [estimate.value for estimate in estimates]
        cells[f"assessed.{name}_error"] = [estimate.error for estimate in estimates]
    cells = cells.drop(columns=["accuracy_average", "accuracy_average_error"], errors="ignore")
    cells.to_csv(results / "cells.csv", index=False, lineterminator="\n")
    new = [
        (model, removed, name, json.dumps([float(f"{item:.6g}") for item in result.items]))
        for removed in cells["removed"].unique()
        for name, result in assessments.by_mask[mask_of(removed)].items()
    ]
    items = pd.concat(
        [pd.read_csv(results / "items.csv"), pd.DataFrame(new, columns=["model", "removed", "metric", "items"])]
    )
    items.drop_duplicates(["model", "removed", "metric"], keep="last").to_csv(
        results / "items.csv", index=False, lineterminator="\n"
    )
    for name, result in assessments.by_mask[Mask()].items():
        print(f"dense {name}: {result.estimate.value:.1f} ± {result.estimate.error:.1f}")


if __name__ == "__main__":
    main()
