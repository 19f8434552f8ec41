"""Assesses masks of one model beside the dense model, each number once in the life of a ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raysearch.assessment.context import AssessContext
from raysearch.assessment.generation import assess_generation, task_specs
from raysearch.assessment.harness import TaskJob, task_result
from raysearch.assessment.perplexity import measure_perplexities, text_specs
from raysearch.assessment.probe import ProbeJob, probe_problems, probe_results
from raysearch.assessment.recorded import record_assessments
from raysearch.assessment.results import Assessments, Result, SearchAssessment
from raysearch.assessment.spec import AssessSpec, SpeedOptions
from raysearch.assessment.speed import DECODE, MEMORY, SpeedJob, alike, machine, speed_results
from raysearch.assessment.task_files import TaskSource, check_names, find_tasks
from raysearch.calibration.calibration import Calibration
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool, PoolFactory, opening
from raysearch.evaluation.session import EvaluationSession, PreparedData, prepare_data
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.generation.arithmetic import Problem
from raysearch.generation.server import Server
from raysearch.ledger.assessments import assessment_fingerprint, read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.search.observer import Observer, warn_of_unknown
from raysearch.search.recommend import SpeedMeter
from raysearch.search.recommendation import Speed
from raysearch.search.record import SearchRecord
from raysearch.search.spec import SearchSpec


@dataclass(frozen=True)
class Assessable:
    """A model and what it is to be assessed by, read, and checked against each other.

    Args:
        model: The dense model.
        cluster: Who computes it, unless somebody else's replicas do; its `cpus_per_replica` names results in any case.
        sources: The tasks of lm-eval.
        texts: The texts, and what has been read of the model's files.
        generation: The tasks to generate answers to.
        problems: Of the arithmetic probe; none if it is not asked.
    """

    spec: AssessSpec
    model: ModelSpec
    cluster: PoolFactory
    info: ModelInfo
    sources: Sequence[TaskSource]
    texts: PreparedData
    generation: PreparedData
    problems: tuple[Problem, ...] = ()

    @property
    def calibrations(self) -> Sequence[Calibration]:
        """All texts and prompts."""
        return [*self.texts.calibrations, *self.generation.calibrations]

    def named(self, identity: Mapping[str, Any]) -> str:
        """Return the ledger's name of a number of this model; `identity` is all that it depends on besides."""
        own = {
            "tokenizer": self.texts.files.tokenizer_fingerprint,
            "writing": self.texts.files.writing_fingerprint,  # some tasks write, or use the chat template
            **self.info.numerics,
            "threads": self.cluster.cpus_per_replica,
        }
        return assessment_fingerprint({**own, **identity})

    def known(self, ledger: Ledger, source: TaskSource, masks: Sequence[Mask]) -> dict[Mask, dict[str, Any]]:
        """Return a task's results on those of the masks that the ledger has it of."""
        return read_assessments(ledger, self.texts.files.fingerprint, self.name_of(source), masks)

    def name_of(self, source: TaskSource) -> str:
        """Return the ledger's name of a task's results."""
        spec = self.spec
        options = {"limit": spec.task_limit, "shots": spec.shots, "batch_size": spec.batch_size}
        chat = {"chat": True} if spec.chat else {}  # else as it was named before there was a choice
        return self.named({**source.identity, **options, **chat})


def read_assessable(
    spec: AssessSpec, model: ModelSpec, cluster: PoolFactory, ledger: Path, known: PreparedData | None = None
) -> Assessable:
    """Read the texts and find the tasks that a model is to be assessed by; load no weights.

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
    speed, most = spec.speed, info.max_positions
    if speed.enabled and most is not None and speed.context_tokens + speed.new_tokens > most:
        raise UserError(
            f"assess.speed.context_tokens={speed.context_tokens} with assess.speed.new_tokens={speed.new_tokens} is "
            f"longer than the {most} positions of {model.name}; use less, or assess.speed.enabled=false"
        )
    cluster.check_model(info.model)
    sources = find_tasks(spec, ledger.parent)
    evaluation = EvaluationSpec(model, text_specs(spec, model.name, info.max_positions), cluster, ledger)
    texts = _prepare("texts", evaluation, info, known)
    generation = _prepare("generation", replace(evaluation, calibrations=task_specs(spec)), info, texts)
    if spec.chat and not getattr(texts.files.tokenizer, "chat_template", None):
        raise UserError("assess.chat=true needs a model with a chat template, which this one has not; leave it out")
    problems = probe_problems(spec.probe, texts.files.tokenizer) if spec.probe.enabled else ()
    return Assessable(spec, model, cluster, info, sources, texts, generation, problems)


def _prepare(key: str, evaluation: EvaluationSpec, info: ModelInfo, known: PreparedData | None) -> PreparedData:
    """Draw and tokenise the samples of a key of the assessment, which its messages name."""
    try:
        return prepare_data(evaluation, info, known)
    except UserError as error:
        if not str(error).startswith(("data.", "objective.")):
            raise
        said = str(error).replace("objective.", "assess.answers.")
        raise UserError(f"assess.{key}: {said}; or a folder of local files with assess.data_dir=…") from error


def check_tasks(what: Assessable, ledger: Ledger | None) -> None:
    """Refuse names of tasks that lm-eval does not have, unless there is a ledger that has the dense model's result.

    Raises:
        UserError: A task is unknown, or stands for several.
    """
    check_names([one for one in what.sources if ledger is None or not what.known(ledger, one, [Mask()])])


def assess_masks(
    what: Assessable,
    ledger: Ledger,
    masks: Sequence[Mask],
    *,
    make_pool: Callable[[], Pool] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Assessments:
    """Assess masks beside the dense model: perplexities, answers, lm-eval's tasks, then speed on an idle pool.

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
        UserError: A task or its data cannot be loaded.
        EvaluationError: Something failed for good.
    """
    spec, masks = what.spec, list(dict.fromkeys([Mask(), *masks]))
    texts = dict(zip(spec.texts, what.texts.calibrations, strict=True))
    tasks = dict(zip(spec.generation, what.generation.calibrations, strict=True))
    jobs = _missing_jobs(what, ledger, masks)
    n_units = len(jobs) + sum(one.n_shards for one in what.calibrations) + (len(masks) if what.problems else 0)
    server = None if spec.server is None else Server.at(spec.server, spec.server_model)  # it may not answer
    # A pool that is offered is one for every stage, and stays open.
    pool = nullcontext(functools.cache(make_pool)) if make_pool else opening(what.cluster, what.info, n_units)
    with pool as replicas:
        context = AssessContext(masks, what.info.n_layers, ledger, replicas, on_progress)
        perplexities, n_perplexities = measure_perplexities(texts, context)
        answers, n_answers = assess_generation(tasks, context, server, what.texts.files.tokenizer)
        probes, n_probes = _probe(what, context)
        _run_tasks(what, jobs, context)
        speeds, n_speeds = _measure_speeds(what, context)
    by_mask = {mask: {**perplexities[mask], **answers[mask], **probes[mask]} for mask in masks}
    for source in what.sources:
        known = what.known(ledger, source, masks)
        for mask in masks:
            by_mask[mask][source.name] = task_result(source.name, known[mask], known[Mask()])
    computed = n_perplexities + n_answers + n_probes + len(jobs) + n_speeds
    return Assessments({mask: by_mask[mask] | speeds[mask] for mask in masks}, computed)


def assess_search(
    record: SearchRecord, ledger: Ledger, search: SearchSpec, spec: AssessSpec, remove: int | None, observer: Observer
) -> SearchAssessment:
    """Assess a search's mask, or its best of so many layers, beside the dense model, and record both.

    `search` is what it was made of, built from `record.config`, with the cluster that is to compute this.

    Raises:
        UserError: The search has not finished, has no such mask, its model has changed since, or something named is
            not there.
        EvaluationError: Something failed for good.
    """
    mask = record.best_of_size(remove).mask
    evaluation = search.evaluation
    what = read_assessable(spec, evaluation.model, evaluation.cluster, evaluation.ledger)
    record.check_weights(what.texts.files.fingerprint)
    check_tasks(what, ledger)
    warn_of_unknown(what.calibrations, observer)
    assessments = assess_masks(what, ledger, [mask], on_progress=observer.assessing)
    if mask == record.found.mask:
        record_assessments(ledger, [record], assessments, observer)
    files = {source.name: source.folder for source in what.sources if source.folder is not None}
    of_texts = {name: one.detail["data"] for name, one in assessments.by_mask[mask].items() if "data" in one.detail}
    overlaps = tuple(name for name, text in of_texts.items() if any(_overlap(text, one) for one in record.found.data))
    return SearchAssessment(record.search_id, evaluation.model.name, mask, assessments, files, overlaps)


def speed_meter(options: SpeedOptions, evaluation: EvaluationSpec, observer: Observer) -> SpeedMeter:
    """Return what measures the speeds of a search's masks by the search's own replicas, each once in a ledger's life.

    Raises:
        UserError: The options do not fit the model.
    """
    if not options.enabled:
        return lambda session, masks: {}
    spec = AssessSpec(speed=options)
    try:
        what = read_assessable(spec, evaluation.model, evaluation.cluster, evaluation.ledger)
    except UserError as error:
        raise UserError(*(one.replace("assess.speed.", "speed.") for one in error.sentences)) from error

    def measure(session: EvaluationSession, masks: Sequence[Mask]) -> dict[Mask, Speed]:
        context = AssessContext(
            masks, what.info.n_layers, session.ledger, lambda: session.evaluator.pool, observer.assessing
        )
        found, _ = _measure_speeds(what, context)
        speeds = {}
        for mask, results in found.items():
            decoding, memory = results[DECODE.name].retention, results[MEMORY.name].retention
            assert decoding is not None and memory is not None, "speed_results gives both"
            peak = results[MEMORY.name].estimate.value
            speeds[mask] = Speed(decoding.value, decoding.error, memory.value - 1, peak)
        return speeds

    return measure


def _missing_jobs(what: Assessable, ledger: Ledger, masks: Sequence[Mask]) -> list[TaskJob]:
    """Return the tasks on masks that the ledger lacks; masks of a task follow each other."""
    spec, jobs = what.spec, list[TaskJob]()
    options = (spec.task_limit, spec.shots, spec.batch_size, spec.answers.run_code, spec.chat)
    for source in what.sources:
        known, folder = what.known(ledger, source, masks), None if source.folder is None else str(source.folder)
        jobs += [TaskJob(mask, source.name, folder, *options) for mask in masks if mask not in known]
    return jobs


def _run_tasks(what: Assessable, jobs: Sequence[TaskJob], context: AssessContext) -> None:
    """Run tasks, each durable as soon as it is done."""
    if jobs:
        context.on_progress(f"lm-eval: 0 of {count(len(jobs), 'job')}")
    names = {source.name: what.name_of(source) for source in what.sources}
    for done, (job, found) in context.run(jobs):
        write_assessment(context.ledger, what.texts.files.fingerprint, names[job.task], {job.mask: found})
        context.on_progress(f"lm-eval: {done} of {count(len(jobs), 'job')}, the last {job}")


def _probe(what: Assessable, context: AssessContext) -> tuple[dict[Mask, dict[str, Result]], int]:
    """Return what the masks know of arithmetic; and how many of them were asked now."""
    problems, model, masks = what.problems, what.texts.files.fingerprint, context.masks
    if not problems:
        return {mask: {} for mask in masks}, 0
    name = what.named({"probe": [problem.prompt for problem in problems], "batch_size": what.spec.batch_size})
    known = read_assessments(context.ledger, model, name, masks)
    jobs = [ProbeJob(mask, problems, what.spec.batch_size) for mask in masks if mask not in known]
    for done, (job, found) in context.run(jobs):
        write_assessment(context.ledger, model, name, {job.mask: found})
        known[job.mask] = found
        context.on_progress(f"arithmetic probe: {done} of {count(len(jobs), 'mask')}")
    return {mask: probe_results(known[mask], known[Mask()]) for mask in masks}, len(jobs)


def _measure_speeds(what: Assessable, context: AssessContext) -> tuple[dict[Mask, dict[str, Result]], int]:
    """Return the speed and memory of the masks that stand for these; and how many of those were measured now."""
    options, model, masks = what.spec.speed, what.texts.files.fingerprint, context.masks
    if not options.enabled:
        return {mask: {} for mask in masks}, 0
    where = machine(torch.device(what.info.model.device))
    name = what.named({"speed": vars(options), "machine": where})
    stand_ins = {mask: alike(mask, what.info) for mask in masks}
    asked = list(dict.fromkeys(stand_ins.values()))
    known = read_assessments(context.ledger, model, name, asked)
    measured = 0
    if set(asked) - set(known):  # then all of them, for speeds of one run alone compare
        context.on_progress(f"speed: {count(len(asked), 'model')} in turn")
        ((_, (_, known)),) = context.run([SpeedJob(tuple(asked), options)])
        write_assessment(context.ledger, model, name, known)
        measured = len(asked)
    return {mask: speed_results(known[stand_ins[mask]]) for mask in masks}, measured


def _overlap(text: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions of samples are of the same rows, and of parts that may overlap."""
    same_rows = all(text.get(key) == other.get(key) for key in ("source", "path", "name", "config", "split"))
    return same_rows and {text.get("part"), other.get("part")} != {"held_out", "rest"}
