"""The recorder of a search: it answers the searcher's rounds, keeps what happened and passes it to observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.evaluator import Evaluation, Evaluator, scores_of
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.searchers.base import Remark, Round, Scores
from raysearch.searching.driver import Oracle
from raysearch.searching.observer import Observer
from raysearch.searching.result import RemarkValue, RoundSummary
from raysearch.searching.trial import Trial


@dataclass
class SearchRecorder(Oracle):
    """Answers the searcher's rounds and tells its observer what happened.

    The dense model rides in the first round, where it costs a layer-forward or so more. It is trial 0, and counts
    neither as requested nor in the naive cost, not even where the searcher requests it.

    Args:
        started: When the search began, by `time.perf_counter`.
        part_names: The names of its calibrations, where there are several.
        best: The mask of the lowest loss so far that removes M layers; ties in mask order.
        naive_layer_forwards: What a full forward per mask requested would have run; `naive_computed` per mask computed.
        searcher_s: What the searcher itself took.
    """

    problem: Problem
    evaluator: Evaluator
    observer: Observer
    started: float
    part_names: Sequence[str] = ()
    trials: list[Trial] = field(default_factory=list)
    rounds: list[tuple[Round, Scores]] = field(default_factory=list)
    summaries: list[RoundSummary] = field(default_factory=list)
    losses: dict[Mask, float] = field(default_factory=dict)
    best: Mask | None = None
    remarks: dict[str, RemarkValue] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    n_computed: int = 0
    naive_layer_forwards: int = 0
    naive_computed: int = 0
    searcher_s: float = 0.0

    def __post_init__(self) -> None:
        self._answered = time.perf_counter()

    def follow(
        self, rounds: Generator[None, None, Mask], ends: Callable[[], Mask | None] = lambda: None
    ) -> Generator[RoundSummary, None, Mask]:
        """Yield a summary after each round, and return the mask found, or the first that `ends` gives after a round."""
        with closing(rounds):
            while True:
                self._answered = time.perf_counter()  # others may have had their turn since the last round
                try:
                    next(rounds)
                except StopIteration as stop:
                    found: Mask = stop.value
                    return found
                yield self.summaries[-1]
                if (early := ends()) is not None:
                    return early

    @property
    def solutions(self) -> list[Mask]:
        """The masks that remove M layers and have a loss, the lowest first; ties in mask order."""
        found = [mask for mask in self.losses if self.problem.is_solution(mask)]
        return sorted(found, key=lambda mask: (self.losses[mask], mask))

    @property
    def is_undecided(self) -> bool:
        """Whether several masks that remove M layers have a loss, and all the same."""
        masks = self.solutions
        return len(masks) > 1 and self.losses[masks[0]] == self.losses[masks[-1]]

    def round_for_best(self, count: int) -> Round | None:
        """Return the round after which the `count` best solutions are known; None if they are.

        A mask that screening dropped is beyond doubt not among those that its round kept, which may be fewer.
        """
        dropped = {trial.mask for trial in self.trials if trial.screened is not None} - self.losses.keys()
        masks, known = sorted(filter(self.problem.is_solution, dropped)), self.solutions
        if not masks:
            return None
        return Round(masks, beat=known[count - 1]) if len(known) >= count else Round(masks, keep=count)

    @property
    def dense_loss(self) -> float:
        """The loss with nothing removed."""
        return self.losses[self.problem.dense]

    @property
    def seconds(self) -> float:
        """Since the search started."""
        return time.perf_counter() - self.started

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        with self._answering():
            naive, before = statistic.passes * self.problem.n_layers, self.evaluator.meter.layer_forwards
            self.naive_layer_forwards += naive  # which cannot be shared
            self.statistics.append(statistic)
            values = self.evaluator.measure(statistic)
            self.naive_computed += naive if self.evaluator.meter.layer_forwards > before else 0
            return values

    @override
    def note(self, remark: Remark) -> None:
        self.remarks[remark.name] = remark.value

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Keep the searcher's own time apart from that of its answers."""
        self.searcher_s += time.perf_counter() - self._answered
        yield
        self._answered = time.perf_counter()

    @override
    def evaluate(self, proposed: Round) -> Scores:
        with self._answering():
            return self._evaluate(proposed)

    def _evaluate(self, proposed: Round) -> Scores:
        whole = proposed if self.rounds else replace(proposed, masks=[self.problem.dense, *proposed.masks])
        before = self.evaluator.meter.samples_at_once
        evaluations = self.evaluator.evaluate(whole)
        if (at_once := self.evaluator.meter.samples_at_once) != before:
            self.observer.warn(
                f"memory does not hold a shard; going on with {at_once} of its samples at once, "
                f"as data.shard_samples={at_once} would from the start"
            )
        if not self.rounds:
            self._tell_dense(evaluations[self.problem.dense])
        scores = scores_of(proposed, evaluations)
        self.rounds.append((proposed, scores))
        asked = {mask: evaluations[mask] for mask in proposed.masks if mask}  # the dense model has been told
        for mask, evaluation in asked.items():
            self._tell(mask, evaluation, len(self.rounds))
        computed = [mask for mask, evaluation in asked.items() if not evaluation.cached]
        self.n_computed += len(computed)
        self.naive_computed += naive_layer_forwards(computed, self.problem.n_layers)
        self.naive_layer_forwards += naive_layer_forwards(asked, self.problem.n_layers)
        pruned = replace(scores, losses={mask: loss for mask, loss in scores.losses.items() if mask})
        round_best = pruned.best(1)[0] if pruned.losses else None
        self.summaries.append(
            RoundSummary(
                round=len(self.rounds),
                n_requested=len(self.trials) - 1,  # without the dense model
                n_computed=self.n_computed,
                round_best_loss=None if round_best is None else scores[round_best],
                best_loss=None if self.best is None else self.losses[self.best],
                layer_forwards_computed=self.evaluator.meter.layer_forwards,
                layer_forwards_naive=self.naive_layer_forwards,
                seconds=self.seconds,
                busy_share=self.evaluator.pool_stats.busy_share,
                round_best=round_best,
            )
        )
        self.observer.round_done(self.summaries[-1])
        return scores

    def removal_order(self) -> tuple[int, ...] | None:
        """Return the layers in the order of removal, if each round tried all extensions of the best mask before it."""
        order: list[int] = []
        parent = self.problem.dense
        for proposed, scores in self.rounds:
            if set(proposed.masks) != set(self.problem.children([parent])):
                return None
            best = scores.best(1)[0]
            order.extend(best - parent)
            if self.problem.is_solution(best):
                break
            parent = best
        return tuple(order)

    def _tell_dense(self, evaluation: Evaluation) -> None:
        if (evaluation.failure or "").startswith("the loss is "):  # as where a weight is so large that it overflows
            raise UserError(
                f"the model cannot be searched: with nothing removed, {evaluation.failure}; its weights are damaged, "
                "or too large for its dtype, where model.dtype=float32 may help"
            )
        if evaluation.loss is None:
            raise EvaluationError(f"the dense model cannot be evaluated: {evaluation.failure}")
        self.losses[self.problem.dense] = evaluation.loss
        self._tell(self.problem.dense, evaluation, 0)

    def _tell(self, mask: Mask, evaluation: Evaluation, number: int) -> None:
        if evaluation.loss is not None:
            self.losses[mask] = evaluation.loss
            if self.problem.is_solution(mask):
                self.best = min(self.best or mask, mask, key=lambda one: (self.losses[one], one))
        parts = zip(self.part_names, evaluation.parts, strict=False)
        trial = Trial(
            index=len(self.trials),
            round=number,
            mask=mask,
            loss=evaluation.loss,
            delta=None if evaluation.loss is None else evaluation.loss - self.dense_loss,
            failure=evaluation.failure,
            cached=evaluation.cached,
            screened=evaluation.screened,
            parts={name: loss for name, loss in parts if loss is not None},
        )
        self.trials.append(trial)
        self.observer.trial(trial)
