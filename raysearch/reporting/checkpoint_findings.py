"""Findings about checkpoints: the best one of each M by the report's first number, and the command that exports it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from raysearch.core.mask import Mask
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    by_column,
    cells_frame,
    headline,
)
from raysearch.reporting.finding import Finding
from raysearch.studies.result import StudyResult
from raysearch.text import numbers
from raysearch.text.numbers import plus_minus


def checkpoint_findings(analysis: Analysis) -> Iterator[Finding]:
    """Yield the best checkpoint of each model and M; of each calibration, too, if only losses are known."""
    for best, n_searches in _best_searches(analysis.headline, analysis.frame):
        names = [f"calibration {best['calibration']}", f"searcher {best['searcher']}"]
        names += [f"draw {best['draw']}"] if best["draw"] else []
        names += [f"seed {best['seed']}"] if best["stochastic"] else []
        model = f" of {best['model']}" if analysis.frame["model"].nunique() > 1 else ""
        chosen = "" if n_searches == 1 else f" The best of {n_searches} searches, so it looks better than it is."
        mask = Mask.of(*best["removed"])
        size = best["space"].count(int(best["remove"]))
        verdict = f"Without {size}{model}: {mask} ({', '.join(names)}), with {_number(analysis, best)}.{chosen}"
        search = best["search_id"]
        command = f"raysearch export {search} --out pruned-model{analysis.results.option}" if search else ""
        yield Finding("Which checkpoint?", verdict, "measured", "searches", leads=True, command=command)


def best_searches(results: StudyResult) -> dict[int, str]:
    """Return the id of the best search by M, for each M with a single best search."""
    frame = cells_frame(results)
    ids: dict[int, list[str]] = {}
    for best, _ in _best_searches(headline(results, frame), frame):
        ids.setdefault(int(best["remove"]), []).append(best["search_id"])
    return {size: best_ids[0] for size, best_ids in sorted(ids.items()) if len(best_ids) == 1 and best_ids[0]}


def _best_searches(quantity: Quantity, frame: pd.DataFrame) -> Iterator[tuple[pd.Series, int]]:
    """Yield the best search of each model and M, and the number of searches from which it was chosen.

    The same of each calibration, too, if the quantity is a loss, since losses of two calibrations are not comparable.

    Args:
        quantity: The number by which it is the best.
        frame: The searches of a study, see `cells_frame`.
    """
    is_loss = quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS)
    measured = frame[frame["comparable"] & frame[quantity.key].map(math.isfinite) & frame["removed"].map(bool)]
    badness = -quantity.sign * (measured["delta"] if quantity == CALIBRATION_LOSS else measured[quantity.key])
    labels = ["model", "remove", *(["calibration"] if is_loss else [])]
    for _, cells in measured.groupby(labels, observed=True):
        yield cells.loc[badness[cells.index].idxmin()], len(cells)


def _number(analysis: Analysis, search: pd.Series) -> str:
    """Return the text of the number by which a search is the best, with the dense model's number."""
    quantity = analysis.headline
    if quantity == CALIBRATION_LOSS:
        return f"{numbers.change(search['delta'])} {_noise(search['loss_error'])}{search['unit']} over the dense model"
    if quantity == HELD_OUT_LOSS:
        return f"a held-out loss of {numbers.loss(search['held_out'])} {search['unit']}"
    unit = " %" if quantity.unit == "%" else ""
    number = f"{quantity.title} {quantity.text(search[quantity.key])}{unit} {_noise(search[quantity.error])}"
    dense = by_column(analysis.results.dense.get(search["model"], {}), analysis.results).get(quantity.key)
    return number.rstrip() + (f" (dense {quantity.text(dense.value)}{unit})" if dense else "")


def _noise(error: float) -> str:
    return f"{plus_minus(error)} " if math.isfinite(error) else ""
