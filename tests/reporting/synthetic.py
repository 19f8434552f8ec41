"""A small synthetic study with every feature that a real one may have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.site import Sites
from raysearch.studies.result import CellResult, Outcome, State, StudyResult

N_LAYERS = 32
MARGIN = Measure("nats of margin per question", "sample", "margin")
PPL = "perplexity on C4"
TASK = "task margin <b>on</b> Commonsense & co, 64 questions, seed 0"
SEARCHERS = {
    # name: (random, layer-forwards alone, skill)
    "one_shot": (False, 527, 0.9),
    "greedy": (False, 3052, 0.4),
    "beam width=5": (False, 6426, 0.3),
    "genetic population=16 generations=10 elitism=0.2 mutation=0.15": (True, 4100, 0.5),
    "bayesian": (True, 4900, 0.5),
    "cbo": (False, 5487, 0.6),
    "fast_block_select": (False, 420, 0.9),
}
RANDOM = [name for name, (random, *_) in SEARCHERS.items() if random]
METRICS = [
    Metric("wikitext2", "WikiText-2", "perplexity", "perplexity", False),
    Metric("c4", "C4", "perplexity", "perplexity", False),
    Metric("lambada", "LAMBADA", "perplexity", "perplexity", False),
    Metric("hellaswag", "HellaSwag", "accuracy", "%", True),
    Metric("winogrande", "WinoGrande", "accuracy", "%", True),
    Metric("arc_easy", "ARC-Easy", "accuracy", "%", True),
    Metric("piqa", "PIQA", "accuracy", "%", True),
    Metric("throughput", "Throughput", "speed", "tokens/s", True),
]
DENSE = {
    "wikitext2": Estimate(6.14, 0.05), "c4": Estimate(8.31, 0.06), "lambada": Estimate(16.11),
    "hellaswag": Estimate(79.2, 0.4), "winogrande": Estimate(73.7, 1.2), "arc_easy": Estimate(77.5, 0.9),
    "piqa": Estimate(80.6, 0.9), "throughput": Estimate(1000.0, 5.0),
}  # fmt: skip
FAILURE = "RuntimeError: <script>alert('x')</script> CUDA & out of memory | on *layer* 3"


def synthetic_study(
    models: Sequence[str] = ("smollm2-135m",),
    calibrations: Sequence[str] = (PPL, TASK),
    searchers: Sequence[str] = tuple(SEARCHERS),
    sizes: Sequence[int] = (5, 7),
    seeds: int = 3,
    assessed: bool = True,
    flaws: bool = True,
) -> StudyResult:
    """Return a study of that grid, always with the same numbers; only random searchers have more than one seed.

    Losses of all calibrations but `PPL` are negative margins. With `flaws` a search failed, one was stopped, one has
    not run, and one searcher has no standard errors.
    """
    cells = [
        _cell(model, calibration, searcher, remove, seed, assessed, flaws)
        for model, calibration, remove, searcher in itertools.product(models, calibrations, sizes, searchers)
        for seed in range(seeds if searcher in RANDOM else 1)
    ]
    return StudyResult(
        study_id="st-4f1c09",
        name="Which layers go? <searchers> & calibrations",
        cells=cells,
        sites=dict.fromkeys(models, Sites.of_equal_layers(N_LAYERS)),
        metrics=METRICS if assessed else [],
        dense=dict.fromkeys(models, DENSE) if assessed else {},
        facts={
            "command": "raysearch study study=paper 'model=smollm2-135m' <out>",
            "data": "C4 (allenai/c4 en, 64 × 2048 tokens), Commonsense 170k (64 questions)",
            "versions": "raysearch 0.1.0, torch 2.8, transformers 5.23",
            "machine": "8 × A40",
            "date": "2026-11-21",
        },
        link="http://127.0.0.1:5000/#/experiments/1/runs/study",
    )


def waiting_study() -> StudyResult:
    """Return a study of which no search has run."""
    cells = [CellResult("m", "c", searcher, 3, 0, "") for searcher in ("greedy", "one_shot")]
    return StudyResult("st-0", "Nothing yet", cells, {"m": Sites.of_equal_layers(12)}, METRICS, {}, {})


def _cell(
    model: str, calibration: str, searcher: str, remove: int, seed: int, assessed: bool, flaws: bool
) -> CellResult:
    state: State = "finished"
    if flaws and calibration != PPL and remove == 7:
        if searcher == "cbo":
            state = "failed"
        elif searcher == "bayesian" and seed in (1, 2):
            state = "stopped" if seed == 1 else "waiting"
    failure = FAILURE if state == "failed" else None
    run = None if state == "waiting" else f"{searcher.split()[0]}-{remove}-{seed}-{abs(len(calibration)) % 97:02d}"
    result = None
    if state in ("finished", "stopped"):
        result = _outcome(model, calibration, searcher, remove, seed, assessed, flaws)
    link = None if run is None else f"http://127.0.0.1:5000/#/experiments/1/runs/{run}?a=1&b=<2>"
    shared = result.layer_forwards_alone * (1.0 if searcher == "one_shot" else 0.55) if result else 0.0
    labels = model, calibration, searcher, remove, seed
    return CellResult(*labels, run or "", shared, state=state, failure=failure, link=link, outcome=result)


def _outcome(
    model: str, calibration: str, searcher: str, remove: int, seed: int, assessed: bool, flaws: bool
) -> Outcome:
    random, cost, skill = SEARCHERS[searcher]
    by_perplexity = calibration == PPL
    rng = np.random.default_rng([len(model), len(calibration), list(SEARCHERS).index(searcher), remove, seed])
    removed = _removed(by_perplexity, skill, remove, rng)
    dense = 2.1 if by_perplexity else -1.35
    delta = 0.02 * remove**1.7 * (1 + 0.22 * skill + 0.05 * (rng.normal() if random else 0))
    loss = dense + delta
    evaluations = int(cost / 16 * remove / 7)
    path = {size: dense + delta * (size / remove) ** 1.7 for size in range(1, remove + 1)}
    steps = sorted({1, *(int(evaluations ** (k / 8)) for k in range(1, 9))})
    course = [(count, loss + 1.2 * delta * (1 - math.log(count) / math.log(steps[-1])) ** 2) for count in steps]
    forwards = cost * remove / 7 * (1.0 if by_perplexity else 1.07)
    return Outcome(
        removed=removed,
        measure=PERPLEXITY if by_perplexity else MARGIN,
        dense_loss=dense,
        loss=loss,
        delta_error=None if flaws and searcher == "fast_block_select" else 0.012 + 0.002 * skill,
        evaluations=evaluations,
        layer_forwards_alone=forwards,
        layer_forwards_naive=evaluations * 32.0 * 1.2,
        seconds=forwards * 0.21,
        path=path,
        best_so_far=course,
        assessed=_assessed(by_perplexity, remove, skill, rng) if assessed else {},
    )


def _removed(by_perplexity: bool, skill: float, remove: int, rng: np.random.Generator) -> tuple[int, ...]:
    centre = 22.0 if by_perplexity else 15.0
    width = 3.0 if by_perplexity else 6.5
    score = -np.abs(np.arange(N_LAYERS) - centre) / width + (0.5 + 0.5 * skill) * rng.normal(size=N_LAYERS)
    return tuple(sorted(int(layer) for layer in np.argsort(-score)[:remove]))


def _assessed(by_perplexity: bool, remove: int, skill: float, rng: np.random.Generator) -> dict[str, Estimate]:
    hurt = remove / 7 * (1 + 0.2 * skill)
    factor = math.exp(hurt * (0.8 if by_perplexity else 2.6 + 0.5 * rng.normal()))
    drop = hurt * (21 if by_perplexity else 17) + 1.6 * rng.normal()
    estimates = {}
    for metric in METRICS:
        dense = DENSE[metric.name]
        if metric.group == "perplexity":
            value = dense.value * factor * math.exp(0.05 * rng.normal())
            estimates[metric.name] = Estimate(value, None if dense.error is None else 0.01 * value)
        elif metric.group == "accuracy":
            estimates[metric.name] = Estimate(dense.value - drop + 0.8 * rng.normal(), dense.error)
        else:
            estimates[metric.name] = Estimate(1000 * N_LAYERS / (N_LAYERS - remove), 6.0)
    return estimates
