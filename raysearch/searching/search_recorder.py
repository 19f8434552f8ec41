"""The recorder of a search: it answers the searcher's requests, keeps all trials, and sends events."""

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
from raysearch.core.trial import Trial
from raysearch.errors import UserError
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.searchers.base import Remark, Round, Scores
from raysearch.searching.driver import Oracle
from raysearch.searching.events import RoundEnded, TrialScored
from raysearch.searching.observer import Observer
from raysearch.searching.result import RemarkValue, RoundSummary


@dataclass
class SearchRecorder(Oracle):
    """Answers the searcher's requests, keeps all trials, and sends events to an observer.

    The dense model is added to the first round, where it costs only about one layer-forward. It is trial 0. It counts
    neither as requested nor in the naive cost, even if the searcher requests it.

    Args:
        problem: The space of legal masks. The recorder has the masks of the model that belong to it.
        evaluator: Evaluates masks and measures statistics.
        observer: Gets each trial and each round.
        started: When the search began, by `time.perf_counter`.
        part_names: The names of its calibrations, if there are several.
        trials: All trials, in order.
        rounds: All rounds and their scores, in order.
        summaries: The summary of each round.
        losses: The loss of each mask that has one.
        best: The mask with the lowest loss so far that removes M sites; of equal losses the first in mask order.
        remarks: The last remark of each name.
        statistics: The measured statistics, in order.
        n_computed: How many masks were computed, at least in part.
        naive_layer_forwards: Layer-forwards of a full forward for each requested mask.
        naive_computed: Layer-forwards of a full forward for each computed mask.
        searcher_s: The time of the searcher itself, in s.
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
    naive_layer_forwards: float = 0.0
    naive_computed: float = 0.0
    searcher_s: float = 0.0

    def __post_init__(self) -> None:
        self._last_answer = time.perf_counter()

    def follow(
        self, rounds: Generator[None, None, Mask], ends: Callable[[], Mask | None] = lambda: None
    ) -> Generator[RoundSummary, None, Mask]:
        """Run rounds, and yield the summary of each.

        Args:
            rounds: Runs a round at each step, and returns the mask of the searcher.
            ends: Called after each round; returns a mask to end with, or None to continue.

        Returns:
            The mask of the searcher, or the mask of `ends`.
        """
        with closing(rounds):
            while True:
                self._last_answer = time.perf_counter()  # the caller may have done other work since the last round
                try:
                    next(rounds)
                except StopIteration as stop:
                    mask: Mask = stop.value
                    return mask
                yield self.summaries[-1]
                if (early_mask := ends()) is not None:
                    return early_mask

    @property
    def solutions(self) -> list[Mask]:
        """The masks that remove M sites and have a loss, lowest loss first; equal losses in mask order."""
        masks = [mask for mask in self.losses if self.problem.is_solved_by(mask)]
        return sorted(masks, key=lambda mask: (self.losses[mask], mask))

    @property
    def is_undecided(self) -> bool:
        """Whether several masks that remove M sites have a loss, and all losses are equal."""
        masks = self.solutions
        return len(masks) > 1 and self.losses[masks[0]] == self.losses[masks[-1]]

    def round_for_best(self, count: int) -> Round | None:
        """Return the round after which the `count` best solutions are known; None if they are known already.

        It has the solutions without a loss that screening has dropped: these are not among the best of their rounds,
        but those rounds may have kept fewer than `count`.
        """
        dropped = {trial.mask for trial in self.trials if trial.screened is not None} - self.losses.keys()
        masks = sorted(filter(self.problem.is_solved_by, dropped))
        if not masks:
            return None
        solutions = self.solutions
        return Round(masks, beat=solutions[count - 1]) if len(solutions) >= count else Round(masks, keep=count)

    @property
    def dense_loss(self) -> float:
        """The loss of the dense model."""
        return self.losses[self.problem.dense]

    @property
    def seconds(self) -> float:
        """The time since the search started, in s."""
        return time.perf_counter() - self.started

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        with self._answering():
            return self._measure(statistic)

    def _measure(self, statistic: Statistic) -> NDArray[np.float64]:
        naive = statistic.passes * self.problem.sites.total_cost
        before = self.evaluator.meter.layer_forwards
        self.naive_layer_forwards += naive
        self.statistics.append(statistic)
        values = self.evaluator.measure(statistic)
        if self.evaluator.meter.layer_forwards > before:
            self.naive_computed += naive
        return values

    @override
    def note(self, remark: Remark) -> None:
        self.remarks[remark.name] = remark.value

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Measure the time of the searcher, which excludes the time of the answers."""
        self.searcher_s += time.perf_counter() - self._last_answer
        yield
        self._last_answer = time.perf_counter()

    @override
    def evaluate(self, proposed: Round) -> Scores:
        with self._answering():
            if self.evaluator.repairs and not self.rounds:
                self._measure(Statistic.NORM_RATIO)  # the factors of all cuts
            return self._evaluate(proposed)

    def _evaluate(self, proposed: Round) -> Scores:
        with_dense = proposed if self.rounds else replace(proposed, masks=[self.problem.dense, *proposed.masks])
        before = self.evaluator.meter.samples_at_once
        evaluations = self.evaluator.evaluate(with_dense)
        if (at_once := self.evaluator.meter.samples_at_once) != before:
            self.observer.warn(
                f"memory does not hold a shard; continuing with batches of {at_once} of its samples, "
                f"as data.shard_samples={at_once} would from the start"
            )
        if not self.rounds:
            self._add_dense_trial(evaluations[self.problem.dense])
        scores = Scores(proposed, {mask: evaluations[mask].outcome for mask in proposed.masks})
        self.rounds.append((proposed, scores))
        requested = {mask: evaluations[mask] for mask in proposed.masks if mask}  # the dense model has a trial already
        for mask, evaluation in requested.items():
            self._add_trial(mask, evaluation, len(self.rounds))
        computed = [mask for mask, evaluation in requested.items() if not evaluation.cached]
        self.n_computed += len(computed)
        self.naive_computed += naive_layer_forwards(computed, self.problem.sites.layers)
        self.naive_layer_forwards += naive_layer_forwards(requested, self.problem.sites.layers)
        pruned = replace(scores, outcomes={mask: outcome for mask, outcome in scores.outcomes.items() if mask})
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
        self.observer.on_event(RoundEnded(self.summaries[-1]))
        return scores

    def removal_order(self, mask: Mask) -> tuple[int | str, ...] | None:
        """Return the parts of a mask in the order of removal, if each round tried all extensions of its parent.

        None if a round did not, or if the mask is not the best of a round.
        """
        order: list[int | str] = []
        parent = self.problem.dense
        for proposed, scores in self.rounds:
            if not self.problem.extends(parent, proposed.masks):
                return None
            best = scores.best(1)[0]
            if mask.contains(best):
                order.extend(best.without(parent).parts)
            if self.problem.is_solved_by(best):
                break
            parent = best
        return tuple(order) if Mask.of(*order) == mask else None

    def _add_dense_trial(self, evaluation: Evaluation) -> None:
        if evaluation.loss is None:  # such as when a large weight overflows
            raise UserError(
                f"the model cannot be searched: with nothing removed, {evaluation.failure}; its weights are damaged, "
                "or too large for its dtype, where model.dtype=float32 may help"
            )
        self.losses[self.problem.dense] = evaluation.loss
        self._add_trial(self.problem.dense, evaluation, 0)

    def _add_trial(self, mask: Mask, evaluation: Evaluation, round_number: int) -> None:
        if evaluation.loss is not None:
            self.losses[mask] = evaluation.loss
            if self.problem.is_solved_by(mask):
                rivals = [mask] if self.best is None else [mask, self.best]
                self.best = min(rivals, key=lambda rival: (self.losses[rival], rival))
        parts = zip(self.part_names, evaluation.parts, strict=False)
        trial = Trial(
            index=len(self.trials),
            round=round_number,
            mask=mask,
            loss=evaluation.loss,
            delta=None if evaluation.loss is None else evaluation.loss - self.dense_loss,
            failure=evaluation.failure,
            cached=evaluation.cached,
            screened=evaluation.screened,
            parts={name: loss for name, loss in parts if loss is not None},
            scales=evaluation.scales,
        )
        self.trials.append(trial)
        self.observer.on_event(TrialScored(trial))
