"""Accuracies by lm-eval (EleutherAI's LM Evaluation Harness), on a resident model with layers bypassed."""

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
from raysearch.assessment.results import Result
from raysearch.assessment.task_files import stands_for_several, task_manager
from raysearch.calibration.dialogues import undated
from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.json import number_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import quiet
from raysearch.stats.estimates import error_of_ratio, parts_of_mean
from raysearch.text.numbers import count
from raysearch.text.sentences import first_line

#: The headline of a task is the first of these metrics that lm-eval returns, as in the tasks' papers and leaderboards.
_HEADLINES = ("acc_norm", "acc", "exact_match", "pass@1", "pass_at_1", "f1")
_BOOTSTRAPS = 1000  # for metrics whose standard error has no formula; that of an accuracy has one
_SEED_OF_PYTHON = 0  # the seeds of lm-eval
_SEED = 1234
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
        mask: The mask.
        task: The name of the task.
        folder: The folder of its task files; None for lm-eval's own.
        limit: The largest number of items; below 1, the share of all items; None for all.
        shots: The number of worked examples in a prompt; None for the task's default.
        batch_size: The number of rows in a batch.
        run_code: Whether a task may run the code that the model writes, as lm-eval does: without a sandbox.
        chat: Whether prompts use the model's chat template.
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
            ``metrics``: those of lm-eval, ``acc``, ``acc_stderr`` …; ``higher_is_better`` by metric; ``n_items``;
            ``shots``; ``version`` of the task; ``items``: by metric, the number of each item, in the task's order.

        Raises:
            UserError: The task cannot be loaded, stands for several tasks, or runs code without permission.
        """
        # The first keeps bootstraps in this process; the second is read by metrics of Hugging Face's `evaluate`.
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
                # lm-eval adds a padding token to the tokenizer, so it gets a copy.
                tokenizer = copy.deepcopy(replica.tokenizer)
                tokenizer.chat_template = undated(tokenizer.chat_template)
                output = evaluate(
                    lm=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=self.batch_size),
                    task_dict=loaded,
                    limit=self.limit,
                    bootstrap_iters=_BOOTSTRAPS,
                    confirm_run_unsafe_code=self.run_code,
                    apply_chat_template=self.chat,
                    fewshot_as_multiturn=True,
                )
        return _plain(output, self.task)

    def _load(self) -> dict[str, Any]:
        """Load the task, or the tasks of a group, as ``lm_eval.simple_evaluate`` does.

        That function also lists all packages and devices of the machine, which takes seconds for each task and mask.
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
            default_shots = task.get_config("num_fewshot")
            if default_shots != 0:  # a task that sets 0 always has no examples
                task.set_config("num_fewshot", (default_shots or 0) if self.shots is None else self.shots)
            task.set_fewshot_seed(_SEED)
        return loaded

    def __str__(self) -> str:
        return f"{self.task} on {self.mask}"


def missing_tasks(plan: AssessmentPlan, ledger: Ledger, masks: Sequence[Mask]) -> list[TaskJob]:
    """Return the jobs whose results are not in the ledger, task by task.

    Args:
        plan: The plan with the tasks.
        ledger: An open ledger.
        masks: The masks.

    Returns:
        A job for each mask and task that the ledger does not have.
    """
    spec = plan.spec
    jobs: list[TaskJob] = []
    options = (spec.task_limit, spec.shots, spec.batch_size, spec.answers.run_code, spec.chat)
    for source in plan.sources:
        recorded = plan.recorded(ledger, plan.name_of(source), masks)
        folder = None if source.folder is None else str(source.folder)
        jobs += [TaskJob(mask, source.name, folder, *options) for mask in masks if mask not in recorded]
    return jobs


def run_tasks(context: AssessContext, jobs: Sequence[TaskJob]) -> Assessed:
    """Run the missing tasks, write each result to the ledger at once, and return the results of all tasks.

    Args:
        context: The masks and the ledger.
        jobs: The missing tasks, see `missing_tasks`.

    Returns:
        The results of each mask on all tasks, and the number of jobs that were computed now.

    Raises:
        UserError: A task cannot be loaded.
        EvaluationError: A job failed for good.
    """
    plan = context.plan
    masks = context.masks
    if jobs:
        context.on_progress(f"lm-eval: 0 of {count(len(jobs), 'job')}")
    names = {source.name: plan.name_of(source) for source in plan.sources}
    for n_done, (job, output) in done_jobs(jobs, context.make_pool):
        context.record(names[job.task], {job.mask: output})
        context.on_progress(f"lm-eval: {n_done} of {count(len(jobs), 'job')}, the last {job}")
    results: dict[Mask, dict[str, Result]] = {mask: {} for mask in masks}
    for task, name in names.items():
        recorded = plan.recorded(context.ledger, name, masks)
        for mask in masks:
            results[mask][task] = task_result(task, recorded[mask], recorded[Mask()])
    return results, len(jobs)


def task_result(name: str, output: Mapping[str, Any], dense: Mapping[str, Any]) -> Result:
    """Return the headline of a task, in percent if it is a share, with all numbers of lm-eval as its detail.

    Args:
        name: The name of the task.
        output: The return value of `TaskJob.run` for a mask.
        dense: The same for the dense model.

    Returns:
        The metric, its value with a standard error, and the share of the dense model's value that is left.
    """
    metrics = output["metrics"]
    headline = next((metric for metric in _HEADLINES if metric in metrics), next(iter(output["higher_is_better"])))
    number = number_of(metrics[headline])
    dense_number = number_of(dense["metrics"][headline])
    # A share is at most 1; lm-eval returns percent for SQuAD 2.0.
    is_percent = name == "squadv2" or max(number, dense_number) > 1
    is_share = headline in _HEADLINES
    unit = "%" if is_share else headline
    scale = 100 if is_share and not is_percent else 1
    group: Group = "perplexity" if headline.endswith("perplexity") else "accuracy"
    higher_is_better = bool(output["higher_is_better"].get(headline, True))
    error = metrics.get(f"{headline}_stderr")
    value = scale * number
    reference = scale * dense_number
    items = output.get("items", {}).get(headline, ())
    dense_items = dense.get("items", {}).get(headline, ())
    are_paired = len(items) == len(dense_items) and len(items) > 1
    error_of_retention = error_of_ratio(items, dense_items) if reference and are_paired else None
    detail = {key: value for key, value in output.items() if key != "items"}
    return Result(
        Metric(name, _TITLES.get(name, name), group, unit, higher_is_better),
        Estimate(value, None if error is None else scale * error),
        Estimate(value / reference, error_of_retention) if reference else None,
        f"{count(output['n_items'], 'item')}, {headline}",
        {**detail, "headline": headline},
        parts_of_mean([scale * item for item in items]),
    )


def _plain(output: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the stored part of lm-eval's output; ``acc,none`` is ``acc``, and of several filters the first counts.

    The items of a group are those of its tasks.
    """
    metrics: dict[str, float] = {}
    for key, value in output["results"][task].items():
        metric, comma, _ = key.partition(",")
        if comma and isinstance(value, int | float) and metric not in metrics:
            metrics[metric] = float(value)
    sizes = output["n-samples"]
    task_sizes = [sizes[task]] if task in sizes else sizes.values()  # those of a group are those of its tasks
    better = output["higher_is_better"].get(task) or {}
    return {
        "metrics": metrics,
        "higher_is_better": {metric: better.get(metric) is not False for metric in metrics if "_stderr" not in metric},
        "n_items": sum(size["effective"] for size in task_sizes),
        "shots": output["n-shot"].get(task, max(output["n-shot"].values(), default=None)),
        "version": output["versions"].get(task),
        "items": _items(output["samples"].get(task) or [*chain(*output["samples"].values())], metrics),
    }


def _items(samples: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> dict[str, list[float]]:
    """Return the numbers of each item by metric, for metrics that are their mean; by the first filter only."""
    of_first_filter = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    in_order = sorted(of_first_filter, key=lambda sample: sample["doc_id"])
    items = {}
    for metric, mean in metrics.items():
        values = [sample.get(metric) for sample in in_order]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if numbers and len(numbers) == len(values) and math.isclose(fmean(numbers), mean, abs_tol=1e-9):
            items[metric] = numbers
    return items


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress lm-eval's progress bars, log messages and prints."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
