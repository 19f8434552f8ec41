"""Runs one search, from its specification to its result."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from subprocess import DEVNULL, SubprocessError, check_output

from raysearch.core.json import plain, without_secrets
from raysearch.core.mask import Mask
from raysearch.core.paths import as_path
from raysearch.core.problem import Problem
from raysearch.core.versions import version_of
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.prepared_data import PreparedData
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.ledger.locks import locked
from raysearch.models.spec import ModelInfo
from raysearch.searching.driver import exhaust, run_rounds
from raysearch.searching.ending import BudgetedEnding, Ending, RefinedEnding
from raysearch.searching.events import SearchEnded, SearchStarted
from raysearch.searching.forecaster import expected_cost
from raysearch.searching.knee import write_knee
from raysearch.searching.notices import announce_large_files, describe_model, warn_before_search
from raysearch.searching.observer import Observer, Observers, Tracker
from raysearch.searching.recommend import BudgetedSearch, SpeedMeter, unmeasured
from raysearch.searching.recommendation import Recommendation
from raysearch.searching.result import ParameterCounts, RoundSummary, SampleCounts, SearchHeader, SearchResult
from raysearch.searching.search_record import SEARCHES, SearchRecord, State, record_mlflow_run, write_search
from raysearch.searching.search_recorder import SearchRecorder
from raysearch.searching.separate import separation_of
from raysearch.searching.separation import Separation
from raysearch.searching.spec import SearchSpec
from raysearch.searching.stages import FixedMasks
from raysearch.searching.work import EvaluationCounts, LayerForwards, LayerTokens, SearchWork
from raysearch.text.redaction import redact
from raysearch.text.sentences import first_line


@dataclass(frozen=True)
class StudyContext:
    """The parts of a search that the searches of a study share; a search without a study has only `info`.

    Args:
        info: The model.
        prepared: The calibrations of the search.
        labels: The labels of the search in the study: ``{"searcher": "beam 5", "remove": "7", …}``.
        parent: The tracker's id of the study, if it has one.
        make_pool: Returns the replicas, which outlive the search.
    """

    info: ModelInfo
    prepared: PreparedData | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    make_pool: Callable[[], Pool] | None = None


def run_search(
    spec: SearchSpec,
    observer: Observer,
    tracker: Tracker,
    resumes: str | None = None,
    meter: SpeedMeter | None = None,
) -> SearchResult:
    """Run a search to its end, or resume it, as `search_rounds` does.

    Args:
        spec: The search.
        observer: Gets progress, trials, rounds and the end.
        tracker: Records the search; it is closed at the end.
        resumes: The id that the search must have, if it is resumed by its id.
        meter: Measures the speeds of a search by budget; None to measure none.

    Returns:
        The result.

    Raises:
        UserError: The specification does not fit the model, the text or the machine.
        EvaluationError: A unit of work failed for good.
        KeyboardInterrupt: The user stopped it; all evaluations so far are in the ledger.
    """
    return exhaust(search_rounds(spec, observer, tracker, resumes, meter=meter))


def search_rounds(
    spec: SearchSpec,
    observer: Observer,
    tracker: Tracker,
    resumes: str | None = None,
    context: StudyContext | None = None,
    meter: SpeedMeter | None = None,
) -> Generator[RoundSummary, None, SearchResult]:
    """Run a search round by round.

    If the generator is closed before its end, the search is recorded as stopped, with the best mask so far.

    Args:
        spec: The search.
        observer: Gets progress, trials, rounds and the end.
        tracker: Records the search; it is closed at the end.
        resumes: The id that the search must have, if it is resumed by its id.
        context: The shared parts of a study; None without a study.
        meter: Measures the speeds of a search by budget; None to measure none.

    Yields:
        The summary of each round.

    Returns:
        The result.

    Raises:
        UserError: The specification does not fit the model, the text or the machine.
        EvaluationError: A unit of work failed for good.
        KeyboardInterrupt: The user stopped it; all evaluations so far are in the ledger.
    """
    started = time.perf_counter()
    is_alone = context is None
    context = context or StudyContext(describe_model(spec.evaluation.model, observer))
    info = context.info
    spec.check_model(info)
    problem = spec.problem(info)  # refuses numbers that do not fit, before anything is written
    expected = expected_cost(spec, info) if is_alone else None
    if context.prepared is None:
        announce_large_files(spec.evaluation, observer)
    n_passes = 1.0 if expected is None else expected.n_passes(info.sites)
    with closing(_open_session(spec, problem, context, n_passes, observer)) as session:
        header = _header(spec, session, problem, context)
        if resumes not in (None, header.search_id):
            raise _changed_search_error(resumes, session)
        with locked(session.ledger, header.search_id, "SEARCH", wait=not is_alone):
            fingerprints = session.fingerprints
            record = write_search(session.ledger, header.search_id, spec.config, "running", fingerprints=fingerprints)
            _resume(tracker, record.result)
            observers = Observers(tracker, observer)
            recorder = SearchRecorder(problem, session.evaluator, observers, started, _part_names(spec))
            search = _Search(spec, session, header, recorder, observers, tracker)
            try:
                # the rounds of stages are not rounds of the search, so their forecast would mislead displays
                observers.on_event(SearchStarted(header, expected if spec.healer is None else None))
                if is_alone:
                    warn_before_search(spec, info, session.calibrations, observer)
                ending = search.ending(record, meter or unmeasured)
                ending.check()
                searcher = spec.searcher
                staged = None
                if spec.healer is not None:
                    staged = spec.healer.heal(record, spec, session, observer)
                    searcher = FixedMasks(staged.masks)  # what the original model loses without any recovery
                rounds = run_rounds(searcher, problem, spec.seed, recorder)
                mask = yield from recorder.follow(rounds, ending.mask_at_end)
                yield from ending.last_rounds()
                result = ending.result(mask)
                if staged is not None:
                    works = [stage.work for stage in staged.stages]
                    result = replace(result, staged=staged, work=functools.reduce(SearchWork.plus, works, result.work))
            except GeneratorExit:
                search.stop()
                raise
            except BaseException as error:
                search.fail(error)
                raise
            else:
                result = search.finish("finished", result)
                session.update_cache()
                return result
            finally:
                tracker.close()


def _open_session(
    spec: SearchSpec, problem: Problem, context: StudyContext, n_passes: float, observer: Observer
) -> EvaluationSession:
    """Open the session that evaluates the masks of a search.

    Args:
        spec: The search.
        problem: Its problem.
        context: The model and its calibrations.
        n_passes: The expected passes over all layers.
        observer: Gets progress.

    Returns:
        The session.
    """
    return open_session(
        spec.evaluation,
        context.info,
        observer.progress,
        context.prepared,
        context.make_pool,
        n_passes,
        removable=problem.sites,
    )


def search_stage(spec: SearchSpec, context: StudyContext, observer: Observer) -> SearchResult:
    """Run a search that is a stage of another one, which records it. Its evaluations are in the ledger.

    Args:
        spec: The search.
        context: The model and its calibrations.
        observer: Gets progress, trials, rounds and the end.

    Returns:
        The result.

    Raises:
        UserError: The specification does not fit the model or the machine.
        EvaluationError: A unit of work failed for good.
    """
    started = time.perf_counter()
    info = context.info
    problem = spec.problem(info)
    n_passes = expected_cost(spec, info).n_passes(info.sites)
    with closing(_open_session(spec, problem, context, n_passes, observer)) as session:
        header = _header(spec, session, problem, context)
        recorder = SearchRecorder(problem, session.evaluator, observer, started, _part_names(spec))
        observer.on_event(SearchStarted(header))
        rounds = recorder.follow(run_rounds(spec.searcher, problem, spec.seed, recorder))
        search = _Search(spec, session, header, recorder, observer, Tracker())
        result = search.with_separation(search.result(exhaust(rounds), None))
        observer.on_event(SearchEnded(result))
        return result


@dataclass(frozen=True)
class _Search:
    """A search that has started. Its methods compute its result, and record its end."""

    spec: SearchSpec
    session: EvaluationSession
    header: SearchHeader
    recorder: SearchRecorder
    observer: Observer
    tracker: Tracker

    def finish(self, state: State, result: SearchResult) -> SearchResult:
        """Record the result, and return it with its separation and the ids of the tracker.

        A search by budget also writes the figure ``reports/<search>/knee.png`` in its store.
        """
        if self.recorder.is_undecided:
            self.observer.warn(
                f"all masks of {result.space.count(result.n_removed)} have the same loss, so there is no reason to "
                "prefer the one named; use more or other samples, or another objective"
            )
        result = self.with_separation(result)
        # Written before the tracker ends: a search that is interrupted while it waits for the tracker has finished.
        record = self._write(state, result)
        if result.recommendation is not None:
            write_knee(result.recommendation, as_path("store", self.spec.settings.places.store))
        self.observer.on_event(SearchEnded(result))
        run_id = self.tracker.close()
        receipt = self.tracker.receipt
        ledger = self.session.ledger
        if run_id is not None:
            record = record_mlflow_run(ledger, result.search_id, run_id, receipt)
        for recovery in (self.spec.refiner, self.spec.healer):  # these need the run of the tracker
            if recovery is not None:
                recovery.record(record, ledger, self.observer)
        return replace(result, mlflow_run_id=run_id, mlflow_receipt=receipt)

    def stop(self) -> None:
        """Record the best mask when the budget is spent."""
        if (best := self.recorder.best) is not None:
            self.finish("stopped", replace(self.result(best, None), complete=False))
            return
        problem = self.recorder.problem
        failure = f"its budget was spent before a mask of {problem.size} {problem.space.plural} was scored"
        self._write("stopped", failure=failure)
        self._end_without_result(failure, stopped=True)

    def fail(self, error: BaseException) -> None:
        """Record the cause of a failure, or that the user, or Ray by SIGTERM, interrupted the search."""
        state: State = "failed" if isinstance(error, Exception) else "interrupted"
        message = str(error) if isinstance(error, EvaluationError | UserError) else first_line(error)
        failure = redact(message) if state == "failed" else None
        with suppress(UserError):  # if the ledger itself failed, `error` is about that
            self._write(state, failure=failure)
        self._end_without_result(failure)

    def _end_without_result(self, failure: str | None, stopped: bool = False) -> None:
        """Call the observers, close the tracker, and record the id of the tracker."""
        self.observer.on_event(SearchEnded(None, failure, stopped))
        with suppress(UserError):
            run_id = self.tracker.close()
            if run_id is not None:
                record_mlflow_run(self.session.ledger, self.header.search_id, run_id)

    def ending(self, record: SearchRecord, meter: SpeedMeter) -> Ending:
        """Return how the search ends.

        Args:
            record: The record of the search.
            meter: Measures the speeds of a search by budget.
        """
        spec = self.spec
        if spec.refiner is not None:
            return RefinedEnding(
                result_of=self.result,
                refiner=spec.refiner,
                spec=spec,
                session=self.session,
                recorder=self.recorder,
                record=record,
                observer=self.observer,
            )
        if spec.budget is not None:
            kv_cache = None if spec.budget.kv_memory is None else spec.kv_cache(self.session.info)
            problem = self.recorder.problem
            budgeted = BudgetedSearch(spec.budget, problem, self.session, self.recorder, meter, kv_cache)
            return BudgetedEnding(self.result, budgeted)
        return Ending(self.result)

    def result(self, mask: Mask, recommendation: Recommendation | None) -> SearchResult:
        """Return the result of the search if it ends with this mask now; a search by budget has a recommendation."""
        session = self.session
        recorder = self.recorder
        last = recorder.summaries[-1]
        pool_stats = session.evaluator.pool_stats
        meter = session.evaluator.meter
        n_screened = sum(trial.screened is not None for trial in recorder.trials)
        size = self.header.space.size_of(mask)
        result = SearchResult(
            **{**vars(self.header), "n_remove": size},
            removed=tuple(mask.parts),
            removal_order=recorder.removal_order(mask),
            dense_loss=recorder.dense_loss,
            loss=recorder.losses[mask],
            delta_error=None,
            work=SearchWork(
                evaluations=EvaluationCounts(last.n_requested, last.n_computed, last.n_cached, n_screened),
                layer_forwards=LayerForwards(
                    computed=meter.layer_forwards,
                    alone=meter.layer_forwards_alone,
                    naive=recorder.naive_layer_forwards,
                    naive_computed=recorder.naive_computed,
                ),
                layer_tokens=LayerTokens(meter.layer_tokens, meter.layer_tokens_by_row, meter.packed),
                seconds=recorder.seconds,
                searcher_seconds=recorder.searcher_s,
                busy_share=pool_stats.busy_share,
                pool=plain(pool_stats),
                ended=time.time(),
            ),
            samples=SampleCounts(session.n_tokens, session.n_samples),
            size=ParameterCounts(session.info.parameters, session.info.sites.parameters(mask)),
            statistics=tuple(map(str, recorder.statistics)),
            remarks=recorder.remarks,
            recommendation=recommendation,
            trials=tuple(recorder.trials),
            rounds=tuple(recorder.summaries),
        )
        path_errors = session.delta_errors([trial.mask for trial in result.path])
        errors = {
            size: error for size, error in zip(result.best_by_size, path_errors, strict=True) if error is not None
        }
        return replace(result, delta_error=errors.get(size), delta_errors=errors)

    def with_separation(self, result: SearchResult) -> SearchResult:
        """Return the result with its separation from other masks."""
        return replace(result, separation=self._separation(result))

    def _separation(self, result: SearchResult) -> Separation | None:
        """Compare the mask with the others; None if recovered models chose it, or if several losses are combined."""
        if result.refinement is not None or result.staged is not None or len(self.session.calibrations) > 1:
            return None
        calibration = self.session.calibrations[0]
        return separation_of(result.mask, result.trials, calibration, self.session.ledger, self.recorder.problem)

    def _write(self, state: State, result: SearchResult | None = None, failure: str | None = None) -> SearchRecord:
        return write_search(self.session.ledger, self.header.search_id, self.spec.config, state, result, failure)


def _resume(tracker: Tracker, result: SearchResult | None) -> None:
    """Let a tracker adopt its record of an earlier, complete result."""
    if result is not None and result.mlflow_run_id and result.mlflow_receipt:
        tracker.resume(result.mlflow_run_id, result.mlflow_receipt)


def _changed_search_error(search_id: str, session: EvaluationSession) -> UserError:
    """Return the error of a search that cannot be resumed under its id."""
    recorded = SEARCHES.by_ids(session.ledger, [search_id])[search_id].fingerprints
    if recorded.get("model") != session.fingerprints["model"]:
        subject = "the files of its model have"
        remedy = "put back the old ones"
    elif recorded.get("text") != session.fingerprints["text"]:
        subject = "its text has"
        remedy = "put back the old one"
    else:
        subject = "the tokenizer, the dtype or the kind of device has"
        remedy = "restore it"
    return UserError(
        f"SEARCH={search_id} cannot be resumed: {subject} changed since; {remedy}, or start again with raysearch search"
    )


def _header(spec: SearchSpec, session: EvaluationSession, problem: Problem, context: StudyContext) -> SearchHeader:
    packages = ("raysearch", "torch", "transformers", "ray", "mlflow")
    header = SearchHeader(
        search_id=spec.search_id(session.fingerprint),
        model=spec.evaluation.model.label,
        choices=spec.settings.choices,
        config=spec.config,
        measure=session.measure,
        data=[calibration.description for calibration in session.calibrations],
        fingerprints=session.fingerprints,
        versions={name: version_of(name) for name in packages} | {"python": platform.python_version()},
        git_commit=_git_commit(),
        n_layers=session.info.sites.n_layers,
        n_remove=problem.size,
        dtype=session.info.dtype,
        layer_kinds=tuple(site.kind for site in session.info.sites),
        labels=context.labels,
        parent=context.parent,
        target=spec.target_limits(session.info),
        space=problem.space,
    )
    return without_secrets(header)


def _part_names(spec: SearchSpec) -> Sequence[str]:
    """Return the names of the calibrations if there are several; equal names are numbered."""
    names = [calibration.name for calibration in spec.evaluation.calibrations]
    numbered = [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]
    return numbered if len(names) > 1 else []


def _git_commit() -> str | None:
    """Return the commit of the working folder, if it is a git checkout and git is installed."""
    try:
        return check_output(["git", "rev-parse", "HEAD"], stderr=DEVNULL, text=True, timeout=10).strip()
    except (OSError, SubprocessError):
        return None
