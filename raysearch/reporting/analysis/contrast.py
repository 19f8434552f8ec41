"""The named contrasts of a study: is one searcher better than another, over draws and seeds?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from raysearch.reporting.analysis.frame import Quantity, Setting, settings
from raysearch.reporting.analysis.sides import Side, difference
from raysearch.stats.difference import Difference
from raysearch.stats.significance import LEVEL, holm
from raysearch.studies.spec import sides_of


@dataclass(frozen=True)
class Contrast:
    """The comparison of two searchers in a setting, or in all settings of a model and calibration together.

    Args:
        setting: The setting; the first of several.
        sizes: M; several M if `gap` is the mean difference over them.
        quantity: The quantity by which the searchers are compared.
        first: The first searcher of the contrast.
        second: The second searcher.
        gap: By how much the first is above the second.
        unit: The unit of differences: ``nats per token``, ``points``; nats for logarithms.
        n_seeds: The largest number of seeds of a draw.
        p: The p of the test that noise alone explains the gap, corrected for `n_answers`; None if noise is not known.
        equivalence_p: The p of the test that the gap is beyond the margin, corrected in the same way; None if noise is
            not known, or without a margin.
        n_answers: The number of answers for which p is corrected: all those over all M, or all those for a single M.
    """

    setting: Setting
    sizes: tuple[int, ...]
    quantity: Quantity
    first: str
    second: str
    gap: Difference
    unit: str
    n_seeds: int
    p: float | None = None
    equivalence_p: float | None = None
    n_answers: int = 1

    @property
    def gain(self) -> float:
        """By how much the first is better; of logarithms where the quantity is compared by ratios."""
        return self.quantity.sign * self.gap.value + 0.0

    @property
    def significant(self) -> bool:
        """Whether noise is rejected as the cause of the difference."""
        return self.p is not None and self.p <= LEVEL

    @property
    def equivalent(self) -> bool:
        """Whether it is shown to be within the margin."""
        return self.equivalence_p is not None and self.equivalence_p <= LEVEL


def contrasts(
    frame: pd.DataFrame, names: Sequence[str], quantities: Sequence[tuple[Quantity, float | None]]
) -> list[Contrast]:
    """Answer each contrast by each quantity; by calibration loss only where a side has no held-out loss.

    Where there are several M and draws, the first answer is over all M together. The samples of a draw favour a
    searcher at every M, so answers for single M are not independent.

    Args:
        frame: The study's searches.
        names: The contrasts, as ``greedy - one_shot``.
        quantities: Each with the margin below which a difference does not matter.

    Returns:
        The answers, in the order of the contrasts.
    """
    over_all_sizes: list[Contrast] = []
    by_size: list[Contrast] = []
    for pair in map(sides_of, names):
        searches = _without_used_loss(frame[frame["searcher"].isin(pair)])
        for quantity, margin in quantities:
            measured = searches[searches[quantity.key].notna()]
            with_both_sides = (cells for _, cells in settings(measured) if cells["searcher"].nunique() > 1)
            by_size += [_contrast(cells, quantity, margin, *pair) for cells in with_both_sides]
            over_all_sizes += [_contrast(cells, quantity, margin, *pair) for cells in _all_sizes(measured)]
    places = {pair: place for place, pair in enumerate(map(sides_of, names))}
    answers = [*_corrected(over_all_sizes), *_corrected(by_size)]
    return sorted(answers, key=lambda answer: places[answer.first, answer.second])


def _all_sizes(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the searches of each model and calibration on those M and draws that both searchers have.

    Only where there are several such M and several such draws.
    """
    for _, group in cells[cells["comparable"]].groupby(["model", "calibration"], observed=True):
        shared = group[group.groupby(["remove", "draw"])["searcher"].transform("nunique") > 1]
        if shared["remove"].nunique() > 1 and shared["draw"].nunique() > 1:
            yield shared


def _corrected(answers: Sequence[Contrast]) -> list[Contrast]:
    """Return answers with their p values corrected for the number of answers."""
    corrected = holm([answer.gap.p for answer in answers]), holm([answer.equivalence_p for answer in answers])
    return [
        replace(answer, p=p, equivalence_p=equivalence_p, n_answers=len(answers))
        for answer, p, equivalence_p in zip(answers, *corrected, strict=True)
    ]


def _without_used_loss(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the searches of two searchers, without calibration losses where both have a held-out loss."""
    held_out = cells["searcher"].where(cells["held_out"].notna() & cells["comparable"])
    sides = held_out.groupby([cells[label] for label in Setting._fields], observed=True).transform("nunique")
    return cells.assign(loss=cells["loss"].where(sides < 2))


def _contrast(cells: pd.DataFrame, quantity: Quantity, margin: float | None, first: str, second: str) -> Contrast:
    first_cells = cells[cells["searcher"] == first]
    second_cells = cells[cells["searcher"] == second]
    gap = difference(Side(first_cells, quantity), Side(second_cells, quantity), quantity)
    return Contrast(
        setting=Setting(*cells[[*Setting._fields]].iloc[0]),
        sizes=tuple(sorted(cells["remove"].unique().tolist())),
        quantity=quantity,
        first=first,
        second=second,
        gap=gap,
        equivalence_p=gap.equivalence_p(margin),
        unit=quantity.difference_unit or str(cells["unit"].iloc[0]),
        n_seeds=int(max(side.groupby("draw")["seed"].nunique().max() for side in (first_cells, second_cells))),
    )
