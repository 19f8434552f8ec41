"""Answers that masks generate: evaluations with the texts in the ledger, and descriptions of the texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.perplexity import local_rows
from raysearch.assessment.results import Result
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.generation.checks import check_of
from raysearch.generation.diagnostics import DESCRIBED, describe_texts
from raysearch.generation.examples import examples, worst
from raysearch.generation.score import ScoredText
from raysearch.generation.scoring import FailureClass
from raysearch.generation.server import Server
from raysearch.ledger.assessments import assessment_fingerprint
from raysearch.stats.estimates import mean, parts_of_mean, retention
from raysearch.text.numbers import count

_TITLES = {
    "gsm8k": "GSM8K",
    "humaneval": "HumanEval",
    "humaneval_plus": "HumanEval+",
    "mbpp": "MBPP",
    "mbpp_plus": "MBPP+",
    "xsum": "XSUM",
}
_GROUPS = ("generation", "degeneration", "failures")  # in the order of tables
_EXAMPLES = 3  # the first examples of a task, and the worst ones
_SHOWN = ("item", "expected", "dense", "text", "dense_score", "score", "failure")  # the keys of an example


def task_specs(spec: AssessSpec) -> list[CalibrationSpec]:
    """Return the tasks of an assessment that are answered by a generated text, as calibrations."""
    return [
        CalibrationSpec(f"assess.generation.{name}", spec.answers.objective, _as_assessed(name, data, spec))
        for name, data in spec.generation.items()
    ]


def assess_generation(context: AssessContext, server: Server | None) -> Assessed:
    """Return the score of every mask on every task, with descriptions of its texts.

    Args:
        context: The masks and the ledger.
        server: A server of the checkpoint of the only pruned mask, which answers for it; None to use the replicas.

    Returns:
        The results of each mask, and the number of jobs that were computed now.

    Raises:
        UserError: There is a server, and not exactly one pruned mask.
        EvaluationError: A job failed for good.
    """
    masks = context.masks
    ledger = context.ledger
    tasks = context.plan.tasks
    if tasks and server is not None and len([mask for mask in masks if mask]) != 1:
        raise UserError(f"assess.server={server.url} serves one checkpoint, so it is for one search; name that")
    resident = [mask for mask in masks if server is None or mask == Mask()]
    _, computed = replace(context, masks=resident).evaluate(tasks, "answers")
    results: dict[Mask, dict[str, Result]] = {mask: {} for mask in masks}
    for name, task in zip(context.plan.spec.generation, tasks, strict=True):
        dense = ledger.texts(task.fingerprint, Mask())
        for mask in masks:
            answered_task = task
            if server is not None and mask not in resident:
                answered_task, was_missing = _answered(server, task, mask, context)
                computed += int(was_missing)
            texts = ledger.texts(answered_task.fingerprint, mask)
            results[mask][name] = _result(name, answered_task, texts, dense)
            results[mask] |= _degeneration(name, results[mask][name])
    for mask in masks:
        results[mask] = dict(sorted(results[mask].items(), key=lambda pair: _GROUPS.index(pair[1].metric.group)))
    return results, computed


def _answered(server: Server, task: Calibration, mask: Mask, context: AssessContext) -> tuple[Calibration, bool]:
    """Let a server answer a task; return the task as the ledger names it, and whether answers were missing."""
    objective = task.objective
    assert isinstance(objective, GenerationAccuracyObjective)
    served_task = replace(
        task, fingerprint=assessment_fingerprint({"task": task.fingerprint, "server": asdict(server)})
    )
    recorded = context.ledger.evaluations(served_task.fingerprint, [mask]).get(mask, {})
    missing = [number for number in range(task.n_shards) if number not in recorded]
    for n_done, number in enumerate(missing):
        context.on_progress(f"answers of {server.model}: {n_done} of {count(len(missing), 'shard')}")
        shard = task.shards[number]
        written = server.generate(objective.prompts(shard), context.plan.files.tokenizer, objective.decoding)
        scored = objective.scored(written, shard.answers or ())
        context.ledger.record(served_task.fingerprint, number, {mask: scored.losses.numpy()}, {mask: scored.texts})
    return served_task, bool(missing)


def _result(name: str, task: Calibration, texts: Sequence[ScoredText], dense: Sequence[ScoredText]) -> Result:
    """Return the mean score in percent and its ratio to the dense model's, with standard errors."""
    scores = [100 * text.score.value for text in texts]
    dense_scores = [100 * text.score.value for text in dense]
    answers = [answer for shard in task.shards for answer in shard.answers or ()]
    expected = tuple(answer.text for answer in answers)
    kind, *other_kinds = sorted(set(map(check_of, answers)))
    unit = "ROUGE-L" if kind == "rouge" else "accuracy"
    if other_kinds:
        unit = "score"
    metric = Metric(name, _TITLES.get(name, name), "generation", "%", higher_is_better=True)
    detail = {
        "check": kind,
        **describe_texts(texts, code=kind == "code"),
        "data": {key: value for key, value in task.description.items() if key not in ("shards", "n_tokens")},
        "fingerprint": task.fingerprint,
        "examples": _examples(expected, texts, dense),
    }
    extent = f"{count(len(texts), 'item')}, {unit}"
    return Result(
        metric, mean(scores), retention(scores, dense_scores), extent, detail, parts_of_mean(scores), expected
    )


def _examples(
    expected: Sequence[str], texts: Sequence[ScoredText], dense: Sequence[ScoredText]
) -> list[dict[str, Any]]:
    """Return some answers next to the dense model's: the first ones, then those that lost most, the worst last."""
    all_examples = examples(expected, dense, texts)
    worst_examples = worst(all_examples, _EXAMPLES)
    first_examples = [example for example in all_examples[:_EXAMPLES] if example not in worst_examples]
    chosen = [*first_examples, *reversed(worst_examples)]
    return [{key: example[key] for key in _SHOWN} for example in chosen]


def _degeneration(name: str, result: Result) -> dict[str, Result]:
    """Return the descriptions of a task's texts, and the share that fails for each reason, as separate results."""
    task = result.metric.title
    detail = result.detail
    numbers: list[tuple[Metric, float]] = []
    for key, title, unit, scale, higher_is_better in DESCRIBED:
        if key in detail:
            metric = Metric(f"{name}.{key}", f"{task}, {title}", "degeneration", unit, higher_is_better)
            numbers.append((metric, math.nan if detail[key] is None else scale * detail[key]))
    for reason in get_args(FailureClass) if "parses" in detail else ():
        key = f"{name}.failed.{reason.replace(' ', '_')}"
        metric = Metric(key, f"{task}, {reason}", "failures", "%", higher_is_better=False)
        numbers.append((metric, 100 * detail.get("failures", {}).get(reason, 0) / detail["n_items"]))
    extent = count(detail["n_items"], "item")
    return {metric.name: Result(metric, Estimate(value), None, extent, {}) for metric, value in numbers}


def _as_assessed(name: str, data: Data, spec: AssessSpec) -> Data:
    """Return the data of a task for an assessment: up to the limit of items, from the data folder if there is one."""
    draw = data.draw
    if not isinstance(draw, ItemOptions):
        raise UserError(f"assess.generation.{name} has no questions; use data=generation, data=gsm8k_cot …")
    if spec.limit is not None and draw.samples != "all":
        draw = replace(draw, samples=min(draw.samples, spec.limit))
    elif spec.limit is not None:
        draw = replace(draw, at_most=min(spec.limit, draw.at_most or spec.limit))
    return replace(data, rows=local_rows("generation", name, data.rows, spec.data_dir), draw=draw)
