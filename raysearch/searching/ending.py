"""The ways in which a search ends: with the searcher's mask, within a budget, or with the mask that recovers best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.searching.observer import Observer
from raysearch.searching.recommend import BudgetedSearch
from raysearch.searching.recommendation import Recommendation
from raysearch.searching.result import RoundSummary, SearchResult
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.search_recorder import SearchRecorder
from raysearch.searching.spec import Refiner, SearchSpec


@dataclass(frozen=True)
class Ending:
    """Ends a search with the searcher's mask. Subclasses override what is different.

    Args:
        result_of: Returns the result of the search if it ends with a mask, and with a recommendation or None.
    """

    result_of: Callable[[Mask, Recommendation | None], SearchResult]

    def check(self) -> None:
        """Check, before the first round, that the search can end in this way.

        Raises:
            UserError: It cannot.
        """

    def mask_at_end(self) -> Mask | None:
        """Return the mask to end with after this round; None to continue."""
        return None

    def last_rounds(self) -> Iterator[RoundSummary]:
        """Run the rounds that are needed after those of the searcher, and yield the summary of each."""
        return iter(())

    def result(self, mask: Mask) -> SearchResult:
        """Return the result of the search.

        Args:
            mask: The mask of the searcher, or of `mask_at_end`.

        Raises:
            UserError: No mask is good enough.
        """
        return self.result_of(mask, None)


@dataclass(frozen=True)
class BudgetedEnding(Ending):
    """Ends a search when its budget is spent, with the recommended size.

    Args:
        budgeted: The search by budget.
    """

    budgeted: BudgetedSearch

    @override
    def check(self) -> None:
        self.budgeted.check()

    @override
    def mask_at_end(self) -> Mask | None:
        return self.budgeted.mask_at_end()

    @override
    def result(self, mask: Mask) -> SearchResult:
        recommendation = self.budgeted.recommend(self.result_of(mask, None))
        return self.result_of(recommendation.removed, recommendation)


@dataclass(frozen=True)
class RefinedEnding(Ending):
    """Recovers the best masks of a search, and ends it with the mask that is the best after that.

    Args:
        refiner: Recovers the masks.
        spec: The specification of the search.
        session: Evaluates masks.
        recorder: The trials so far.
        record: The record of the search.
        observer: Gets progress and warnings.
    """

    refiner: Refiner
    spec: SearchSpec
    session: EvaluationSession
    recorder: SearchRecorder
    record: SearchRecord
    observer: Observer

    @override
    def last_rounds(self) -> Iterator[RoundSummary]:
        missing = self.recorder.round_for_best(self.refiner.masks)
        if missing is not None:
            self.recorder.evaluate(missing)
            yield self.recorder.summaries[-1]

    @override
    def result(self, mask: Mask) -> SearchResult:
        n_masks = self.refiner.masks
        problem = self.recorder.problem
        sites = problem.space.count(problem.size)
        best_masks = self.recorder.solutions[:n_masks]
        if len(best_masks) < 2:
            raise UserError(
                f"refine.masks={n_masks} compares masks of {sites}, and searcher={self.spec.searcher_name} scored "
                f"{mask} alone; use one such as greedy, or refine=none"
            )
        if len(best_masks) < n_masks:
            self.observer.warn(
                f"searcher={self.spec.searcher_name} scored {len(best_masks)} masks of {sites}; these are recovered "
                f"in place of refine.masks={n_masks}"
            )
        records = [replace(self.record, result=self.result_of(best_mask, None)) for best_mask in best_masks]
        refinement = self.refiner.refine(records, self.spec, self.session, self.observer)
        return replace(self.result_of(refinement.best.mask, None), refinement=refinement)
