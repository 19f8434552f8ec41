"""The table of equal budgets: what a searcher that may be stopped at any time had found at the cost of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import Setting
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, number, tabulate, words
from raysearch.study.result import Outcome, StudyResult

_NOTE = (
    "A line a searcher, with the masks that it asked for and the loss of the one it found. Beside it, the lowest loss "
    "that random ones (random subsets, genetic, Bayesian) had found after as many masks; means over draws and seeds. "
    "Bold: the lowest of the line. All losses are those that the searchers chose by, so they flatter whoever tried "
    "most. A mask of a greedy or beam search costs less than one of a random search, as it shares a prefix with others."
)


@dataclass(frozen=True)
class _Budget:
    """A searcher of a setting, beside the others that are there."""

    setting: Setting
    searcher: str
    rivals: Mapping[str, Sequence[Outcome]]

    @property
    def evaluations(self) -> float:
        return fmean(one.evaluations for one in self.rivals[self.searcher])

    def loss_of(self, rival: str) -> float | None:
        """Return the mean loss that a searcher had reached by this budget; None if one of its searches had none."""
        found = self.rivals.get(rival, [])
        if rival == self.searcher:
            return fmean(one.loss for one in found)
        reached = [[loss for spent, loss in one.best_so_far if spent <= self.evaluations] for one in found]
        return fmean(losses[-1] for losses in reached) if reached and all(reached) else None


def budget_table(results: StudyResult) -> Table | None:
    """Return what each random searcher had found at the cost of each other; None where there is none beside others."""
    found: dict[Setting, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    anytime: dict[str, None] = {}
    for cell in results.cells:
        if cell.outcome is None or not cell.uses_objective or len(cell.outcome.removed) != cell.remove:
            continue
        found[Setting(cell.model, cell.calibration, cell.remove)][cell.searcher].append(cell.outcome)
        if cell.stochastic:
            anytime[cell.searcher] = None
    lines = [
        _Budget(setting, searcher, rivals)
        for setting, rivals in found.items()
        for searcher in rivals
        if anytime.keys() & rivals.keys() - {searcher}
    ]
    columns = [
        *labels("setting."),
        words("Searcher", "searcher", kind="who"),
        number("Masks", "evaluations", numbers.amount),
        Column("Loss", lambda line: _loss(line.searcher, anytime, line)),
        *(Column(f"{numbers.capital(rival)} by then", partial(_rival, rival, anytime)) for rival in anytime),
    ]
    return tabulate("budgets", "At equal budget", columns, lines, _NOTE)


def _rival(rival: str, anytime: Mapping[str, None], line: _Budget) -> Cell:
    return Cell("") if rival == line.searcher else _loss(rival, anytime, line)


def _loss(searcher: str, anytime: Mapping[str, None], line: _Budget) -> Cell:
    loss = line.loss_of(searcher)
    if loss is None:
        return Cell(numbers.UNKNOWN)
    ended = fmean(one.evaluations for one in line.rivals[searcher])
    small = f"ended after {numbers.amount(ended)}" if ended < line.evaluations else ""
    others = [line.loss_of(one) for one in (line.searcher, *anytime)]
    best = all(other is None or loss <= other for other in others)
    return Cell(numbers.loss(loss), finite(loss), small=small, best=best)
