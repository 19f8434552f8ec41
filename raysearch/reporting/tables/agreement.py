"""The tables of agreement: of masks, of rankings, and of the cost of joint removals with the sum of single ones.

Source of the last: Kim et al. 2026 (arXiv 2604.24938), section 3.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from raysearch.core.trial import JointRemoval
from raysearch.reporting.analysis.agreement import CrossAgreement, MaskAgreement
from raysearch.reporting.analysis.correlation import Correlation
from raysearch.reporting.analysis.frame import Setting
from raysearch.reporting.tables.table import Column, Table, TableCell, labels, number, tabulate, words
from raysearch.stats.rank import rank_correlation
from raysearch.studies.result import StudyResult
from raysearch.text import numbers

_FEWEST = 5  # masks that a line needs
_UNIONS_NOTE = (
    "Δ is the loss minus the dense model's loss. The masks are all those that a search scored and whose layers it "
    "also scored one by one; CBO measures all pairs. Above the sum: the share of masks with a Δ above the sum of "
    "their layers' Δ. ρ is the rank correlation of Δ and the sum. If it is near 1, the losses of single layers show "
    "which masks are good, even if they do not show the size of Δ."
)
_SIMILARITIES = (
    number("Searchers", "n_searchers"),
    number("Mean", "mean", numbers.similarity),
    Column("Range", lambda agreement: TableCell(_range(agreement))),
)


def agreement_table(agreements: Sequence[MaskAgreement]) -> Table | None:
    """Return the table of pairwise Jaccard similarities within each setting."""
    columns = [
        *labels("setting."),
        *_SIMILARITIES,
        Column(
            "Full overlap",
            lambda agreement: TableCell(
                f"{agreement.removed_by_all}/{agreement.removed_by_any}",
                small=numbers.similarity(agreement.full_overlap),
            ),
        ),
        number("By chance", "chance", numbers.similarity),
        number("Between seeds", "between_seeds", numbers.similarity),
        number("Between draws", "between_draws", numbers.similarity),
    ]
    note = (
        "The Jaccard similarity |A ∩ B| / |A ∪ B| of two masks, over pairs of searchers. Full overlap: the share of "
        "layers that every mask removes, among those that any mask removes. By chance: the mean similarity of two "
        "random masks of this size without protected layers. Between draws: the similarity of the masks of the same "
        "searcher on different samples of the same calibration. Searchers that do not use the objective are left "
        "out."
    )
    return tabulate("agreement", "Agreement of searchers, by calibration", columns, agreements, note)


def cross_table(cross: Sequence[CrossAgreement]) -> Table | None:
    """Return the table of Jaccard similarities between calibrations."""
    pair = words("One calibration", "first"), words("Another", "second")
    columns = [*labels("panel.", calibration=False), *pair, *_SIMILARITIES]
    note = "The Jaccard similarity of the masks of the same searcher on the two calibrations."
    return tabulate("agreement_between_calibrations", "Agreement of calibrations", columns, cross, note)


def correlation_table(correlations: Sequence[Correlation]) -> Table | None:
    """Return the table of rank correlations with their intervals."""
    columns = [
        *labels("setting."),
        words("One", "first.title"),
        words("Another", "second.title"),
        number("Searchers", "n"),
        number("ρ", "rho", numbers.rho),
        number("p", "p", numbers.probability),
        Column("95 % interval", _interval),
    ]
    note = (
        "Spearman's ρ over the searchers that use the objective. Each searcher counts with its mean over seeds, "
        "searchers with the same masks count once, and equal values share their ranks. With ρ = +1, both numbers "
        "order the searchers in the same way. p is exact, from all pairings, for up to 10 searchers; where searchers "
        "have a mask in common, it is from 9,999 permutations of the masks. Intervals are shown for 6 searchers or "
        "more: percentiles of 9,999 resamples of the searchers with replacement (seeded), without the resamples in "
        "which a side is constant. With so few searchers, the intervals are rough."
    )
    return tabulate("correlations", "Rank correlations over searchers", columns, correlations, note)


def _range(agreement: MaskAgreement | CrossAgreement) -> str:
    if agreement.lowest is None:
        return numbers.UNKNOWN
    return f"{numbers.similarity(agreement.lowest)} to {numbers.similarity(agreement.highest)}"


def _interval(correlation: Correlation) -> TableCell:
    if correlation.low is None or correlation.high is None:
        return TableCell(numbers.UNKNOWN, small="constant" if correlation.rho is None else "too few")
    return TableCell(f"{numbers.rho(correlation.low)} to {numbers.rho(correlation.high)}")


class _Unions(NamedTuple):
    """The joint removals of one number of layers on one calibration."""

    setting: Setting
    joints: Sequence[JointRemoval]


def additivity_table(results: StudyResult) -> Table | None:
    """Return the table of joint removals and sums, by calibration and number of layers; None if too few are known."""
    by_setting: dict[Setting, dict[JointRemoval, None]] = defaultdict(dict)
    for cell in results.cells:
        for joint in cell.outcome.joint_removals if cell.outcome else ():
            by_setting[Setting(cell.model, cell.calibration, joint.size)][joint] = None
    order = list(dict.fromkeys((cell.model, cell.calibration) for cell in results.cells))
    lines = [_Unions(setting, list(joints)) for setting, joints in by_setting.items() if len(joints) >= _FEWEST]
    lines.sort(key=lambda line: (order.index(line.setting[:2]), line.setting.remove))
    columns = [
        *labels("setting."),
        number("Masks", lambda line: len(line.joints), "{:,}".format),
        number("Median Δ", lambda line: median(joint.delta for joint in line.joints), numbers.change),
        number("Median sum", lambda line: median(joint.summed for joint in line.joints), numbers.change),
        number(
            "Above the sum", lambda line: fmean(joint.delta > joint.summed for joint in line.joints), numbers.percent
        ),
        number("ρ", _rho, numbers.rho),
    ]
    return tabulate("additivity", "What layers cost together and apart", columns, lines, _UNIONS_NOTE)


def _rho(line: _Unions) -> float | None:
    return rank_correlation([joint.delta for joint in line.joints], [joint.summed for joint in line.joints])
