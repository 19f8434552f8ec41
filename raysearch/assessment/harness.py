"""Accuracies by lm-eval itself (EleutherAI's LM Evaluation Harness), on a resident model with layers bypassed."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import os
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from raysearch.assessment.context import AssessContext, Assessed, AssessmentPlan
from raysearch.assessment.paired import error_of_ratio, parts
from raysearch.assessment.results import Result
from raysearch.assessment.task_files import stands_for_several, task_manager
from raysearch.calibration.dialogues import undated
from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.formatting import count
from raysearch.core.json import number_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError, first_line
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import quiet

#: A task's headline is the first of these that lm-eval gives; the papers and leaderboards of these tasks do the same.
_HEADLINES = ("acc_norm", "acc", "exact_match", "pass@1", "pass_at_1", "f1")
_BOOTSTRAPS = 1000  # of metrics whose standard error has no formula; an accuracy's has one
_SEED_OF_PYTHON, _SEED = 0, 1234  # lm-eval's own
_TITLES = {
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    "arc_easy": "ARC-E",
    "arc_challenge": "ARC-C",
    "piqa": "PIQA",
    "boolq": "BoolQ",
    "openbookqa": "OpenBookQA",
    "mmlu": "MMLU",
    "lambada_openai": "LAMBADA (last word)",
}


@dataclass(frozen=True)
class TaskJob(Job):
    """A task of lm-eval on one mask.

    Args:
        folder: Its task files; None for lm-eval's own.
        limit: The most items, or below 1 a share of them; None for all.
        shots: Examples in a prompt; None for what the task defines.
        run_code: Whether a task may run the code that the model writes, as lm-eval does: without a sandbox.
        chat: Whether it is asked in the model's chat template.
    """

    mask: Mask
    task: str
    folder: str | None
    limit: float | None
    shots: int | None
    batch_size: int
    run_code: bool = False
    chat: bool = False

    @property
    @override
    def kind(self) -> Hashable:
        return self.task

    @override
    def run(self, replica: Replica) -> dict[str, Any]:
        """Run the task.

        Returns:
            ``metrics``: what lm-eval gives, ``acc``, ``acc_stderr`` …; ``higher_is_better`` by metric; ``n_items``;
            ``shots``; ``version`` of the task; ``items``: by metric, the number of each item, in the task's order.
        """
        # Bootstraps stay in this process; the other is for metrics of Hugging Face's `evaluate`.
        os.environ |= {"DISABLE_MULTIPROC": "1", "HF_ALLOW_CODE_EVAL": str(int(self.run_code))}
        # As lm-eval does; some tasks shuffle while they are loaded.
        random.seed(_SEED_OF_PYTHON)
        np.random.seed(_SEED)  # noqa: NPY002 (the state that tasks use)
        torch.manual_seed(_SEED)
        with _silent():
            from lm_eval import evaluate
            from lm_eval.models.huggingface import HFLM

            loaded = self._load()
            if not self.run_code and any(getattr(task, "UNSAFE_CODE", False) for task in loaded["tasks"].values()):
                raise UserError(
                    f"assess.answers.run_code=false, but {self.task} of assess.tasks runs the code that the model "
                    "writes, without a sandbox; allow it with assess.answers.run_code=true, or use a task of "
                    "assess.generation"
                )
            with replica.stack.bypassed(self.mask) as model:
                # lm-eval gives a tokenizer a padding token, so it gets one of its own.
                tokenizer = copy.deepcopy(replica.tokenizer)
                tokenizer.chat_template = undated(tokenizer.chat_template)
                found = evaluate(
                    lm=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=self.batch_size),
                    task_dict=loaded,
                    limit=self.limit,
                    bootstrap_iters=_BOOTSTRAPS,
                    confirm_run_unsafe_code=self.run_code,
                    apply_chat_template=self.chat,
                    fewshot_as_multiturn=True,
                )
        return _plain(found, self.task)

    def _load(self) -> dict[str, Any]:
        """Load the task, or the tasks of a group, as `lm_eval.simple_evaluate` does.

        That would also list all packages and devices of the machine, which takes seconds for each task and mask.
        """
        try:
            loaded: dict[str, Any] = task_manager(self.folder, self.task).load([self.task])
        except Exception as error:  # whatever a hub, a network, a data set or a task file raises
            raise UserError(
                f"assess.tasks: {self.task} cannot be loaded ({type(error).__name__}: {first_line(error)}); check the "
                "network and the task's files, or give local data with assess.data_dir=…"
            ) from error
        group = loaded["groups"].get(self.task)
        if self.task not in loaded["tasks"] and not (group and group.has_aggregation):
            raise stands_for_several(self.task, loaded["tasks"])
        for task in loaded["tasks"].values():
            own = task.get_config("num_fewshot")
            if own != 0:  # which a task means
                task.set_config("num_fewshot", (own or 0) if self.shots is None else self.shots)
            task.set_fewshot_seed(_SEED)
        return loaded

    def __str__(self) -> str:
        return f"{self.task} on {self.mask}"


def missing_tasks(plan: AssessmentPlan, ledger: Ledger, masks: Sequence[Mask]) -> list[TaskJob]:
    """Return the tasks on masks that the ledger lacks; masks of a task follow each other."""
    spec, jobs = plan.spec, list[TaskJob]()
    options = (spec.task_limit, spec.shots, spec.batch_size, spec.answers.run_code, spec.chat)
    for source in plan.sources:
        known = plan.known(ledger, plan.name_of(source), masks)
        folder = None if source.folder is None else str(source.folder)
        jobs += [TaskJob(mask, source.name, folder, *options) for mask in masks if mask not in known]
    return jobs


def run_tasks(context: AssessContext, jobs: Sequence[TaskJob]) -> Assessed:
    """Run the tasks that are missing, each durable as soon as it is done, and return the results of all."""
    plan, masks = context.plan, context.masks
    if jobs:
        context.on_progress(f"lm-eval: 0 of {count(len(jobs), 'job')}")
    names = {source.name: plan.name_of(source) for source in plan.sources}
    for done, (job, found) in done_jobs(jobs, context.make_pool):
        context.keep(names[job.task], {job.mask: found})
        context.on_progress(f"lm-eval: {done} of {count(len(jobs), 'job')}, the last {job}")
    results: dict[Mask, dict[str, Result]] = {mask: {} for mask in masks}
    for task, name in names.items():
        known = plan.known(context.ledger, name, masks)
        for mask in masks:
            results[mask][task] = task_result(task, known[mask], known[Mask()])
    return results, len(jobs)


def task_result(name: str, found: Mapping[str, Any], dense: Mapping[str, Any]) -> Result:
    """Return a task's headline, with all that lm-eval gave as its detail; shares are in percent.

    `found` and `dense` are what `TaskJob.run` gave of a mask and of the dense model.
    """
    metrics = found["metrics"]
    headline = next((one for one in _HEADLINES if one in metrics), next(iter(found["higher_is_better"])))
    numbers = [number_of(one["metrics"][headline]) for one in (found, dense)]
    # A share is at most 1; what lm-eval gives of SQuAD 2.0 is in percent.
    in_percent = name == "squadv2" or max(numbers) > 1
    unit, scale = ("%", 1 if in_percent else 100) if headline in _HEADLINES else (headline, 1)
    group: Group = "perplexity" if headline.endswith("perplexity") else "accuracy"
    better = bool(found["higher_is_better"].get(headline, True))
    error = metrics.get(f"{headline}_stderr")
    value, reference = (scale * one for one in numbers)
    items, of_dense = (one.get("items", {}).get(headline, ()) for one in (found, dense))
    paired = len(items) == len(of_dense) > 1
    left = error_of_ratio(items, of_dense) if reference and paired else None
    return Result(
        Metric(name, _TITLES.get(name, name), group, unit, better),
        Estimate(value, None if error is None else scale * error),
        Estimate(value / reference, left) if reference else None,
        f"{count(found['n_items'], 'item')}, {headline}",
        {**{key: value for key, value in found.items() if key != "items"}, "headline": headline},
        parts([scale * one for one in items]),
    )


def _plain(found: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return what is kept of lm-eval's answer; ``acc,none`` is ``acc``, and the first of several filters counts.

    The items of a group are those of its tasks.
    """
    metrics: dict[str, float] = {}
    for key, value in found["results"][task].items():
        metric, comma, _ = key.partition(",")
        if comma and isinstance(value, int | float) and metric not in metrics:
            metrics[metric] = float(value)
    sizes = found["n-samples"]
    better = found["higher_is_better"].get(task) or {}
    return {
        "metrics": metrics,
        "higher_is_better": {metric: better.get(metric) is not False for metric in metrics if "_stderr" not in metric},
        "n_items": sum(of["effective"] for of in ([sizes[task]] if task in sizes else sizes.values())),
        "shots": found["n-shot"].get(task, max(found["n-shot"].values(), default=None)),
        "version": found["versions"].get(task),
        "items": _items(found["samples"].get(task) or [*chain(*found["samples"].values())], metrics),
    }


def _items(samples: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> dict[str, list[float]]:
    """Return the numbers of each item by metric, where the metric is their mean; by the first filter, as above."""
    first = [one for one in samples if one["filter"] == samples[0]["filter"]]
    items = {}
    for metric, mean in metrics.items():
        values = [one.get(metric) for one in sorted(first, key=lambda one: one["doc_id"])]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if numbers and len(numbers) == len(values) and math.isclose(fmean(numbers), mean, abs_tol=1e-9):
            items[metric] = numbers
    return items


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep lm-eval's progress bars, remarks and prints off the terminal."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
