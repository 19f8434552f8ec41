"""Assesses masks of one model beside the dense model, each number once in the life of a ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysearch.assessment.context import AssessContext, AssessmentPlan
from raysearch.assessment.generation import assess_generation, task_specs
from raysearch.assessment.harness import missing_tasks, run_tasks
from raysearch.assessment.own_data import OWN, OwnText, is_installed, own_text
from raysearch.assessment.perplexity import measure_perplexities, text_specs
from raysearch.assessment.probe import ask_probe, probe_problems
from raysearch.assessment.recorded import record_assessments
from raysearch.assessment.results import Assessments, SearchAssessment
from raysearch.assessment.spec import AssessSpec, SpeedOptions
from raysearch.assessment.speed import DECODE, MEMORY, measure_speeds
from raysearch.assessment.task_files import check_names, find_tasks
from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.errors import UserError, within
from raysearch.evaluation.pool import Pool, PoolFactory, opening
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.evaluation.session import EvaluationSession
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.generation.server import Server
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.searching.observer import Observer, warn_of_unknown
from raysearch.searching.recommend import SpeedMeter
from raysearch.searching.recommendation import Speed
from raysearch.searching.record import SearchRecord
from raysearch.searching.spec import SearchSpec


def plan_assessment(
    spec: AssessSpec,
    model: ModelSpec,
    cluster: PoolFactory,
    ledger: Path,
    files: ModelFiles | None = None,
    searched: EvaluationSpec | None = None,
) -> AssessmentPlan:
    """Read the texts and find the tasks that a model is to be assessed by; load no weights.

    Args:
        spec: The texts, the tasks and the options.
        model: The dense model.
        cluster: Who is to compute it.
        ledger: The file beside which ready task files go.
        files: What has been read of the model's files, if they were.
        searched: The calibrations of the search, or of all searches of this model, for `spec.own_data`; None for none.

    Raises:
        UserError: A text, a task or an option does not fit the model, or is not there.
    """
    info = describe(model)
    speed, most = spec.speed, info.max_positions
    if speed.enabled and most is not None and speed.context_tokens + speed.new_tokens > most:
        raise UserError(
            f"{speed.section}.context_tokens={speed.context_tokens} with {speed.section}.new_tokens={speed.new_tokens} "
            f"is longer than the {most} positions of {model.name}; use less, or {speed.section}.enabled=false"
        )
    cluster.check_model(info.model)
    sources = find_tasks(spec, ledger.parent)
    files = files or ModelFiles(info.model)
    own = own_text(spec, searched, info, files) if spec.own_data and searched is not None else OwnText()
    if own.data is not None:
        spec = replace(spec, texts={name: text for name, text in spec.texts.items() if not is_installed(text)})
    evaluation = EvaluationSpec(model, text_specs(spec, model.name, info.max_positions), cluster, ledger)
    texts = _calibrations(evaluation, info, files)
    if own.data is not None and own.samples is not None:
        spec, texts = replace(spec, texts={OWN: own.data, **spec.texts}), [own.samples, *texts]
    tasks = _calibrations(replace(evaluation, calibrations=task_specs(spec)), info, files)
    if spec.chat and not getattr(files.tokenizer, "chat_template", None):
        raise UserError("assess.chat=true needs a model with a chat template, and this one has none; leave it out")
    problems = probe_problems(spec.probe, files.tokenizer) if spec.probe.enabled else ()
    return AssessmentPlan(spec, cluster, info, files, texts, tasks, sources, problems, own.notes(spec))


def _calibrations(evaluation: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> list[Calibration]:
    """Draw and tokenise the samples of each text or task, whose key its messages name."""

    def calibration(spec: CalibrationSpec) -> Calibration:
        return prepare_data(replace(evaluation, calibrations=[spec]), info, files).calibrations[0]

    try:
        return [within(spec.name, functools.partial(calibration, spec)) for spec in evaluation.calibrations]
    except UserError as error:
        said = [one.replace("objective.", "assess.answers.") for one in error.sentences]
        remedy = "; or a folder of local files with assess.data_dir=…"
        raise UserError(*(one + remedy if ": data.name=" in one else one for one in said)) from error


def check_tasks(plan: AssessmentPlan, ledger: Ledger | None) -> None:
    """Refuse names of tasks that lm-eval does not have, unless there is a ledger that has the dense model's result."""
    check_names([one for one in plan.sources if ledger is None or not plan.known(ledger, plan.name_of(one), [Mask()])])


def assess_masks(
    plan: AssessmentPlan,
    ledger: Ledger,
    masks: Sequence[Mask],
    *,
    make_pool: Callable[[], Pool] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Assessments:
    """Assess masks beside the dense model: perplexities, answers, lm-eval's tasks, then speed on an idle pool.

    Everything is in the ledger as soon as it is known, so the same call goes on where it was stopped, and loads no
    model if the ledger knows all of it.

    Args:
        plan: The model, and what it is to be assessed by.
        ledger: Open, and left open.
        masks: Which masks; the dense model is added where it is missing.
        make_pool: Gives a pool of the model's replicas when it is first needed; it is not closed. None to open one by
            `plan.cluster`, and to close it at the end.
        on_progress: Told in a line how far it is.

    Raises:
        UserError: A task or its data cannot be loaded.
        EvaluationError: Something failed for good.
    """
    spec, masks = plan.spec, list(dict.fromkeys([Mask(), *masks]))
    jobs = missing_tasks(plan, ledger, masks)
    n_units = len(jobs) + len(masks) * (sum(one.n_shards for one in plan.calibrations) + bool(plan.problems))
    server = None if spec.server is None else Server.at(spec.server, spec.server_model)  # it may not answer
    # A pool that is offered is one for every stage, and stays open.
    pool = nullcontext(functools.cache(make_pool)) if make_pool else opening(plan.cluster, plan.info, n_units)
    with pool as replicas:
        context = AssessContext(plan, masks, ledger, replicas, on_progress)
        measured = [
            measure_perplexities(context),
            assess_generation(context, server),
            ask_probe(context),
            run_tasks(context, jobs),
            measure_speeds(context),
        ]
    by_mask = {mask: {name: one for of, _ in measured for name, one in of[mask].items()} for mask in masks}
    return Assessments(by_mask, sum(computed for _, computed in measured))


def assess_search(
    record: SearchRecord, ledger: Ledger, search: SearchSpec, spec: AssessSpec, remove: int | None, observer: Observer
) -> SearchAssessment:
    """Assess a search's mask, or its best of so many layers, beside the dense model, and record both.

    `search` is what it was made of, built from `record.config`, with the cluster that is to compute this.

    Raises:
        UserError: The search has no such mask, its model has changed since, or something named is not there.
        EvaluationError: Something failed for good.
    """
    mask = record.best_of_size(remove).mask
    evaluation = search.evaluation
    plan = plan_assessment(spec, evaluation.model, evaluation.cluster, evaluation.ledger, searched=evaluation)
    record.check_weights(plan.fingerprint)
    check_tasks(plan, ledger)
    for note in plan.notes:
        observer.warn(note)
    warn_of_unknown(plan.calibrations, observer)
    assessments = assess_masks(plan, ledger, [mask], on_progress=observer.assessing)
    if mask == record.found.mask:
        record_assessments(ledger, [record], assessments, observer)
    files = {source.name: source.folder for source in plan.sources if source.folder is not None}
    of_texts = {name: one.detail["data"] for name, one in assessments.by_mask[mask].items() if "data" in one.detail}
    overlaps = tuple(name for name, text in of_texts.items() if any(_overlap(text, one) for one in record.found.data))
    return SearchAssessment(record.search_id, evaluation.model.label, mask, assessments, files, overlaps)


def speed_meter(options: SpeedOptions, evaluation: EvaluationSpec, observer: Observer) -> SpeedMeter:
    """Return what measures the speeds of a search's masks by its own replicas, each once in the life of a ledger."""
    if not options.enabled:
        return lambda session, masks: {}
    plan = plan_assessment(AssessSpec(speed=options), evaluation.model, evaluation.cluster, evaluation.ledger)

    def measure(session: EvaluationSession, masks: Sequence[Mask]) -> dict[Mask, Speed]:
        context = AssessContext(plan, masks, session.ledger, lambda: session.evaluator.pool, observer.assessing)
        found, _ = measure_speeds(context)
        speeds = {}
        for mask, results in found.items():
            decoding, memory = results[DECODE.name].retention, results[MEMORY.name].retention
            assert decoding is not None and memory is not None, "speed_results gives both"
            peak = results[MEMORY.name].estimate.value
            speeds[mask] = Speed(decoding.value, decoding.error, memory.value - 1, peak)
        return speeds

    return measure


def _overlap(text: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions of samples are of the same rows, and of parts that may overlap."""
    if text.get("unused"):
        return False
    same_rows = all(text.get(key) == other.get(key) for key in ("source", "path", "name", "config", "split"))
    return same_rows and {text.get("part"), other.get("part")} != {"held_out", "rest"}
