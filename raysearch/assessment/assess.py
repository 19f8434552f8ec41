"""Assesses masks of one model and the dense model, and computes each number only once in the life of a ledger."""

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
from raysearch.assessment.results import Assessments, Result, SearchAssessment
from raysearch.assessment.serving.measure import measure_serving, serve_speeds
from raysearch.assessment.serving.serving import Serving
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.speed import measure_speeds, speed_summaries
from raysearch.assessment.task_files import check_names, find_tasks
from raysearch.assessment.tracked_assessments import record_assessments
from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.space import Space
from raysearch.errors import UserError, within
from raysearch.evaluation.pool import Pool, PoolFactory, opening
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.evaluation.session import EvaluationSession
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.generation.server import Server
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.searching.notices import warn_of_unknown_tokens
from raysearch.searching.observer import Observer
from raysearch.searching.recommend import SpeedMeter, unmeasured
from raysearch.searching.recommendation import Speed
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.serve_options import Serve, ServeOptions
from raysearch.searching.spec import SearchSpec
from raysearch.searching.speed_options import SpeedOptions
from raysearch.searching.speeds import masks_of_kinds, speed_of
from raysearch.searching.target import limits_of

#: How to measure masks that are repaired before they are evaluated.
UNREPAIRED_REMEDY = (
    "write its checkpoint with raysearch export SEARCH --out pruned, and measure that: raysearch score model=pruned "
    "masks=[[]]"
)
_NO_SPEED = SpeedOptions(enabled=False)


def plan_assessment(
    spec: AssessSpec,
    model: ModelSpec,
    cluster: PoolFactory,
    ledger: Path,
    files: ModelFiles | None = None,
    searched: EvaluationSpec | None = None,
    serve: ServeOptions | None = None,
) -> AssessmentPlan:
    """Read the texts and find the tasks of an assessment of a model, without loading its weights.

    Args:
        spec: The texts, the tasks and the options.
        model: The dense model.
        cluster: The replicas that are to compute the assessment.
        ledger: The file of the ledger; ready task files are written to its folder.
        files: The model's files, if they were read before.
        searched: The calibrations of the search, or of all searches of this model, for `spec.own_data`; None for none.
        serve: How speed is measured in the runtime `spec.serve`; None if it cannot be measured here.

    Returns:
        The plan, whose parts fit each other and the model.

    Raises:
        UserError: A text, a task or an option does not fit the model, or does not exist.
    """
    info = describe(model)
    _check_speed(spec.speed, model, info)
    serving = _serving(spec, serve, info)
    cluster.check_model(info.model)
    sources = find_tasks(spec, ledger.parent)
    files = files or ModelFiles(info.model)
    unused = own_text(spec, searched, info, files) if spec.own_data and searched is not None else OwnText()
    if unused.data is not None:  # it takes the place of the installed text
        spec = replace(spec, texts={name: text for name, text in spec.texts.items() if not is_installed(text)})
    evaluation = EvaluationSpec(model, text_specs(spec, model.name, info.max_positions), cluster, ledger)
    texts = _calibrations(evaluation, info, files)
    if unused.data is not None and unused.samples is not None:
        spec = replace(spec, texts={OWN: unused.data, **spec.texts})
        texts = [unused.samples, *texts]
    tasks = _calibrations(replace(evaluation, calibrations=task_specs(spec)), info, files)
    if spec.chat and not getattr(files.tokenizer, "chat_template", None):
        raise UserError("assess.chat=true needs a model with a chat template, and this one has none; leave it out")
    problems = probe_problems(spec.probe, files.tokenizer) if spec.probe.enabled else ()
    return AssessmentPlan(spec, cluster, info, files, texts, tasks, sources, problems, unused.notes(spec), serving)


def _check_speed(options: SpeedOptions, model: ModelSpec, info: ModelInfo) -> None:
    """Raise a `UserError` if the tokens of a speed measurement are more than the model's positions."""
    most = info.max_positions
    if options.enabled and most is not None and options.context_tokens + options.new_tokens > most:
        section = options.section
        raise UserError(
            f"{section}.context_tokens={options.context_tokens} with {section}.new_tokens={options.new_tokens} "
            f"is longer than the {most} positions of {model.name}; use less, or {section}.enabled=false"
        )


def _serving(spec: AssessSpec, options: ServeOptions | None, info: ModelInfo) -> Serving | None:
    """Return the runtime that is to be measured, which is there; None for none."""
    if spec.serve is None:
        return None
    if options is None:
        raise UserError(
            f"assess.serve={spec.serve} measures the mask of one search; leave it out here, and run raysearch assess "
            "SEARCH"
        )
    serving = Serving(spec.serve, options)
    serving.check(info)
    return serving


def _calibrations(evaluation: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> list[Calibration]:
    """Draw and tokenise the samples of each text or task; errors name its key."""

    def calibration(spec: CalibrationSpec) -> Calibration:
        return prepare_data(replace(evaluation, calibrations=[spec]), info, files).calibrations[0]

    try:
        return [within(spec.name, functools.partial(calibration, spec)) for spec in evaluation.calibrations]
    except UserError as error:
        sentences = [sentence.replace("objective.", "assess.answers.") for sentence in error.sentences]
        remedy = "; or a folder of local files with assess.data_dir=…"
        sentences = [sentence + remedy if ": data.name=" in sentence else sentence for sentence in sentences]
        raise UserError(*sentences) from error


def check_tasks(plan: AssessmentPlan, ledger: Ledger | None) -> None:
    """Check the names of lm-eval's tasks, except those whose result for the dense model is in the ledger.

    Args:
        plan: The plan with the tasks.
        ledger: The ledger; None to check all names.

    Raises:
        UserError: lm-eval does not have a task, or the name stands for several tasks.
    """
    sources = plan.sources
    if ledger is not None:
        sources = [source for source in sources if not plan.recorded(ledger, plan.name_of(source), [Mask()])]
    check_names(sources)


def assess_masks(
    plan: AssessmentPlan,
    ledger: Ledger,
    masks: Sequence[Mask],
    *,
    make_pool: Callable[[], Pool] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Assessments:
    """Assess masks and the dense model: perplexities, answers, lm-eval's tasks, then speed on an idle pool
    and in a runtime.

    Each result is in the ledger as soon as it is computed. So the same call resumes an interrupted assessment, and
    loads no model if the ledger has all results.

    Args:
        plan: The model, and the texts, tasks and options of the assessment.
        ledger: An open ledger; it is not closed.
        masks: The masks; the dense model is added if it is missing.
        make_pool: Returns a pool of the model's replicas when it is first needed; the pool is not closed. None to open
            a pool by `plan.cluster`, and to close it at the end.
        on_progress: Called with a line on the progress.

    Returns:
        The results of the masks and of the dense model.

    Raises:
        UserError: A task or its data cannot be loaded, or the server does not answer.
        EvaluationError: A job failed for good.
    """
    spec = plan.spec
    masks = list(dict.fromkeys([Mask(), *masks]))
    jobs = missing_tasks(plan, ledger, masks)
    n_units_per_mask = sum(calibration.n_shards for calibration in plan.calibrations)
    if plan.problems:
        n_units_per_mask += 1  # the arithmetic probe
    n_units = len(jobs) + len(masks) * n_units_per_mask
    server = None if spec.server is None else Server.at(spec.server, spec.server_model)  # raises if it does not answer
    # A pool from the caller serves all stages, and stays open.
    pool = nullcontext(functools.cache(make_pool)) if make_pool else opening(plan.cluster, plan.info, n_units)
    with pool as replicas:
        context = AssessContext(plan, masks, ledger, replicas, on_progress)
        measured = [
            measure_perplexities(context),
            assess_generation(context, server),
            ask_probe(context),
            run_tasks(context, jobs),
            measure_speeds(context),
            measure_serving(context),
        ]
    by_mask: dict[Mask, dict[str, Result]] = {mask: {} for mask in masks}
    for results, _ in measured:
        for mask in masks:
            by_mask[mask] |= results[mask]
    return Assessments(by_mask, sum(computed for _, computed in measured))


def assess_search(
    record: SearchRecord,
    ledger: Ledger,
    search: SearchSpec,
    spec: AssessSpec,
    serve: ServeOptions,
    remove: int | None,
    observer: Observer,
) -> SearchAssessment:
    """Assess the mask of a search and the dense model, and record the results.

    Args:
        record: The record of the search.
        ledger: An open ledger.
        search: The specification of the search, built from `record.config`, with the cluster that is to compute this.
        spec: The texts, the tasks and the options.
        serve: How speed is measured in the runtime `spec.serve`.
        remove: The number of layers of the mask, of which the best is assessed; None for the search's result.
        observer: Receives progress, warnings and results.

    Returns:
        The results of both models, the files of their answers, and the texts that calibration and assessment share.

    Raises:
        UserError: The search has no such mask, its model has changed since, or a text or task does not exist.
        EvaluationError: A job failed for good.
    """
    mask = record.best_of_size(remove).mask
    search.check_unrepaired("assess", UNREPAIRED_REMEDY)
    evaluation = search.evaluation
    plan = plan_assessment(
        spec, evaluation.model, evaluation.cluster, evaluation.ledger, searched=evaluation, serve=serve
    )
    record.check_weights(plan.fingerprint)
    check_tasks(plan, ledger)
    for note in plan.notes:
        observer.warn(note)
    warn_of_unknown_tokens(plan.calibrations, observer)
    assessments = assess_masks(plan, ledger, [mask], on_progress=observer.assessing)
    if mask == record.finished_result.mask:
        record_assessments(ledger, [record], assessments, observer)
    files = {source.name: source.folder for source in plan.sources if source.folder is not None}
    results = assessments.by_mask[mask]
    texts = {name: result.detail["data"] for name, result in results.items() if "data" in result.detail}
    overlaps = tuple(
        name for name, text in texts.items() if any(_overlap(text, data) for data in record.finished_result.data)
    )
    return SearchAssessment(record.search_id, evaluation.model.label, mask, assessments, files, overlaps)


def speed_meter(search: SearchSpec, observer: Observer) -> SpeedMeter:
    """Return the function that returns the speeds of a search's masks, measured on its own replicas or in a runtime.

    It measures the dense model and a mask for each kind of site of the search, such as layers, pairs or halves, only
    once in the life of a ledger. The speeds of all other masks add up.

    Args:
        search: The search. If its speeds are not enabled, the function returns no speeds.
        observer: Receives the progress.

    Returns:
        The function.

    Raises:
        UserError: The options do not fit the model, or the runtime cannot be measured or would misread masks.
    """
    options = search.speed
    evaluation = search.evaluation
    if not options.enabled:
        return unmeasured
    spec = AssessSpec(speed=options) if options.serve is None else AssessSpec(speed=_NO_SPEED, serve=options.serve)
    plan = plan_assessment(spec, evaluation.model, evaluation.cluster, evaluation.ledger, serve=search.serve)
    serving = plan.serving
    limits = limits_of(plan.info, search.target, space=search.space)
    if options.serve is not None and options.serve not in search.target:
        _check_target(options.serve, plan.info, search.space)

    def speeds(session: EvaluationSession, problem: Problem, masks: Sequence[Mask]) -> dict[Mask, Speed]:
        sites = problem.sites
        refused = [sites.n_layers - depth for depth in limits.refused_depths] if problem.space.keeps_blocks else []
        refused_sizes = [n_removed // problem.group for n_removed in refused if n_removed % problem.group == 0]
        masks_of_sites = masks_of_kinds(sites, problem.free, refused_sizes)
        measured_masks = [Mask(), *map(sites.mask_of, masks_of_sites)]
        context = AssessContext(plan, masks, session.ledger, lambda: session.evaluator.pool, observer.assessing)
        if serving is None:
            summaries, _ = speed_summaries(context, measured_masks)
        else:
            summaries, _ = serve_speeds(context, serving, measured_masks)
        speeds_by_mask = {mask: speed_of(mask, sites, summaries) for mask in masks}
        return {mask: speed for mask, speed in speeds_by_mask.items() if speed is not None}

    return speeds


def _check_target(name: Serve, info: ModelInfo, space: Space) -> None:
    """Refuse a runtime that would run some masks as another model, so that the numbers would be another model's."""
    limits = limits_of(info, [name], setting="speed.serve", space=space)
    if limits.reasons:
        raise UserError(
            f"speed.serve={name} would measure masks that it runs as another model ({'; '.join(limits.reasons)}); "
            f"add target={name}"
        )


def _overlap(text: Mapping[str, Any], searched: Mapping[str, Any]) -> bool:
    """Return whether two descriptions of samples refer to the same rows, and to parts that may overlap."""
    if text.get("unused"):
        return False
    same_rows = all(text.get(key) == searched.get(key) for key in ("source", "path", "name", "config", "split"))
    return same_rows and {text.get("part"), searched.get("part")} != {"held_out", "rest"}
