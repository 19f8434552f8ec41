"""The leaderboard: every searcher in every setting, with its options and its mean rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from raysearch.core.formatting import as_typed
from raysearch.core.json import finite
from raysearch.reporting.stats.frame import searcher_means
from raysearch.reporting.tables import numbers
from raysearch.reporting.tables.table import Cell, Column, Table, number, present, tabulate

_NOTE = (
    "The loss over the dense model's on the calibration, in its unit, the mean over draws and seeds; bold: the lowest. "
    "Ranks are told from 1, the lowest loss, and equal losses share theirs; the mean is over the settings in which the "
    "searcher has a mask. It is a description: which differences are beyond noise is told under Verdicts."
)


def leaderboard_tables(frame: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return for each model a table of searchers by settings, the best mean rank first.

    Args:
        frame: The searches, see `cells_frame`.
        options: The options of each searcher, by its label.
    """
    means = searcher_means(frame)
    models = list(dict.fromkeys(means.index.get_level_values("model")))
    return present(*(_leaderboard(place, model, means.xs(model), options) for place, model in enumerate(models, 1)))


def _leaderboard(place: int, model: str, means: pd.DataFrame, options: Mapping[str, Mapping[str, Any]]) -> Table | None:
    deltas = means["delta"].dropna().unstack("searcher")  # a row a setting
    ranks = deltas.rank(axis="columns").mean()
    lines = ranks.to_frame("rank").join(means["evaluations"].groupby("searcher", observed=True).mean()).reset_index()
    lines["options"] = [_in_words(options.get(searcher, {})) for searcher in lines["searcher"]]
    settings = ((f"{calibration}, M = {remove}", row) for (calibration, remove), row in deltas.iterrows())
    columns = [
        Column("Searcher", lambda line: Cell(line.searcher, small=line.options), kind="who"),
        number("Mean rank", "rank", numbers.three),
        *(Column(title, partial(_delta, row)) for title, row in settings),
        number("Evaluations", "evaluations", numbers.amount),
    ]
    ordered = sorted(lines.itertuples(), key=lambda line: (line.rank, line.searcher))
    return tabulate(f"leaderboard_{place}", f"{model}: searchers by mean rank", columns, ordered, _NOTE)


def _delta(deltas: pd.Series, line: Any) -> Cell:
    """Return a searcher's loss over the dense model's, in a setting whose losses these are."""
    delta = deltas[line.searcher]
    return Cell(numbers.change(delta), finite(delta), best=delta == deltas.min())


def _in_words(options: Mapping[str, Any]) -> str:
    """Return a searcher's options as they are typed; its type is in its label."""
    return ", ".join(f"{name}={as_typed(value)}" for name, value in options.items() if name != "type")
