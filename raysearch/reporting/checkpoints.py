"""Findings about checkpoints: the best one of each M by the number that a report opens with, and how to get it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from raysearch.core.estimate import plus_minus
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.reporting.finding import Finding
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, HELD_OUT_LOSS, by_column
from raysearch.reporting.tables import numbers


def checkpoint_findings(analysis: Analysis) -> Iterator[Finding]:
    """Yield the checkpoint to take of each model and M; of each calibration too, where only losses are known."""
    quantity, frame = analysis.headline, analysis.frame
    is_loss = quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS)
    measured = frame[frame["comparable"] & frame[quantity.key].map(math.isfinite) & frame["removed"].map(bool)]
    badness = -quantity.sign * (measured["delta"] if quantity == CALIBRATION_LOSS else measured[quantity.key])
    labels = ["model", "remove", *(["calibration"] if is_loss else [])]
    for _, cells in measured.groupby(labels, observed=True):
        best = cells.loc[badness[cells.index].idxmin()]
        names = [f"calibration {best['calibration']}", f"searcher {best['searcher']}"]
        names += [f"draw {best['draw']}"] if best["draw"] else []
        names += [f"seed {best['seed']}"] if best["stochastic"] else []
        model = f" of {best['model']}" if frame["model"].nunique() > 1 else ""
        chosen = "" if len(cells) == 1 else f" The best of {len(cells)} searches, so it looks better than it is."
        mask, size = Mask(best["removed"]), count(int(best["remove"]), "layer")
        verdict = f"Without {size}{model}: {mask} ({', '.join(names)}), with {_number(analysis, best)}.{chosen}"
        search = best["search_id"]
        command = f"raysearch export {search} --out pruned-model{analysis.results.option}" if search else ""
        yield Finding("Which checkpoint?", verdict, "measured", "searches", leads=True, command=command)


def _number(analysis: Analysis, search: pd.Series) -> str:
    """Return the number that a search is the best by, beside the dense model's."""
    quantity = analysis.headline
    if quantity == CALIBRATION_LOSS:
        return f"{numbers.change(search['delta'])} {_noise(search['loss_error'])}{search['unit']} over the dense model"
    if quantity == HELD_OUT_LOSS:
        return f"a held-out loss of {numbers.loss(search['held_out'])} {search['unit']}"
    unit = " %" if quantity.unit == "%" else ""
    number = f"{quantity.title} {numbers.value(search[quantity.key], quantity)}{unit} {_noise(search[quantity.error])}"
    dense = by_column(analysis.results.dense.get(search["model"], {}), analysis.results).get(quantity.key)
    return number.rstrip() + (f" (dense {numbers.value(dense.value, quantity)}{unit})" if dense else "")


def _noise(error: float) -> str:
    return f"{plus_minus(error)} " if math.isfinite(error) else ""
