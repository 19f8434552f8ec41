"""The core: many masks of one model, assessed beside the dense model, each number once in the life of a ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysearch.assessment.harness import TaskJob, task_result
from raysearch.assessment.perplexity import measure_perplexities, read_texts
from raysearch.assessment.results import Assessments, Result
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.speed import SpeedJob, alike, machine, speed_results
from raysearch.assessment.task_files import TaskSource, check_names, find_tasks
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool, PoolFactory
from raysearch.evaluation.session import PreparedData
from raysearch.ledger.assessments import assessment_fingerprint, read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import describe, tokenizer_fingerprint
from raysearch.models.spec import LocatedModel, ModelInfo, ModelSpec

Found = dict[Mask, dict[str, Any]]


@dataclass(frozen=True)
class Assessable:
    """A model and what it is to be assessed by, read, and checked against each other.

    Args:
        spec: What to assess.
        model: The dense model.
        cluster: Who computes it, unless somebody else's replicas do; its `cpus_per_replica` names results in any case.
        info: The model's shape.
        sources: The tasks.
        texts: The texts, and what has been read of the model's files.
    """

    spec: AssessSpec
    model: ModelSpec
    cluster: PoolFactory
    info: ModelInfo
    sources: Sequence[TaskSource]
    texts: PreparedData

    def named(self, identity: Mapping[str, Any]) -> str:
        """Return the ledger's name of a number of this model; `identity` is all that it depends on besides."""
        own = {
            "tokenizer": tokenizer_fingerprint(self.texts.tokenizer),
            "dtype": self.info.dtype,
            "attention": self.info.model.attention,
            "device": self.info.model.device.partition(":")[0],
            "threads": self.cluster.cpus_per_replica,
        }
        return assessment_fingerprint({**own, **identity})


def read_assessable(
    spec: AssessSpec, model: ModelSpec, cluster: PoolFactory, ledger: Path, known: PreparedData | None = None
) -> Assessable:
    """Reads the texts and finds the tasks that a model is to be assessed by; loads no weights.

    Args:
        spec: What to assess.
        model: The dense model.
        cluster: Who computes it.
        ledger: The ledger's file, beside which ready task files go.
        known: What has been read of the model's files, if they were.

    Raises:
        UserError: A text, a task or an option does not fit the model, or is not there.
    """
    info = describe(model)
    _check_speed(spec, model, info)
    cluster.check(info.model)
    sources = find_tasks(spec, ledger.parent)
    return Assessable(spec, model, cluster, info, sources, read_texts(spec, model, cluster, ledger, info, known))


def check_tasks(what: Assessable, ledger: Ledger | None) -> None:
    """Refuses names of tasks that lm-eval does not have, unless there is a ledger that has the dense model's result.

    Raises:
        UserError: A task is unknown, or stands for several.
    """
    missing = what.spec.tasks if ledger is None else [job.task for job in _Work(what, ledger, [Mask()]).missing_jobs()]
    check_names([source for source in what.sources if source.name in missing])


def assess_masks(
    what: Assessable,
    ledger: Ledger,
    masks: Sequence[Mask],
    *,
    make_pool: Callable[[], Pool] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Assessments:
    """Assesses masks beside the dense model: perplexities first, then lm-eval's tasks, then speed on an idle pool.

    Everything is in the ledger as soon as it is known, so the same call goes on where it was stopped, and loads no
    model if the ledger knows all of it. Perplexities go through an `Evaluator` (masks share prefixes, texts are cut
    into shards); tasks are masks x tasks jobs of the pool; speed is one job after everything else.

    Args:
        what: The model, and what it is to be assessed by.
        ledger: Open, and left open.
        masks: Which masks; the dense model is added where it is missing.
        make_pool: Gives a pool of the model's replicas when it is first needed; it is not closed. None to open one by
            `what.cluster`, and to close it at the end.
        on_progress: Told in a line how far it is.

    Returns:
        Every number of every mask: `Assessments.values` is ``{mask: {metric: Estimate}}``, `Assessments.metrics` says
        what they are, and `Assessments.by_mask` has the details.

    Raises:
        UserError: A mask does not fit the model, or a task or its data cannot be loaded.
        EvaluationError: Something failed for good.
    """
    masks = list(dict.fromkeys([Mask(), *masks]))
    _check_masks(masks, what)
    work, texts = _Work(what, ledger, masks, on_progress), what.texts.calibrations
    missing = work.missing_jobs()
    n_units = len(missing) + sum(text.n_shards for text in texts)
    with _pool(make_pool, what.cluster, what.info.model, n_units) as replicas:
        perplexities, computed = measure_perplexities(
            list(what.spec.texts), texts, masks, what.info.n_layers, ledger, replicas, on_progress
        )
        computed += work.run_tasks(missing, replicas)
        speeds, measured = work.speeds(replicas)
    accuracies = work.task_results()
    by_mask = {mask: {**perplexities[mask], **accuracies[mask], **speeds[mask]} for mask in masks}
    return Assessments(by_mask, computed + measured)


class _Work:
    """The masks and metrics asked of one model, and those that are known."""

    def __init__(
        self,
        what: Assessable,
        ledger: Ledger,
        masks: Sequence[Mask],
        on_progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._what, self._spec, self._sources = what, what.spec, what.sources
        self._ledger, self._masks, self._say = ledger, masks, on_progress
        self._fingerprint = what.texts.model_fingerprint

    def missing_jobs(self) -> list[TaskJob]:
        """Tasks on masks that the ledger lacks; masks of a task follow each other."""
        spec = self._spec
        return [
            TaskJob(
                mask, one.name, None if one.folder is None else str(one.folder), spec.limit, spec.shots, spec.batch_size
            )
            for one in self._sources
            for mask in self._masks
            if mask not in self._known(self._name(one))
        ]

    def run_tasks(self, jobs: Sequence[TaskJob], replicas: Callable[[], Pool]) -> int:
        """Runs tasks, each durable as soon as it is done; returns how many."""
        if not jobs:
            return 0
        names = {source.name: self._name(source) for source in self._sources}
        self._say(f"lm-eval: 0 of {count(len(jobs), 'job')}")
        for done, (job, found) in enumerate(filter(None, replicas().run(jobs)), start=1):
            write_assessment(self._ledger, self._fingerprint, names[job.task], {job.mask: found})
            self._say(f"lm-eval: {done} of {count(len(jobs), 'job')}, the last {job}")
        return len(jobs)

    def task_results(self) -> dict[Mask, dict[str, Result]]:
        """Every task's result on every mask, all of them known."""
        results: dict[Mask, dict[str, Result]] = {mask: {} for mask in self._masks}
        for source in self._sources:
            known = self._known(self._name(source))
            for mask in self._masks:
                results[mask][source.name] = task_result(source.name, known[mask], known[Mask()])
        return results

    def speeds(self, replicas: Callable[[], Pool]) -> tuple[dict[Mask, dict[str, Result]], int]:
        """Speed and memory, of the masks that stand for these; and how many of those were measured now."""
        options = self._spec.speed
        if not options.enabled:
            return {mask: {} for mask in self._masks}, 0
        where = machine(torch.device(self._what.info.model.device))
        name = self._what.named({"speed": vars(options), "machine": where})
        stand_ins = {mask: alike(mask, self._what.info) for mask in self._masks}
        asked = list(dict.fromkeys(stand_ins.values()))
        known = read_assessments(self._ledger, self._fingerprint, name, asked)
        measured = 0
        if set(asked) - set(known):  # then all of them, for speeds of one run alone compare
            self._say(f"speed: {count(len(asked), 'model')} in turn")
            ((_, known),) = filter(None, replicas().run([SpeedJob(tuple(asked), options)]))
            write_assessment(self._ledger, self._fingerprint, name, known)
            measured = len(asked)
        return {mask: speed_results(known[stand_ins[mask]]) for mask in self._masks}, measured

    def _known(self, name: str) -> Found:
        return read_assessments(self._ledger, self._fingerprint, name, self._masks)

    def _name(self, source: TaskSource) -> str:
        spec = self._spec
        return self._what.named(
            {**source.identity, "limit": spec.limit, "shots": spec.shots, "batch_size": spec.batch_size}
        )


@contextmanager
def _pool(
    make_pool: Callable[[], Pool] | None, cluster: PoolFactory, model: LocatedModel, n_units: int
) -> Iterator[Callable[[], Pool]]:
    """Give the pool when it is first needed: the one that was offered, which stays open, or one to close at the end."""
    if make_pool is not None:
        yield functools.cache(make_pool)  # one pool for every stage
        return
    opened: list[Pool] = []

    def replicas() -> Pool:
        if not opened:
            opened.append(cluster.open(model, n_units))
        return opened[0]

    try:
        yield replicas
    finally:
        for pool in opened:
            pool.close()


def _check_masks(masks: Sequence[Mask], what: Assessable) -> None:
    """Refuses layers that the model does not have."""
    n_layers = what.info.n_layers
    for mask in masks:
        if any(layer >= n_layers for layer in mask) or len(mask) >= n_layers:
            raise UserError(
                f"mask={mask} does not fit {what.model.name}, which has layers 0 … {n_layers - 1}; name only those, "
                "and keep at least one"
            )


def _check_speed(spec: AssessSpec, model: ModelSpec, info: ModelInfo) -> None:
    """Refuses lengths that the model does not have."""
    speed, most = spec.speed, info.max_positions
    if speed.enabled and most is not None and speed.context_tokens + speed.new_tokens > most:
        raise UserError(
            f"assess.speed.context_tokens={speed.context_tokens} with assess.speed.new_tokens={speed.new_tokens} is "
            f"longer than the {most} positions of {model.name}; use less, or assess.speed.enabled=false"
        )
