"""The parts of a report in order, each with its tables and figures: what the page and the Markdown are both made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from raysearch.reporting.figures.masks import mask_pictures, similarity_pictures
from raysearch.reporting.figures.picture import Picture
from raysearch.reporting.figures.quality import correlation_picture, cost_pictures, tradeoff_pictures, variance_picture
from raysearch.reporting.figures.search import path_pictures, progress_pictures
from raysearch.reporting.figures.style import palette_of
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.tables.agreement import agreement_table, correlation_table, cross_table
from raysearch.reporting.tables.cost import cost_table, searches_table, totals_table, unfinished_table
from raysearch.reporting.tables.results import result_tables
from raysearch.reporting.tables.table import Table
from raysearch.reporting.tables.verdict import effect_table, variance_table, verdict_table


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        name: Its anchor.
        short: Its title where there is little room.
        title: Its heading.
        intro: What it shows; of an empty one, what it would take.
        pictures: Its figures.
        tables: Its tables.
        folded: Whether its tables are folded away until they are asked for.
    """

    name: str
    short: str
    title: str
    intro: str
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    folded: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.pictures and not self.tables


def sections(analysis: Analysis) -> list[Section]:
    """Every part that follows the findings, empty ones too."""
    results, frame = analysis.results, analysis.frame
    palette = palette_of(results)
    quality = analysis.averages[-1] if analysis.averages else None
    return [
        _section(
            "verdicts",
            "Verdicts",
            "Which searcher, which calibration",
            "Setting by setting: the best, what ties with it, and what that costs.",
            "No search has finished.",
            [],
            [
                verdict_table(analysis.by_loss, "verdicts_loss", "Searchers by calibration loss"),
                *(
                    verdict_table(
                        [one for one in analysis.by_average if one.quantity == quantity],
                        f"verdicts_{quantity.key}",
                        f"Searchers by {quantity.title}",
                        note="",
                    )
                    for quantity in analysis.averages
                ),
                effect_table(analysis.effects),
            ],
        ),
        _section(
            "results",
            "Results",
            "Results",
            "What was lost on the calibration, and how the checkpoints do on what they were assessed by.",
            "No search has found a mask.",
            [],
            result_tables(results, frame),
        ),
        _section(
            "masks",
            "Layers",
            "Layers removed",
            "",
            "No mask to show.",
            mask_pictures(frame, results.n_layers, palette),
            [],
        ),
        _section(
            "agreement",
            "Agreement",
            "Agreement of masks",
            "How far searchers, and calibrations, agree on which layers go.",
            "Needs masks of at least two searchers or calibrations.",
            similarity_pictures(frame),
            [agreement_table(analysis.agreements), cross_table(analysis.cross)],
        ),
        _section(
            "tradeoff",
            "Trade-off",
            "Perplexity against accuracy",
            "",
            "Needs checkpoints that were assessed by perplexity and by accuracy.",
            tradeoff_pictures(results, frame, palette),
            [],
        ),
        _section(
            "correlations",
            "Rankings",
            "Does a better loss mean a better checkpoint?",
            "Rank correlations over the searchers of a setting.",
            "Needs checkpoints that were assessed, by four searchers or more in a setting.",
            correlation_picture(analysis.correlations),
            [correlation_table(analysis.correlations)],
        ),
        _section(
            "variance",
            "Variance",
            "Calibration or searcher: which matters more?",
            "",
            "Needs assessed checkpoints of at least two calibrations and two searchers.",
            variance_picture(analysis.splits),
            [variance_table(analysis.splits)],
        ),
        _section(
            "costs",
            "Cost",
            "What it cost",
            "",
            "No search has finished.",
            cost_pictures(analysis.by_loss, palette),
            [totals_table(frame), cost_table(frame, quality)],
        ),
        _section(
            "progress",
            "Progress",
            "How the searches went",
            "",
            "No search has recorded its course.",
            [*path_pictures(results, palette), *progress_pictures(results, palette)],
            [],
        ),
        *_unfinished(analysis),
        _section(
            "searches",
            "Searches",
            "Every search",
            _states(analysis),
            "The study has no search.",
            [],
            [searches_table(frame)],
            folded=True,
        ),
    ]


def _unfinished(analysis: Analysis) -> list[Section]:
    table = unfinished_table(analysis.frame)
    intro = (
        "What failed, and why; what was stopped; what has not run. What a stopped search found is used, and marked †."
    )
    return [Section("unfinished", "Unfinished", "Searches that did not finish", intro, [], [table])] if table else []


def _section(
    name: str,
    short: str,
    title: str,
    intro: str,
    without: str,
    pictures: Sequence[Picture],
    tables: Sequence[Table | None],
    folded: bool = False,
) -> Section:
    shown = [table for table in tables if table is not None]
    return Section(name, short, title, intro if shown or pictures else without, pictures, shown, folded)


def _states(analysis: Analysis) -> str:
    states = Counter(analysis.frame["state"])
    words = ", ".join(f"{number} {state}" for state, number in states.most_common())
    return f"{len(analysis.frame)} searches: {words}. † marks one that its budget stopped."
