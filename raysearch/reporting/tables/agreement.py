"""The tables of agreement: of masks, and of rankings."""

from __future__ import annotations

from collections.abc import Sequence

from raysearch.reporting.stats.agreement import Agreement, CrossAgreement
from raysearch.reporting.stats.correlation import Correlation
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Row, Table, heads


def agreement_table(agreements: Sequence[Agreement]) -> Table | None:
    """Pairwise Jaccard similarities within each setting."""
    columns = heads(
        "Model", "Calibration", "M", "Searchers", "Mean", "Range", "Full overlap", "By chance", "Between seeds"
    )
    rows = [
        Row(
            [
                Cell(one.setting.model),
                Cell(one.setting.calibration),
                Cell(str(one.setting.remove), one.setting.remove),
                Cell(str(one.n_searchers), one.n_searchers),
                Cell(f"{one.mean:.3f}", one.mean),
                Cell(f"{one.lowest:.3f} to {one.highest:.3f}"),
                Cell(f"{one.removed_by_all}/{one.removed_by_any}", small=f"{one.full_overlap:.3f}"),
                Cell(f"{one.chance:.3f}", one.chance),
                Cell(numbers.UNKNOWN if one.between_seeds is None else f"{one.between_seeds:.3f}", one.between_seeds),
            ]
        )
        for one in agreements
    ]
    note = (
        "Jaccard similarity |A ∩ B| / |A ∪ B| of two masks, over pairs of searchers. Full overlap: layers that every "
        "mask removes, of those that any removes. By chance: what two random masks of this size share on average."
    )
    return Table("agreement", "Agreement of searchers, by calibration", columns, rows, note) if rows else None


def cross_table(cross: Sequence[CrossAgreement]) -> Table | None:
    """Jaccard similarities between calibrations."""
    columns = heads(
        "Model", "M", "One calibration", "Another", "Searchers", "Mean", "Range", words=("One calibration", "Another")
    )
    rows = [
        Row(
            [
                Cell(one.model),
                Cell(str(one.remove), one.remove),
                Cell(one.first),
                Cell(one.second),
                Cell(str(one.n_searchers), one.n_searchers),
                Cell(f"{one.mean:.3f}", one.mean),
                Cell(f"{one.lowest:.3f} to {one.highest:.3f}"),
            ]
        )
        for one in cross
    ]
    note = "Jaccard similarity of what the same searcher removes by the one calibration and by the other."
    return Table("agreement_between_calibrations", "Agreement of calibrations", columns, rows, note) if rows else None


def correlation_table(correlations: Sequence[Correlation]) -> Table | None:
    """Rank correlations with their intervals."""
    columns = heads(
        "Model", "Calibration", "M", "One", "Another", "Searchers", "ρ", "95 % interval", words=("One", "Another")
    )
    rows = [
        Row(
            [
                Cell(one.setting.model),
                Cell(one.setting.calibration),
                Cell(str(one.setting.remove), one.setting.remove),
                Cell(one.first.title),
                Cell(one.second.title),
                Cell(str(one.n), one.n),
                Cell(numbers.rho(one.rho), one.rho),
                _interval(one),
            ]
        )
        for one in correlations
    ]
    note = (
        "Spearman's ρ over searchers, each by its mean over seeds; ties share ranks. +1: the better by the one, the "
        "better by the other. Intervals: percentiles of 9,999 resamples of the searchers with replacement (seeded); "
        "resamples in which one side is constant have no ρ and are left out, their share is in small print. With so "
        "few searchers read them as rough."
    )
    return Table("correlations", "Rank correlations over searchers", columns, rows, note) if rows else None


def _interval(one: Correlation) -> Cell:
    if one.low is None or one.high is None:
        return Cell(numbers.UNKNOWN, small="constant" if one.rho is None else "too few")
    left_out = f"{numbers.percent(one.undefined)} left out" if one.undefined >= 0.005 else ""
    return Cell(f"{numbers.rho(one.low)} to {numbers.rho(one.high)}", small=left_out)
