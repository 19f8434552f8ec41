"""The figures of calibrations of a study that differ only by their number of samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pandas as pd

from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.figures.sizes import SizePanel, size_picture
from raysearch.reporting.analysis.agreement import masks_of, similarity

_BySamples = dict[str, dict[int, list[float]]]  # numbers by searcher and number of samples


def size_pictures(frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the curves over calibrations that differ only by their number of samples.

    Args:
        frame: The searches, see `cells_frame`.
        palette: The looks of the searchers.

    Returns:
        The pictures, one for each model with such calibrations.
    """
    searches = frame[frame["uses_objective"] & frame["comparable"]]
    return pictures("sizes", _panels(searches), partial(size_picture, palette))


def _panels(frame: pd.DataFrame) -> Iterator[tuple[str, SizePanel]]:
    """Yield the panels of each model, source of samples and M with several numbers of samples."""
    for (model, _, remove), cells in frame.groupby(["model", "source", "remove"], observed=True, sort=False):
        if cells["n_samples"].nunique() < 2:
            continue
        title = f"M = {remove}"
        if similarities := _similarities(cells):
            yield model, SizePanel(title, "Jaccard of two draws' masks", similarities)
        if losses := _losses_over_dense(cells):
            yield model, SizePanel(title, f"held-out loss over dense ({cells['unit'].iloc[0]})", losses)


def _similarities(cells: pd.DataFrame) -> _BySamples:
    """Return the similarities of the masks of each pair of draws."""
    similarities: _BySamples = {}
    masks = masks_of(cells, "searcher", "n_samples", "draw")
    for (searcher, samples), by_draw in masks.groupby(level=[0, 1], observed=True):
        if pairs := [similarity(*pair) for pair in itertools.combinations(by_draw, 2)]:
            similarities.setdefault(searcher, {})[int(samples)] = pairs
    return similarities


def _losses_over_dense(cells: pd.DataFrame) -> _BySamples:
    """Return the losses of masks on each other draw, minus the dense model's."""
    losses: _BySamples = {}
    dense = cells.groupby(["n_samples", "draw"], observed=True)["dense_loss"].first()
    for search in cells.sort_values("n_samples").itertuples():
        for draw, loss in search.held_out_by_draw.items():
            if (search.n_samples, draw) in dense:  # else no search on that draw has finished
                over_dense = loss - dense[search.n_samples, draw]
                losses.setdefault(search.searcher, {}).setdefault(int(search.n_samples), []).append(over_dense)
    return losses
