"""One search, from its specification to its result: the loop between searcher and evaluator, and what is told of it."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.judge import Judge, open_judge
from raysearch.evaluation.progress import Progress
from raysearch.evaluation.runs import State, write_run
from raysearch.mask import Mask
from raysearch.models.loading import ModelInfo, describe
from raysearch.prefix import naive_layer_forwards
from raysearch.problem import Problem
from raysearch.searchers.base import Remark, Round, Scores, run_searcher
from raysearch.statistic import Statistic
from raysearch.study.forecast import RoundCost, forecast
from raysearch.study.sizes import for_sizes
from raysearch.study.spec import SearchSpec
from raysearch.tracking.base import RoundSummary, SearchHeader, SearchResult, Tracker, Trial


class Observer(Protocol):
    """Watches a search while it runs: the terminal, or nobody."""

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """The search begins; `head_cost` is the cost of a head-forward in layer-forwards, by parameters."""
        ...

    def progress(self, progress: Progress) -> None:
        """A unit of the round in hand is done."""
        ...

    def round_done(self, summary: RoundSummary) -> None:
        """A round is complete."""
        ...

    def warn(self, message: str) -> None:
        """Something went wrong that does not stop the search."""
        ...


class SilentObserver:
    """Watches, and says nothing but warnings, as Python warnings."""

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """See `Observer`."""

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""

    def round_done(self, summary: RoundSummary) -> None:
        """See `Observer`."""

    def warn(self, message: str) -> None:
        """See `Observer`."""
        warnings.warn(message, stacklevel=2)


def forecast_search(spec: SearchSpec) -> list[RoundCost] | None:
    """What a search would cost on an empty ledger; only the model's configuration is read. See `forecast`."""
    return forecast(
        for_sizes(spec.searcher, spec.sizes),
        _problem(spec, describe(spec.judge.model)),
        spec.seed,
        spec.judge.objectives,
    )


def run_search(spec: SearchSpec, observer: Observer, resumes: str | None = None) -> SearchResult:
    """Runs a search to its end, or takes it up where it was stopped.

    Args:
        spec: The search.
        observer: Watches.
        resumes: The run id it must have, when an earlier search is taken up by name.

    Returns:
        What was found.

    Raises:
        UserError: The specification does not fit the model, the text or the machine.
        EvaluationError: A unit of work failed for good.
        KeyboardInterrupt: The user stopped it; everything evaluated so far is in the ledger.
    """
    started = time.perf_counter()
    info = describe(spec.judge.model)
    problem = _problem(spec, info)  # refuses numbers that do not fit before anything is written, as a searcher may
    expected = forecast(for_sizes(spec.searcher, spec.sizes), problem, spec.seed, spec.judge.objectives)
    judge = open_judge(spec.judge, info, observer.progress)
    try:
        header = _header(spec, judge)
        if resumes not in (None, header.run_id):
            raise UserError(
                f"RUN={resumes} cannot be taken up: its model or its text has changed since (this would be "
                f"{header.run_id}); restore them, or start anew with raysearch search"
            )
        write_run(judge.ledger, header.run_id, spec.config, "running")
        tracker = spec.tracking.open(observer.warn)
        try:
            try:
                tracker.start(header)
                observer.started(header, expected, info.head_parameters / max(1, info.layer_parameters[0]))
                chronicle = Chronicle(problem, judge.evaluator, tracker, observer, started, _part_names(spec))
                result = _search(spec, judge, problem, chronicle)
            except BaseException as error:
                state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                write_run(judge.ledger, header.run_id, spec.config, state)
                tracker.finish(None, None if state == "interrupted" else str(error) or type(error).__name__)
                raise
            # Before the tracker has its last word: a search that is stopped while it waits for that has finished.
            write_run(judge.ledger, header.run_id, spec.config, "finished", result.as_record())
            tracker.finish(result)
            result = replace(result, mlflow_run_id=tracker.close())
            write_run(judge.ledger, header.run_id, spec.config, "finished", result.as_record())
            return result
        finally:
            tracker.close()
    finally:
        judge.close()


@dataclass
class Chronicle:
    """Answers the searcher's rounds and tells tracker and observer what happened.

    The dense model rides in the first round, where it costs a layer-forward or so more. It is trial 0, and counts
    neither as asked nor in the naive cost, not even where the searcher asks for it.

    Args:
        problem: What is searched.
        evaluator: Answers.
        tracker: Told for the record.
        observer: Told for whoever watches.
        started: When the search began, by `time.perf_counter`.
        part_names: The names of its calibrations, where there are several.
    """

    problem: Problem
    evaluator: Evaluator
    tracker: Tracker
    observer: Observer
    started: float
    part_names: Sequence[str] = ()
    trials: list[Trial] = field(default_factory=list)
    rounds: list[tuple[Round, Scores]] = field(default_factory=list)
    losses: dict[Mask, float] = field(default_factory=dict)
    remarks: dict[str, float | str | list[float]] = field(default_factory=dict)
    asked: int = 0
    run: int = 0
    naive_layer_forwards: int = 0
    searcher_s: float = 0.0

    def __post_init__(self) -> None:
        self._answered = time.perf_counter()

    @property
    def dense_loss(self) -> float:
        """The loss with nothing removed."""
        return self.losses[self.problem.dense]

    @property
    def seconds(self) -> float:
        """Since the search started."""
        return time.perf_counter() - self.started

    def evaluate(self, proposed: Round) -> Scores:
        """See `Oracle`."""
        with self._answering():
            return self._evaluate(proposed)

    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """See `Oracle`."""
        with self._answering():
            self.naive_layer_forwards += statistic.passes * self.problem.n_layers  # which cannot be shared
            return self.evaluator.measure(statistic)

    def note(self, remark: Remark) -> None:
        """See `Oracle`."""
        self.remarks[remark.name] = remark.value

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Tells the time that the searcher takes from that of its answers."""
        self.searcher_s += time.perf_counter() - self._answered
        yield
        self._answered = time.perf_counter()

    def _evaluate(self, proposed: Round) -> Scores:
        masks = proposed.masks if self.rounds else tuple(dict.fromkeys([self.problem.dense, *proposed.masks]))
        evaluations = self.evaluator.evaluate(masks)
        if not self.rounds:
            self._tell_dense(evaluations[self.problem.dense])
        asked = {mask: evaluations[mask] for mask in proposed.masks}
        scores = Scores(
            {mask: evaluation.loss for mask, evaluation in asked.items() if evaluation.loss is not None},
            {mask: evaluation.failure for mask, evaluation in asked.items() if evaluation.failure is not None},
        )
        self.rounds.append((proposed, scores))
        asked.pop(self.problem.dense, None)
        for mask, evaluation in asked.items():
            self._tell(mask, evaluation, len(self.rounds))
        self.asked += len(asked)
        self.run += sum(not evaluation.answered for evaluation in asked.values())
        self.naive_layer_forwards += naive_layer_forwards(asked, self.problem.n_layers)
        summary = self._summary(scores)
        self.tracker.round_done(summary)
        self.observer.round_done(summary)
        return scores

    def removal_order(self) -> tuple[int, ...] | None:
        """The layers in the order they went, if every round tried just the extensions of the last round's best mask."""
        order: list[int] = []
        parent = self.problem.dense
        for proposed, scores in self.rounds:
            if set(proposed.masks) != set(self.problem.children([parent])):
                return None
            best = scores.best(1)[0]
            order.extend(best - parent)
            parent = best
        return tuple(order)

    def _tell_dense(self, evaluation: Evaluation) -> None:
        if evaluation.loss is None:
            raise EvaluationError(f"the dense model cannot be evaluated: {evaluation.failure}")
        self.losses[self.problem.dense] = evaluation.loss
        self._tell(self.problem.dense, evaluation, 0)

    def _tell(self, mask: Mask, evaluation: Evaluation, number: int) -> None:
        if evaluation.loss is not None:
            self.losses[mask] = evaluation.loss
        trial = Trial(
            index=len(self.trials),
            round=number,
            mask=mask,
            loss=evaluation.loss,
            delta=None if evaluation.loss is None else evaluation.loss - self.dense_loss,
            failure=evaluation.failure,
            answered=evaluation.answered,
            parts={
                name: loss for name, loss in zip(self.part_names, evaluation.parts, strict=False) if loss is not None
            },
        )
        self.trials.append(trial)
        self.tracker.trial(trial)

    def _summary(self, scores: Scores) -> RoundSummary:
        solutions = [loss for mask, loss in self.losses.items() if self.problem.is_solution(mask)]
        return RoundSummary(
            round=len(self.rounds),
            asked=self.asked,
            run=self.run,
            round_best_loss=min(scores.losses.values(), default=None),
            best_loss=min(solutions, default=None),
            layer_forwards_run=self.evaluator.meter.layer_forwards,
            layer_forwards_naive=self.naive_layer_forwards,
            seconds=self.seconds,
            busy_share=self.evaluator.meter.busy_share,
            round_best=scores.best(1)[0] if scores.losses else None,
        )


def _problem(spec: SearchSpec, info: ModelInfo) -> Problem:
    return Problem.create(info.n_layers, spec.remove, spec.protect, spec.judge.model.name)


def _search(spec: SearchSpec, judge: Judge, problem: Problem, chronicle: Chronicle) -> SearchResult:
    found = run_searcher(for_sizes(spec.searcher, spec.sizes), problem, spec.seed, chronicle)
    meter = judge.evaluator.meter
    return SearchResult(
        run_id=spec.run_id(judge.fingerprint),
        model=spec.judge.model.name,
        n_layers=problem.n_layers,
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
        layer_forwards_naive=chronicle.naive_layer_forwards,
        layer_tokens=meter.layer_tokens,
        layer_tokens_by_row=meter.layer_tokens_by_row,
        packed=meter.packed,
        seconds=chronicle.seconds,
        searcher_s=chronicle.searcher_s,
        busy_share=meter.busy_share,
        n_tokens=judge.n_tokens,
        n_samples=judge.n_samples,
        parameters=judge.info.parameters,
        parameters_removed=sum(judge.info.layer_parameters[layer] for layer in found),
        data=[one.description for one in judge.calibrations],
        fingerprints=judge.fingerprints,
        remarks=chronicle.remarks,
        trials=tuple(chronicle.trials),
    )


def _header(spec: SearchSpec, judge: Judge) -> SearchHeader:
    packages = ("raysearch", "torch", "transformers", "ray", "mlflow")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return SearchHeader(
        run_id=spec.run_id(judge.fingerprint),
        model=spec.judge.model.name,
        choices=spec.config["choices"],
        config=spec.config,
        measure=judge.measure,
        data=[one.description for one in judge.calibrations],
        fingerprints=judge.fingerprints,
        versions={**versions, "python": platform.python_version()},
        git_commit=_git_commit(),
        n_layers=judge.info.n_layers,
        n_remove=spec.sizes[-1],
    )


def _part_names(spec: SearchSpec) -> list[str]:
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
