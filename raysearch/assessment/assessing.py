"""The core: many masks of one model, assessed beside the dense model, each number once in the life of a ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from raysearch.assessment.harness import TaskJob, task_result
from raysearch.assessment.perplexity import measure_perplexities, read_texts
from raysearch.assessment.results import Assessments, Result
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.speed import SpeedJob, alike, machine, speed_results
from raysearch.assessment.task_files import TaskSource, check_names, find_tasks
from raysearch.errors import UserError
from raysearch.evaluation.assessments import assessment_fingerprint, read_assessments, write_assessment
from raysearch.evaluation.cluster import ClusterOptions, open_pool
from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.unit import Pool
from raysearch.mask import Mask
from raysearch.models.loading import ModelInfo, ModelSpec, describe, resolve_device, tokenizer_fingerprint
from raysearch.wording import count

Found = dict[Mask, dict[str, Any]]


def assess_masks(
    spec: AssessSpec,
    model: ModelSpec,
    cluster: ClusterOptions,
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
        spec: What to assess.
        model: The dense model.
        cluster: Who computes it, unless there is a `make_pool`; its `cpus_per_replica` names results in any case.
        ledger: Open, and left open.
        masks: Which masks; the dense model is added where it is missing.
        make_pool: Gives replicas of `model`, with whatever calibrations, when they are first needed; they are not
            closed. None to load some as `cluster` says, and to free them at the end.
        on_progress: Told in a line how far it is.

    Returns:
        Every number of every mask: `Assessments.values` is ``{mask: {metric: Estimate}}``, `Assessments.metrics` says
        what they are, and `Assessments.by_mask` has the details.

    Raises:
        UserError: A mask, a text, a task or an option does not fit the model or is not there. Found before the model
            is loaded, but for what only a data hub or lm-eval can tell.
        EvaluationError: Something failed for good.
    """
    info = describe(model)
    masks = list(dict.fromkeys([Mask(), *masks]))
    _check(spec, model, info, masks)
    cluster.check(resolve_device(model) != "cpu")
    sources = find_tasks(spec, ledger.path.parent)
    texts = read_texts(spec, model, cluster, ledger, info)
    identity = {
        "tokenizer": tokenizer_fingerprint(texts.tokenizer),
        "dtype": info.dtype,
        "attention": model.attention,
        "device": resolve_device(model).partition(":")[0],
        "threads": cluster.cpus_per_replica,
    }
    work = _Work(spec, model, info, ledger, texts.model_fingerprint, identity, masks, on_progress)
    missing = work.missing_jobs(sources)
    check_names([source for source in sources if any(job.task == source.name for job in missing)])
    n_units = len(missing) + sum(text.n_shards for text in texts.calibrations)
    with _pool(make_pool, cluster, model, n_units) as replicas:
        perplexities, computed = measure_perplexities(
            list(spec.texts), texts.calibrations, masks, info.n_layers, ledger, replicas, on_progress
        )
        computed += work.run_tasks(sources, missing, replicas)
        speeds, measured = work.speeds(replicas)
    accuracies = work.task_results(sources)
    by_mask = {mask: {**perplexities[mask], **accuracies[mask], **speeds[mask]} for mask in masks}
    return Assessments(by_mask, computed + measured)


class _Work:
    """What is asked of one model, and what is known of it."""

    def __init__(
        self,
        spec: AssessSpec,
        model: ModelSpec,
        info: ModelInfo,
        ledger: Ledger,
        fingerprint: str,
        identity: Mapping[str, Any],
        masks: Sequence[Mask],
        on_progress: Callable[[str], None],
    ) -> None:
        self._spec, self._model, self._info, self._ledger = spec, model, info, ledger
        self._fingerprint, self._identity, self._masks, self._say = fingerprint, identity, masks, on_progress

    def missing_jobs(self, sources: Sequence[TaskSource]) -> list[TaskJob]:
        """Tasks on masks that the ledger lacks; masks of a task follow each other."""
        spec = self._spec
        return [
            TaskJob(
                mask, one.name, None if one.folder is None else str(one.folder), spec.limit, spec.shots, spec.batch_size
            )
            for one in sources
            for mask in self._masks
            if mask not in self._known(self._name(one))
        ]

    def run_tasks(self, sources: Sequence[TaskSource], jobs: Sequence[TaskJob], replicas: Callable[[], Pool]) -> int:
        """Runs tasks, each durable as soon as it is done; returns how many."""
        if not jobs:
            return 0
        names = {source.name: self._name(source) for source in sources}
        self._say(f"lm-eval: 0 of {count(len(jobs), 'job')}")
        for done, (job, found) in enumerate(replicas().perform(jobs), start=1):
            assert isinstance(job, TaskJob), "one of these jobs"
            write_assessment(self._ledger, self._fingerprint, names[job.task], {job.mask: found})
            self._say(f"lm-eval: {done} of {count(len(jobs), 'job')}, the last {job}")
        return len(jobs)

    def task_results(self, sources: Sequence[TaskSource]) -> dict[Mask, dict[str, Result]]:
        """Every task's result on every mask, all of them known."""
        results: dict[Mask, dict[str, Result]] = {mask: {} for mask in self._masks}
        for source in sources:
            known = self._known(self._name(source))
            for mask in self._masks:
                results[mask][source.name] = task_result(source.name, known[mask], known[Mask()])
        return results

    def speeds(self, replicas: Callable[[], Pool]) -> tuple[dict[Mask, dict[str, Result]], int]:
        """Speed and memory, of the masks that stand for these; and how many of those were measured now."""
        options = self._spec.speed
        if not options.enabled:
            return {mask: {} for mask in self._masks}, 0
        where = machine(torch.device(resolve_device(self._model)))
        name = self._named({"speed": vars(options), "machine": where})
        stand_ins = {mask: alike(mask, self._info) for mask in self._masks}
        asked = list(dict.fromkeys(stand_ins.values()))
        known = read_assessments(self._ledger, self._fingerprint, name, asked)
        measured = 0
        if set(asked) - set(known):  # then all of them, for speeds of one run alone compare
            self._say(f"speed: {count(len(asked), 'model')} in turn")
            ((_, known),) = replicas().perform([SpeedJob(tuple(asked), options)])
            write_assessment(self._ledger, self._fingerprint, name, known)
            measured = len(asked)
        return {mask: speed_results(known[stand_ins[mask]]) for mask in self._masks}, measured

    def _known(self, name: str) -> Found:
        return read_assessments(self._ledger, self._fingerprint, name, self._masks)

    def _name(self, source: TaskSource) -> str:
        spec = self._spec
        return self._named({**source.identity, "limit": spec.limit, "shots": spec.shots, "batch_size": spec.batch_size})

    def _named(self, identity: Mapping[str, Any]) -> str:
        return assessment_fingerprint({**self._identity, **identity})


@contextmanager
def _pool(
    make_pool: Callable[[], Pool] | None, cluster: ClusterOptions, model: ModelSpec, n_units: int
) -> Iterator[Callable[[], Pool]]:
    """Replicas when they are first needed: those that were offered, which stay, or our own, which go."""
    if make_pool is not None:
        yield functools.cache(make_pool)  # one pool for every stage
        return
    opened: list[Pool] = []

    def replicas() -> Pool:
        if not opened:
            options = cluster
            if cluster.backend == "ray":  # as many as these units keep busy, though none is told of a calibration
                options = replace(cluster, replicas=cluster.n_replicas(resolve_device(model) != "cpu", n_units))
            opened.append(open_pool(options, model, ()))
        return opened[0]

    try:
        yield replicas
    finally:
        for pool in opened:
            pool.close()


def _check(spec: AssessSpec, model: ModelSpec, info: ModelInfo, masks: Sequence[Mask]) -> None:
    """Refuses masks and lengths that the model does not have."""
    for mask in masks:
        if any(layer >= info.n_layers for layer in mask) or len(mask) >= info.n_layers:
            raise UserError(
                f"mask={mask} does not fit {model.name}, which has layers 0 … {info.n_layers - 1}; name only those, "
                "and keep at least one"
            )
    speed, most = spec.speed, info.max_positions
    if speed.enabled and most is not None and speed.context_tokens + speed.new_tokens > most:
        raise UserError(
            f"assess.speed.context_tokens={speed.context_tokens} with assess.speed.new_tokens={speed.new_tokens} is "
            f"longer than the {most} positions of {model.name}; use less, or assess.speed.enabled=false"
        )
