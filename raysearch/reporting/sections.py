"""The parts of a report in order, each with its tables and figures; the page and the Markdown have the same parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysearch.figures.picture import Picture
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.pictures.courses import path_pictures, progress_pictures, recovery_pictures
from raysearch.reporting.pictures.headline import headline_pictures
from raysearch.reporting.pictures.masks import mask_pictures
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.pictures.quality import (
    correlation_pictures,
    cost_pictures,
    tradeoff_pictures,
    variance_pictures,
)
from raysearch.reporting.pictures.sizes import size_pictures
from raysearch.reporting.pictures.texts import failure_pictures, probe_pictures
from raysearch.reporting.tables.agreement import additivity_table, agreement_table, correlation_table, cross_table
from raysearch.reporting.tables.cost import budget_table, cost_table, searches_table, totals_table
from raysearch.reporting.tables.recovery import recovery_tables
from raysearch.reporting.tables.results import degeneration_tables, leaderboard_tables, result_tables
from raysearch.reporting.tables.table import Table, present
from raysearch.reporting.tables.verdict import (
    contrast_table,
    effect_table,
    ranking_table,
    variance_table,
    verdict_tables,
)


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        name: Its anchor on the page.
        short: A short title for the navigation.
        title: Its title.
        intro: The text under its title; empty for none.
        needs: A sentence that says what a study needs to fill the part; empty to leave an empty part out.
        pictures: Its figures.
        tables: Its tables.
        folded: Whether the page hides its tables until the reader opens them.
    """

    name: str
    short: str
    title: str
    intro: str = ""
    needs: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    folded: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.pictures and not self.tables


def sections(analysis: Analysis) -> list[Section]:
    """Return the parts that follow the findings, without empty ones unless their `Section.needs` is to be shown."""
    results = analysis.results
    frame = analysis.frame
    palette = study_palette(results)
    quality = analysis.averages[-1] if analysis.averages else None
    unfinished = frame[frame["state"] != "finished"]
    parts = [
        Section(
            "leaderboard", "Leaderboard", "At a glance",
            needs="No search has found a mask.",
            pictures=headline_pictures(analysis, palette),
            tables=leaderboard_tables(frame, results.searchers),
        ),
        Section(
            "verdicts", "Verdicts", "Which searcher, which calibration",
            intro=(
                "The named contrasts, the ranks of the searchers over all settings, and the searchers that are "
                "significantly worse in each setting."
            ),
            needs="No search has finished.",
            tables=present(
                contrast_table(analysis.contrasts),
                ranking_table(analysis.rankings),
                *verdict_tables([*analysis.by_loss, *analysis.by_held_out, *analysis.by_average]),
                effect_table(analysis.effects),
            ),
        ),
        Section(
            "results", "Results", "Results",
            intro="The losses on the calibration, and the results of the checkpoints in their assessment.",
            needs="No search has found a mask.",
            tables=result_tables(analysis),
        ),
        Section(
            "generation", "Texts", "What the generated texts show",
            intro=(
                "The repetition, similarity and length of the answers, the share of the code that is Python, and the "
                "arithmetic probe. A text may lose its structure before its scores show it."
            ),
            pictures=[*probe_pictures(results, frame, palette), *failure_pictures(results, frame)],
            tables=degeneration_tables(analysis),
        ),
        Section(
            "recovery", "Recovery", "What training gave back",
            intro="Recovered masks, compared with the dense and the pruned model.",
            pictures=recovery_pictures(results, palette),
            tables=recovery_tables(results),
        ),
        Section(
            "masks", "Layers", "Layers removed",
            needs="No mask to show.",
            pictures=mask_pictures(frame, results.sites, palette),
        ),
        Section(
            "agreement", "Agreement", "Agreement of masks",
            intro="How far searchers agree, and calibrations agree, on the layers to remove.",
            needs="Needs masks of at least two searchers or calibrations.",
            pictures=size_pictures(frame, palette),
            tables=present(agreement_table(analysis.agreements), cross_table(analysis.cross)),
        ),
        Section(
            "tradeoff", "Trade-off", "Perplexity against accuracy",
            needs="Needs checkpoints that were assessed by perplexity and by accuracy.",
            pictures=tradeoff_pictures(analysis, palette),
        ),
        Section(
            "correlations", "Rankings", "Does a better loss mean a better checkpoint?",
            intro="Rank correlations over the searchers of a setting.",
            needs="Needs checkpoints that were assessed, by four searchers or more in a setting.",
            pictures=correlation_pictures(analysis.correlations),
            tables=present(correlation_table(analysis.correlations)),
        ),
        Section(
            "variance", "Variance", "Calibration or searcher: which matters more?",
            needs="Needs assessed checkpoints of at least two calibrations and two searchers.",
            pictures=variance_pictures(analysis.splits),
            tables=present(variance_table(analysis.splits)),
        ),
        Section(
            "additivity", "Additivity", "Do layers cost together what they cost apart?",
            needs="Needs a search that scores layers alone and together, such as CBO.",
            tables=present(additivity_table(results)),
        ),
        Section(
            "costs", "Cost", "What it cost",
            needs="No search has finished.",
            pictures=cost_pictures(analysis.by_loss, palette),
            tables=present(totals_table(frame), cost_table(frame, quality), budget_table(results)),
        ),
        Section(
            "progress", "Progress", "How the searches went",
            needs="No search has recorded its course.",
            pictures=[*path_pictures(results, palette), *progress_pictures(results, palette)],
        ),
        Section(
            "unfinished", "Unfinished", "Searches that did not finish",
            intro=(
                "The searches that failed, with the cause, those that were stopped, and those that have not run. The "
                "mask of a stopped search is used, and marked †."
            ),
            tables=present(searches_table("unfinished", "Failed, stopped or waiting", unfinished)),
        ),
        Section(
            "searches", "Searches", "Every search",
            intro=_states(frame),
            needs="The study has no search.",
            tables=present(searches_table("searches", "Every search", frame)),
            folded=True,
        ),
    ]  # fmt: skip
    return [part for part in parts if part.needs or not part.empty]


def _states(frame: pd.DataFrame) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in frame["state"].value_counts().items())
    return f"{len(frame)} searches: {counts}. † marks a search that its budget stopped."
