"""Accuracies by lm-eval itself (EleutherAI's LM Evaluation Harness), on a resident model with layers bypassed."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import math
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from typing_extensions import override

from raysearch.assessment.paired import error_of_ratio, parts
from raysearch.assessment.results import Result
from raysearch.calibration.dialogues import undated
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.formatting import count
from raysearch.core.json import number_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import Job
from raysearch.evaluation.replica import Replica
from raysearch.models.loading import quiet

#: A task's headline is the first of these that lm-eval gives; the papers and leaderboards of these tasks do the same.
_HEADLINES = ("acc_norm", "acc", "exact_match", "pass@1", "pass_at_1", "f1")
_BOOTSTRAPS = 1000  # of metrics whose standard error has no formula; an accuracy's has one
_TITLES = {
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    "arc_easy": "ARC-E",
    "arc_challenge": "ARC-C",
    "piqa": "PIQA",
    "boolq": "BoolQ",
    "openbookqa": "OpenBookQA",
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

        Raises:
            UserError: The task or its data cannot be loaded.
        """
        with _silent():
            from lm_eval import simple_evaluate
            from lm_eval.models.huggingface import HFLM

            manager = _task_manager(self.folder)
            try:
                loaded = manager.load([self.task])  # and again below: `simple_evaluate` is the stable interface
            except Exception as error:  # whatever a hub, a network, a data set or a task file raises
                cause = " ".join(str(error).split())[:300]
                raise UserError(
                    f"assess.tasks: {self.task} cannot be loaded ({type(error).__name__}: {cause}); check the network "
                    "and the task's files, or give local data with assess.data_dir=…"
                ) from error
            if not self.run_code and _runs_code(loaded):
                raise UserError(
                    f"assess.answers.run_code=false, but {self.task} of assess.tasks runs the code that the model "
                    "writes, without a sandbox; allow it with assess.answers.run_code=true, or use a task of "
                    "assess.generation"
                )
            allowed = {"HF_ALLOW_CODE_EVAL": "1"} if self.run_code else {}  # for metrics of Hugging Face's `evaluate`
            with replica.stack.bypassed(self.mask) as model, torch.random.fork_rng(), _environment(allowed):
                # lm-eval gives a tokenizer a padding token, so it gets one of its own.
                tokenizer = copy.deepcopy(replica.tokenizer)
                tokenizer.chat_template = undated(tokenizer.chat_template)
                lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=self.batch_size)
                found = simple_evaluate(
                    model=lm,
                    tasks=[self.task],
                    num_fewshot=self.shots,
                    limit=self.limit,
                    task_manager=manager,
                    bootstrap_iters=_BOOTSTRAPS,
                    log_samples=True,
                    confirm_run_unsafe_code=self.run_code,
                    apply_chat_template=self.chat,
                )
        return _plain(found, self.task)

    def __str__(self) -> str:
        return f"{self.task} on {self.mask}"


def task_result(name: str, found: Mapping[str, Any], dense: Mapping[str, Any]) -> Result:
    """Return a task's headline, with all that lm-eval gave as its detail; shares are in percent.

    `found` and `dense` are what `TaskJob.run` gave of a mask and of the dense model.
    """
    metrics = found["metrics"]
    headline = next((one for one in _HEADLINES if one in metrics), next(iter(found["higher_is_better"])))
    is_share, is_perplexity = headline in _HEADLINES, headline.endswith("perplexity")
    scale = 100 if is_share else 1
    error = metrics.get(f"{headline}_stderr")
    value, dense_value = (number_of(one["metrics"][headline]) for one in (found, dense))
    estimate = Estimate(scale * value, None if error is None else scale * error)
    reference = scale * dense_value
    items, of_dense = (one.get("items", {}).get(headline, ()) for one in (found, dense))
    paired = len(items) == len(of_dense) > 1
    left = error_of_ratio(items, of_dense) if reference and paired else None
    return Result(
        Metric(
            name,
            _TITLES.get(name, name),
            "perplexity" if is_perplexity else "accuracy",
            "%" if is_share else headline,
            bool(found["higher_is_better"].get(headline, True)),
        ),
        estimate,
        Estimate(estimate.value / reference, left) if reference else None,
        f"{count(found['n_items'], 'item')}, {headline}",
        {**{key: value for key, value in found.items() if key != "items"}, "headline": headline},
        parts([scale * one for one in items]),
    )


@functools.cache  # listing lm-eval's own tasks takes seconds
def _task_manager(folder: str | None) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager() if folder is None else TaskManager(include_path=folder, include_defaults=False)


def _plain(found: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return what is kept of lm-eval's answer; ``acc,none`` is ``acc``, and the first of several filters counts."""
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
        "shots": found["n-shot"].get(task),
        "version": found["versions"].get(task),
        "items": _items(found["samples"].get(task, []), metrics),
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


def _runs_code(loaded: Any) -> bool:
    """Return whether one of the tasks, perhaps in groups, runs code."""
    if isinstance(loaded, Mapping):
        return any(map(_runs_code, loaded.values()))
    return bool(getattr(loaded, "UNSAFE_CODE", False))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {name: os.environ.pop(name) for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep lm-eval's progress bars, remarks and prints off the terminal, and its bootstraps in this process."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()), _environment({"DISABLE_MULTIPROC": "1"}):
            yield
    finally:
        logger.setLevel(level)
