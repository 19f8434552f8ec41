"""A search of as many layers as a budget allows, ``remove=auto``: where it ends, and what it recommends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.search.recommend import check_memory, check_readout, facts_of, recommend
from raysearch.search.recommendation import Budget, Recommendation, Speed, memory_text
from raysearch.search.recorder import SearchRecorder
from raysearch.search.result import SearchResult
from raysearch.search.trial import Trial, best_by_size

#: Measures the speed and the memory of masks beside the dense model's; none if speed is not to be measured.
SpeedMeter = Callable[[EvaluationSession, Sequence[Mask]], Mapping[Mask, Speed]]


@dataclass(frozen=True)
class BudgetedSearch:
    """A search by budget that has started; its problem has as many layers to remove as may go."""

    budget: Budget
    problem: Problem
    session: EvaluationSession
    recorder: SearchRecorder
    meter: SpeedMeter

    def check(self) -> None:
        """Refuse a budget that no mask meets: one of a readout that is not there, or of too large a gain.

        Raises:
            UserError: No mask meets it.
        """
        check_readout(self.budget, self.session.measure)
        if not self.budget.gains:
            return
        sizes = self.session.info.layer_parameters
        smallest_first = sorted(self.problem.free, key=lambda layer: sizes[layer])
        mask = Mask.of(*smallest_first[-self.problem.n_remove :])
        speed = self.meter(self.session, [mask])[mask]
        check_memory(self.budget, speed)
        facts = facts_of(mask, 0.0, 0.0, self.session.measure, self.budget, speed=speed)
        if missed := [part for part in facts.misses if part in self.budget.gains]:
            asked = " and ".join(self.budget.word(part) for part in missed)
            raise UserError(
                f"no mask meets {asked}: without {count(len(mask), 'layer')}, the most that may go, "
                f"{self.session.info.model.name} is {speed.speedup:.2f} times as fast, "
                f"memory {memory_text(speed, self.budget)}; ask for less"
            )

    def found(self) -> Mask | None:
        """Return the best mask of the last round if the budget is spent, at which the search ends; else None.

        Where the budget names what may be lost, it is spent when that mask loses more; else when it gains enough.
        """
        best = self._best()
        if not best:
            return None
        mask, loss, only_gains = best[-1].mask, best[-1].loss, self.budget.only_gains
        assert loss is not None, "best masks have one"
        speed = self.meter(self.session, [mask])[mask] if only_gains else None
        facts = facts_of(mask, loss, self.recorder.dense_loss, self.session.measure, self.budget, speed=speed)
        is_spent = not facts.misses if only_gains else not {"loss", "readout"}.isdisjoint(facts.misses)
        return mask if is_spent else None

    def recommend(self, result: SearchResult) -> Recommendation:
        """Return the number of layers to remove, with all that is known of each.

        Raises:
            UserError: No mask keeps to the budget.
        """
        measured = self.meter(self.session, [trial.mask for trial in self._best()])
        return recommend(result, self.budget, self.session.ledger, measured)

    def _best(self) -> tuple[Trial, ...]:
        """Return the best trial of each size so far, ascending."""
        return best_by_size(self.recorder.trials, self.problem.n_remove)
