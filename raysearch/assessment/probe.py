"""The arithmetic probe: whether a mask still predicts the first digit of a result, without generating text.

Source: Figures 4a and 5a of "On the Limits of Layer Pruning for Generative Reasoning".
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.results import Result
from raysearch.assessment.spec import ProbeOptions
from raysearch.calibration.batch import Inputs
from raysearch.core.estimate import Metric
from raysearch.core.json import number_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.generation.arithmetic import ArithmeticProblem, Probe, draw_problems, encode_probe, read_problems
from raysearch.models.loading import quiet
from raysearch.stats.estimates import mean, parts_of_mean, retention
from raysearch.text.numbers import count

TOP_1 = Metric("arithmetic_top1", "arithmetic probe", "probe", "%", higher_is_better=True)
LOG_P = Metric("arithmetic_log_p", "arithmetic log p", "probe", "nats", higher_is_better=True)


@dataclass(frozen=True)
class ProbeJob(Job):
    """A job that predicts the first digit of the results of some problems, on one mask.

    Args:
        mask: The mask.
        problems: The problems.
        batch_size: The number of prompts in a batch.
    """

    mask: Mask
    problems: tuple[ArithmeticProblem, ...]
    batch_size: int

    @override
    def run(self, replica: Replica) -> dict[str, list[float]]:
        """Return ``log_p`` of each problem's digit, in nats, and ``right``: 1 if it is the likeliest digit, else 0."""
        stack = replica.stack
        probes = [encode_probe(problem, replica.tokenizer) for problem in self.problems]
        indices_by_length: dict[int, list[int]] = defaultdict(list)
        for index, probe in enumerate(probes):
            indices_by_length[len(probe.ids)].append(index)
        log_p = [math.nan] * len(probes)
        right = [math.nan] * len(probes)
        no_predictors = np.array([], dtype=np.int64)
        with torch.no_grad(), quiet():
            for indices in indices_by_length.values():  # prompts of one length need no padding
                for start in range(0, len(indices), self.batch_size):
                    batch = indices[start : start + self.batch_size]
                    ids = np.array([probes[index].ids for index in batch])
                    hidden = stack.walk(stack.capture(Inputs(ids, None, None, no_predictors)), self.mask)
                    for index, logits in zip(batch, stack.logits(hidden[:, -1]), strict=True):
                        log_p[index], right[index] = _judge(logits, probes[index])
        return {"log_p": log_p, "right": right}

    def __str__(self) -> str:
        return f"the arithmetic probe of {self.mask}"


def _judge(logits: torch.Tensor, probe: Probe) -> tuple[float, float]:
    """Return the log-probability of the right digit, and 1 if it is the likeliest of the ten, else 0."""
    log_p: list[float] = torch.log_softmax(logits.double(), dim=-1)[list(probe.digits)].tolist()
    likeliest_digit = log_p.index(max(log_p))
    return log_p[probe.digit], float(likeliest_digit == probe.digit)


def probe_problems(options: ProbeOptions, tokenizer: Any) -> tuple[ArithmeticProblem, ...]:
    """Return the problems of a probe, from a file or drawn from all problems of that form.

    Args:
        options: The options of the probe.
        tokenizer: The model's tokenizer.

    Returns:
        Distinct problems, in the order of the draw.

    Raises:
        UserError: The file cannot be read, or the tokenizer has no token for each digit.
    """
    if options.file is None:
        problems = draw_problems(options.items, options.seed)
    else:
        problems = read_problems(_rows(options.file), options.items, options.seed)
    for problem in problems:
        encode_probe(problem, tokenizer)
    return tuple(problems)


def _rows(file: Path) -> list[Mapping[str, Any]]:
    try:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(
            f"assess.probe.file={file} cannot be read ({error}); name a file of JSON lines, or leave it out"
        ) from error
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"assess.probe.file={file} has lines that are not objects; use rows of arithmetic_1dc")
    return rows


def ask_probe(context: AssessContext) -> Assessed:
    """Return the results of the arithmetic probe for all masks, if it is enabled."""
    plan = context.plan
    masks = context.masks
    if not plan.problems:
        return {mask: {} for mask in masks}, 0
    name = plan.named({"probe": [problem.prompt for problem in plan.problems], "batch_size": plan.spec.batch_size})
    recorded = plan.recorded(context.ledger, name, masks)
    jobs = [ProbeJob(mask, plan.problems, plan.spec.batch_size) for mask in masks if mask not in recorded]
    for n_done, (job, answers) in done_jobs(jobs, context.make_pool):
        context.record(name, {job.mask: answers})
        recorded[job.mask] = answers
        context.on_progress(f"arithmetic probe: {n_done} of {count(len(jobs), 'mask')}")
    return {mask: probe_results(recorded[mask], recorded[Mask()]) for mask in masks}, len(jobs)


def probe_results(answers: Mapping[str, Sequence[float]], dense: Mapping[str, Sequence[float]]) -> dict[str, Result]:
    """Return a mask's accuracy and log-probability compared with the dense model's, with errors over the paired items.

    Args:
        answers: The return value of `ProbeJob.run` for a mask.
        dense: The same for the dense model.

    Returns:
        The two results by the names of their metrics.
    """
    extent = f"{count(len(answers['right']), 'problem')}, first digit"
    right = [100 * is_right for is_right in answers["right"]]
    dense_right = [100 * is_right for is_right in dense["right"]]
    log_p = [number_of(value) for value in answers["log_p"]]
    dense_log_p = [number_of(value) for value in dense["log_p"]]
    change = mean([value - dense_value for value, dense_value in zip(log_p, dense_log_p, strict=True)])
    detail = {"change": change.value, "change_error": change.error}
    return {
        TOP_1.name: Result(TOP_1, mean(right), retention(right, dense_right), extent, {}, parts_of_mean(right)),
        LOG_P.name: Result(LOG_P, mean(log_p), None, extent, detail, parts_of_mean(log_p)),
    }
