"""The named contrasts of a study: is one searcher better than another, over draws and seeds?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from raysearch.reporting.stats.difference import LEVEL, Difference, Side, difference, holm
from raysearch.reporting.stats.frame import Quantity, Setting, settings
from raysearch.studies.spec import sides_of


@dataclass(frozen=True)
class Contrast:
    """Two searchers beside each other in a setting, or in all of a model and calibration together.

    Args:
        setting: The setting; of several the first.
        sizes: M, or all M whose mean difference within each draw this is.
        gap: By how much the first is above the second.
        p: That noise alone explains it, corrected for `n_answers`; None if noise is not known.
        equivalence_p: That it is beyond the margin, corrected likewise; None without a margin, too.
        n_answers: How many answers, of all contrasts for all M together or M by M, p is corrected for.
        unit: Of differences: ``nats per token``, ``points``; nats of logarithms.
        n_seeds: The most seeds that a draw has.
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
    def told(self) -> bool:
        """Whether noise is rejected as the cause."""
        return self.p is not None and self.p <= LEVEL

    @property
    def equivalent(self) -> bool:
        """Whether it is shown to be within the margin."""
        return self.equivalence_p is not None and self.equivalence_p <= LEVEL


def contrasts(
    frame: pd.DataFrame, names: Sequence[str], quantities: Sequence[tuple[Quantity, float | None]]
) -> list[Contrast]:
    """Answer each contrast by each quantity; by calibration loss where a side has no held-out loss.

    First comes the answer of all M together, where there are several M and draws: the samples of a draw favour a
    searcher at every M alike, so that answers M by M do not add up.

    Args:
        frame: The study's searches.
        names: The contrasts, as ``greedy - one_shot``.
        quantities: Each with the margin below which a difference does not matter.
    """
    whole, apart = list[Contrast](), list[Contrast]()
    for pair in map(sides_of, names):
        mine = _without_used_loss(frame[frame["searcher"].isin(pair)])
        for quantity, margin in quantities:
            known = mine[mine[quantity.key].notna()]
            of_both = (cells for _, cells in settings(known) if cells["searcher"].nunique() > 1)
            apart += [_contrast(cells, quantity, margin, *pair) for cells in of_both]
            whole += [_contrast(cells, quantity, margin, *pair) for cells in _all_sizes(known)]
    places = {pair: place for place, pair in enumerate(map(sides_of, names))}
    return sorted([*_corrected(whole), *_corrected(apart)], key=lambda one: places[one.first, one.second])


def _all_sizes(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The searches of each model and calibration with several M and draws, of M and draws that both searchers have."""
    for _, of in cells[cells["comparable"]].groupby(["model", "calibration"], observed=True):
        both = of[of.groupby(["remove", "draw"])["searcher"].transform("nunique") > 1]
        if both["remove"].nunique() > 1 and both["draw"].nunique() > 1:
            yield both


def _corrected(answers: Sequence[Contrast]) -> list[Contrast]:
    """Correct the p of some answers for their number."""
    corrected = holm([one.gap.p for one in answers]), holm([one.equivalence_p for one in answers])
    return [
        replace(one, p=p, equivalence_p=equivalence_p, n_answers=len(answers))
        for one, p, equivalence_p in zip(answers, *corrected, strict=True)
    ]


def _without_used_loss(cells: pd.DataFrame) -> pd.DataFrame:
    """Leave out the calibration loss of two searchers in the settings in which both have a held-out loss."""
    held_out = cells["searcher"].where(cells["held_out"].notna() & cells["comparable"])
    sides = held_out.groupby([cells[one] for one in Setting._fields], observed=True).transform("nunique")
    return cells.assign(loss=cells["loss"].where(sides < 2))


def _contrast(cells: pd.DataFrame, quantity: Quantity, margin: float | None, first: str, second: str) -> Contrast:
    mine, theirs = (cells[cells["searcher"] == name] for name in (first, second))
    gap = difference(Side(mine, quantity), Side(theirs, quantity), quantity)
    return Contrast(
        setting=Setting(*cells[[*Setting._fields]].iloc[0]),
        sizes=tuple(sorted(cells["remove"].unique().tolist())),
        quantity=quantity,
        first=first,
        second=second,
        gap=gap,
        equivalence_p=gap.equivalence_p(margin),
        unit=quantity.difference_unit or str(cells["unit"].iloc[0]),
        n_seeds=int(max(one.groupby("draw")["seed"].nunique().max() for one in (mine, theirs))),
    )
