"""The table of additivity: whether layers cost together what they cost apart.

Source: Kim et al. 2026 (arXiv 2604.24938), section 3.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from raysearch.core.json import finite
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, labels, tabulate
from raysearch.search.additivity import Union
from raysearch.study.result import StudyResult

_FEW = 5  # masks, below which there is no line
_NOTE = (
    "Δ is the loss over the dense model's. Every mask that a search of the calibration scored and whose layers it also "
    "scored one by one: CBO measures all pairs. Above the sum: the share of masks that cost more than their layers "
    "apart. ρ: the rank correlation of Δ and sum; near 1, single layers tell which masks are good though they do not "
    "tell what they cost."
)


@dataclass(frozen=True)
class _Line:
    """The masks of one number of layers on one calibration."""

    model: str
    calibration: str
    remove: int
    masks: Sequence[Union]


def additivity_table(results: StudyResult) -> Table | None:
    """Return the Δ of unions against sums, by calibration and number of layers; None where too few are known."""
    found: dict[tuple[str, str, int], dict[Union, None]] = defaultdict(dict)
    for cell in results.cells:
        for union in cell.outcome.unions if cell.outcome else ():
            found[cell.model, cell.calibration, union.size][union] = None
    lines = [_Line(*of, list(masks)) for of, masks in found.items() if len(masks) >= _FEW]
    order = list(dict.fromkeys((cell.model, cell.calibration) for cell in results.cells))
    lines.sort(key=lambda line: (order.index((line.model, line.calibration)), line.remove))
    columns = [
        *labels(),
        Column("Masks", lambda line: Cell(f"{len(line.masks):,}", len(line.masks))),
        Column("Median Δ", lambda line: _change(median(one.delta for one in line.masks))),
        Column("Median sum", lambda line: _change(median(one.summed for one in line.masks))),
        Column("Above the sum", lambda line: _share([one.delta > one.summed for one in line.masks])),
        Column("ρ", _correlation),
    ]
    return tabulate("additivity", "What layers cost together and apart", columns, lines, _NOTE)


def _change(loss: float) -> Cell:
    return Cell(numbers.change(loss), finite(loss))


def _share(of: Sequence[bool]) -> Cell:
    share = sum(of) / len(of)
    return Cell(numbers.percent(share), share)


def _correlation(line: _Line) -> Cell:
    from scipy.stats import spearmanr

    rho = finite(float(spearmanr([one.delta for one in line.masks], [one.summed for one in line.masks]).statistic))
    return Cell(numbers.rho(rho), rho)
