"""The published tables of arXiv 2604.24938 as the types of a report.

The files hold Tables 1 to 4, 6 and 7 as printed. Neither masks nor calibration losses are in the text, so a search here
has none: no removed layers, and a loss that is not a number.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.site import Sites
from raysearch.studies.result import CellResult, StudyResult
from tests.reporting.cells import outcome

FOLDER = Path(__file__).parent / "data"
PERPLEXITIES = ("W2", "C4", "LMB")
ACCURACIES = ("Hella", "Wino", "ARC-E", "ARC-C", "PIQA", "BoolQ")
MARGIN = "Task likelihood margin"
CALIBRATED_PERPLEXITY = "Perplexity"
#: Which file of accuracies belongs to which calibration.
ACCURACY_FILES = {
    "table2_margin_accuracy": MARGIN,
    "table6_margin_accuracy_llama3": MARGIN,
    "table3_perplexity_accuracy": CALIBRATED_PERPLEXITY,
    "table7_perplexity_accuracy_llama3": CALIBRATED_PERPLEXITY,
}
METRICS = [
    *(Metric(name, name, "perplexity", "perplexity", False) for name in PERPLEXITIES),
    *(Metric(name, name, "accuracy", "%", True) for name in ACCURACIES),
]

INDEX = ["calibration", "model", "method", "remove"]


def printed(name: str) -> pd.DataFrame:
    """Return the rows of a file, as texts."""
    return pd.read_csv(FOLDER / f"{name}.csv", dtype=str)


def assessed() -> pd.DataFrame:
    """Return every printed perplexity and accuracy, a row per search, and both averages as ``Avg …``."""
    perplexities = printed("table1_perplexity").rename(columns={"Avg": "Avg perplexity"}).set_index(INDEX)
    files = [printed(file).assign(calibration=calibration) for file, calibration in ACCURACY_FILES.items()]
    accuracies = pd.concat(files).rename(columns={"Avg": "Avg accuracy"}).set_index(INDEX)
    return perplexities.join(accuracies).astype(float).rename(index=int, level="remove")


def published_study() -> StudyResult:
    """Return the printed part of the paper's study; search times are printed for one setting (Table 4)."""
    seconds = printed("table4_time").set_index("method")["seconds"].astype(float)
    cells = []
    dense: dict[str, dict[str, Estimate]] = {}
    for (calibration, model, method, remove), numbers in assessed().iterrows():
        estimates = {name: Estimate(float(numbers[name])) for name in (*PERPLEXITIES, *ACCURACIES)}
        if method == "Dense":
            dense[model] = estimates
            continue
        timed = (calibration, model, remove) == (MARGIN, "LLaMA3 8B", 7)
        unknown = dict.fromkeys(("dense_loss", "layer_forwards_alone", "layer_forwards_naive"), math.nan)
        spent = float(seconds[method]) if timed else math.nan
        result = outcome(math.nan, removed=(), evaluations=0, seconds=spent, assessed=estimates, **unknown)
        cells.append(CellResult(model, calibration, method, remove, 0, "", math.nan, state="finished", outcome=result))
    models = dict.fromkeys(cell.model for cell in cells)
    sites = {model: Sites.of_equal_layers(36 if "Qwen3" in model else 32) for model in models}
    facts = {"source": "arXiv 2604.24938v3, Tables 1, 2, 3, 4, 6, 7"}
    return StudyResult("arxiv-2604.24938", "Kim et al. 2026, as published", cells, sites, METRICS, dense, facts)
