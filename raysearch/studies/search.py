"""One search, from its specification to its result: the loop between searcher and evaluator."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from raysearch.errors import UserError
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.judge import Judge, Reading, open_judge
from raysearch.evaluation.runs import State, held, note_mlflow, read_runs, write_run
from raysearch.evaluation.unit import Pool
from raysearch.mask import Mask
from raysearch.models.loading import ModelInfo, describe
from raysearch.problem import Problem
from raysearch.redaction import redact, redacted
from raysearch.searchers.base import Searcher, exhaust, run_rounds
from raysearch.studies.chronicle import Chronicle
from raysearch.studies.forecast import RoundCost, forecast
from raysearch.studies.observer import Observer
from raysearch.studies.sizes import for_sizes
from raysearch.studies.spec import SearchSpec
from raysearch.tracking.base import RoundSummary, SearchHeader, SearchResult, Tracker
from raysearch.tracking.told import as_record


@dataclass(frozen=True)
class Surroundings:
    """What a search needs not find for itself, being one of many in a study.

    Args:
        info: The model's shape.
        reading: The samples of the search's calibrations.
        labels: What the search is called in the study: ``{"searcher": "beam 5", "remove": "7", …}``.
        parent: The tracker's id of the study, if it has one.
        make_pool: Gives the replicas, which outlive the search.
    """

    info: ModelInfo
    reading: Reading
    labels: Mapping[str, str]
    parent: str | None
    make_pool: Callable[[], Pool] | None = None

    def with_pool(self, make_pool: Callable[[], Pool]) -> Surroundings:
        """The same, in a process that has the replicas at hand."""
        return replace(self, make_pool=make_pool)


def forecast_search(spec: SearchSpec) -> list[RoundCost] | None:
    """What a search would cost on an empty ledger; only the model's configuration is read. See `forecast`."""
    return _forecast(spec, describe(spec.judge.model))


def run_search(spec: SearchSpec, observer: Observer, resumes: str | None = None) -> SearchResult:
    """Runs a search to its end, or takes it up where it was stopped: `search_rounds`, and what that returns."""
    return exhaust(search_rounds(spec, observer, resumes))


def search_rounds(
    spec: SearchSpec, observer: Observer, resumes: str | None = None, surroundings: Surroundings | None = None
) -> Generator[RoundSummary, None, SearchResult]:
    """Runs a search round by round. Closed before its end, it is on record as stopped, with the best mask so far.

    Args:
        spec: The search.
        observer: Watches.
        resumes: The run id it must have, when an earlier search is taken up by name.
        surroundings: What a study has ready for it.

    Yields:
        Where it stands after each round.

    Returns:
        What was found.

    Raises:
        UserError: The specification does not fit the model, the text or the machine.
        EvaluationError: A unit of work failed for good.
        KeyboardInterrupt: The user stopped it; everything evaluated so far is in the ledger.
    """
    started = time.perf_counter()
    info = describe(spec.judge.model) if surroundings is None else surroundings.info
    problem = problem_of(spec, info)  # refuses numbers that do not fit before anything is written, as a searcher may
    expected = _forecast(spec, info) if surroundings is None else None
    judge = _open(spec, info, observer, surroundings)
    try:
        header = _header(spec, judge, surroundings)
        if resumes not in (None, header.run_id):
            raise _changed(resumes, judge)
        with held(judge.ledger, header.run_id, "RUN", wait=surroundings is not None):
            write_run(judge.ledger, header.run_id, spec.config, "running", fingerprints=judge.fingerprints)
            tracker = spec.tracking.open(observer.warn)
            chronicle = Chronicle(problem, judge.evaluator, tracker, observer, started, _part_names(spec))
            try:
                try:
                    tracker.start(header)
                    observer.started(header, expected, head_cost(info))
                    found = yield from chronicle.follow(run_rounds(_searcher(spec), problem, spec.seed, chronicle))
                except GeneratorExit:
                    _stop(spec, judge, chronicle, tracker, header)
                    raise
                except BaseException as error:
                    _fail(spec, judge, tracker, error)
                    raise
                # Before the tracker has its last word: a search that is stopped while it waits for that has finished.
                result = _result(spec, judge, chronicle, found)
                return _finish(spec, judge, tracker, "finished", header, result)
            finally:
                tracker.close()
    finally:
        judge.close()


def problem_of(spec: SearchSpec, info: ModelInfo) -> Problem:
    """The space of legal masks of a search.

    Raises:
        UserError: The search's numbers do not fit the model.
    """
    return Problem.create(info.n_layers, spec.remove, spec.protect, spec.judge.model.name)


def _forecast(spec: SearchSpec, info: ModelInfo) -> list[RoundCost] | None:
    return forecast(_searcher(spec), problem_of(spec, info), spec.seed, spec.judge.objectives)


def _searcher(spec: SearchSpec) -> Searcher:
    return for_sizes(spec.searcher, spec.sizes)


def _open(spec: SearchSpec, info: ModelInfo, observer: Observer, surroundings: Surroundings | None) -> Judge:
    if surroundings is None:
        return open_judge(spec.judge, info, observer.progress)
    return open_judge(spec.judge, info, observer.progress, surroundings.reading, surroundings.make_pool)


def _changed(run_id: str, judge: Judge) -> UserError:
    """Why a search cannot be taken up by its name."""
    before = read_runs(judge.ledger, [run_id])[run_id].fingerprints
    if before.get("model") != judge.fingerprints["model"]:
        what, remedy = "the files of its model have", "put back the old ones"
    elif before.get("text") != judge.fingerprints["text"]:
        what, remedy = "its text has", "put back the old one"
    else:
        what, remedy = "the tokenizer, the dtype or the kind of device has", "restore it"
    again = f"{remedy}, or start anew with raysearch search"
    return UserError(f"RUN={run_id} cannot be taken up: {what} changed since; {again}")


def _stop(spec: SearchSpec, judge: Judge, chronicle: Chronicle, tracker: Tracker, header: SearchHeader) -> None:
    """Puts on record what a search has found by the time that its budget is spent."""
    if chronicle.best is None:
        failure = f"its budget was spent before a mask of {chronicle.problem.n_remove} layers was scored"
        write_run(judge.ledger, spec.run_id(judge.fingerprint), spec.config, "stopped", failure=failure)
        tracker.finish(None, failure)
    else:
        result = replace(_result(spec, judge, chronicle, chronicle.best), complete=False)
        _finish(spec, judge, tracker, "stopped", header, result)


def _fail(spec: SearchSpec, judge: Judge, tracker: Tracker, error: BaseException) -> None:
    interrupted = isinstance(error, KeyboardInterrupt)
    failure = None if interrupted else redact(str(error)) or type(error).__name__
    state: State = "interrupted" if interrupted else "failed"
    with suppress(UserError):  # the ledger itself may be what failed, which is said already
        write_run(judge.ledger, spec.run_id(judge.fingerprint), spec.config, state, failure=failure)
    tracker.finish(None, failure)


def _finish(
    spec: SearchSpec, judge: Judge, tracker: Tracker, state: State, header: SearchHeader, result: SearchResult
) -> SearchResult:
    write_run(judge.ledger, result.run_id, spec.config, state, as_record(header, result))
    tracker.finish(result)
    result = replace(result, mlflow_run_id=tracker.close())
    note_mlflow(judge.ledger, result.run_id, result.mlflow_run_id)
    return result


def _result(spec: SearchSpec, judge: Judge, chronicle: Chronicle, found: Mask) -> SearchResult:
    meter = judge.evaluator.meter
    return SearchResult(
        run_id=spec.run_id(judge.fingerprint),
        model=spec.judge.model.name,
        n_layers=chronicle.problem.n_layers,
        removed=found.layers,
        removal_order=chronicle.removal_order(),
        measure=judge.measure,
        dense_loss=chronicle.dense_loss,
        loss=chronicle.losses[found],
        delta_error=judge.delta_error(found),
        asked=chronicle.asked,
        run=chronicle.run,
        answered=chronicle.asked - chronicle.run,
        layer_forwards_run=meter.layer_forwards,
        layer_forwards_alone=chronicle.layer_forwards_alone,
        layer_forwards_naive=chronicle.naive_layer_forwards,
        layer_tokens=meter.layer_tokens,
        layer_tokens_by_row=meter.layer_tokens_by_row,
        packed=meter.packed,
        seconds=chronicle.seconds,
        searcher_s=chronicle.searcher_s,
        busy_share=judge.evaluator.pool_report.busy_share,
        pool=judge.evaluator.pool_report.as_json(),
        n_tokens=judge.n_tokens,
        n_samples=judge.n_samples,
        parameters=judge.info.parameters,
        parameters_removed=sum(judge.info.layer_parameters[layer] for layer in found),
        data=_described(judge),
        fingerprints=judge.fingerprints,
        statistics=tuple(map(str, chronicle.statistics)),
        remarks=chronicle.remarks,
        trials=tuple(chronicle.trials),
        rounds=tuple(chronicle.summaries),
    )


def _described(judge: Judge) -> Sequence[Mapping[str, Any]]:
    """What the samples are, without the secrets of where they are from."""
    return [redacted(one.description) for one in judge.calibrations]


def _header(spec: SearchSpec, judge: Judge, surroundings: Surroundings | None) -> SearchHeader:
    packages = ("raysearch", "torch", "transformers", "ray", "mlflow")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return SearchHeader(
        run_id=spec.run_id(judge.fingerprint),
        model=spec.judge.model.name,
        choices=spec.config["choices"],
        config=spec.config,
        measure=judge.measure,
        data=_described(judge),
        fingerprints=judge.fingerprints,
        versions={**versions, "python": platform.python_version()},
        git_commit=_git_commit(),
        n_layers=judge.info.n_layers,
        n_remove=spec.sizes[-1],
        labels={} if surroundings is None else surroundings.labels,
        parent=None if surroundings is None else surroundings.parent,
    )


def _part_names(spec: SearchSpec) -> Sequence[str]:
    """What the calibrations are called where there are several; those of the same name are numbered."""
    names = [calibration.name for calibration in spec.judge.calibrations]
    if len(names) == 1:
        return []
    return [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]


def _git_commit() -> str | None:
    """The commit of the working folder, if it is a git checkout and git is installed."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
