"""The arithmetic probe: whether a mask still knows the next digit, where nothing has to be generated.

Source: figures 4a and 5a of `On the Limits of Layer Pruning for Generative Reasoning`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.paired import mean, parts, retention
from raysearch.assessment.results import Result
from raysearch.assessment.spec import ProbeOptions
from raysearch.calibration.batch import Inputs
from raysearch.core.estimate import Metric
from raysearch.core.formatting import count
from raysearch.core.json import number_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.generation.arithmetic import Probe, Problem, draw_problems, encode_probe, read_problems
from raysearch.models.loading import quiet

TOP_1 = Metric("arithmetic_top1", "arithmetic probe", "probe", "%", higher_is_better=True)
LOG_P = Metric("arithmetic_log_p", "arithmetic log p", "probe", "nats", higher_is_better=True)


@dataclass(frozen=True)
class ProbeJob(Job):
    """A job that asks one mask for the next digit of some problems."""

    mask: Mask
    problems: tuple[Problem, ...]
    batch_size: int

    @override
    def run(self, replica: Replica) -> dict[str, list[float]]:
        """Return ``log_p`` of each problem's digit, in nats, and ``right``: 1 where it is the likeliest of the ten."""
        probes = [encode_probe(problem, replica.tokenizer) for problem in self.problems]
        of_length: dict[int, list[int]] = defaultdict(list)
        for at, probe in enumerate(probes):
            of_length[len(probe.ids)].append(at)
        found: dict[int, tuple[float, float]] = {}
        stack, none = replica.stack, np.array([], dtype=np.int64)
        with torch.no_grad(), quiet():
            for places in of_length.values():  # of one length, so that no prompt is padded
                for start in range(0, len(places), self.batch_size):
                    batch = places[start : start + self.batch_size]
                    ids = np.array([probes[at].ids for at in batch])
                    hidden = stack.walk(stack.capture(Inputs(ids, None, None, none)), self.mask)
                    logits = stack.logits(hidden[:, -1])
                    found |= zip(batch, map(_judge, logits, [probes[at] for at in batch]), strict=True)
        log_p, right = zip(*(found[at] for at in range(len(probes))), strict=True)
        return {"log_p": [*log_p], "right": [*right]}

    def __str__(self) -> str:
        return f"the arithmetic probe of {self.mask}"


def _judge(logits: torch.Tensor, probe: Probe) -> tuple[float, float]:
    log_p = torch.log_softmax(logits.double(), dim=-1)[list(probe.digits)].tolist()
    return log_p[probe.digit], float(max(range(10), key=log_p.__getitem__) == probe.digit)


def probe_problems(options: ProbeOptions, tokenizer: Any) -> tuple[Problem, ...]:
    """Return the problems of a probe, of a file or drawn from all; a tokenizer without tokens of digits is refused."""
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
    """Return what the masks know of arithmetic, if that is asked."""
    plan, masks = context.plan, context.masks
    if not plan.problems:
        return {mask: {} for mask in masks}, 0
    name = plan.named({"probe": [problem.prompt for problem in plan.problems], "batch_size": plan.spec.batch_size})
    known = plan.known(context.ledger, name, masks)
    jobs = [ProbeJob(mask, plan.problems, plan.spec.batch_size) for mask in masks if mask not in known]
    for done, (job, found) in done_jobs(jobs, context.make_pool):
        context.keep(name, {job.mask: found})
        known[job.mask] = found
        context.on_progress(f"arithmetic probe: {done} of {count(len(jobs), 'mask')}")
    return {mask: probe_results(known[mask], known[Mask()]) for mask in masks}, len(jobs)


def probe_results(found: Mapping[str, Sequence[float]], dense: Mapping[str, Sequence[float]]) -> dict[str, Result]:
    """Return a mask's accuracy and log-probability beside the dense model's, with errors over the paired items."""
    extent = f"{count(len(found['right']), 'problem')}, first digit"
    right, of_dense = ([100 * one for one in of["right"]] for of in (found, dense))
    log_p, dense_log_p = ([number_of(one) for one in of["log_p"]] for of in (found, dense))
    change = mean([one - other for one, other in zip(log_p, dense_log_p, strict=True)])
    detail = {"change": change.value, "change_error": change.error}
    return {
        TOP_1.name: Result(TOP_1, mean(right), retention(right, of_dense), extent, {}, parts(right)),
        LOG_P.name: Result(LOG_P, mean(log_p), None, extent, detail, parts(log_p)),
    }
