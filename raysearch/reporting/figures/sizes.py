"""The figure of the number of samples: how similar the masks of two draws are, and their losses on other samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import pandas as pd

from raysearch.core import style
from raysearch.reporting.analysis.agreement import masks_of, similarity
from raysearch.reporting.figures.picture import Palette, Picture, grid, pictures
from raysearch.text import numbers

#: A panel: its title, the label of its y axis, and the numbers of pairs of draws by searcher and number of samples.
_Curves = tuple[str, str, Mapping[str, Mapping[int, Sequence[float]]]]


def size_pictures(frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the curves over calibrations that differ only by their number of samples.

    Args:
        frame: The searches, see `cells_frame`.
        palette: The looks of the searchers.
    """
    return pictures("sizes", _panels(frame[frame["uses_objective"] & frame["comparable"]]), partial(_picture, palette))


def _panels(frame: pd.DataFrame) -> Iterator[tuple[str, _Curves]]:
    for (model, _, remove), cells in frame.groupby(["model", "source", "remove"], observed=True, sort=False):
        if cells["n_samples"].nunique() < 2:
            continue
        similarities: dict[str, dict[int, list[float]]] = {}
        masks = masks_of(cells, "searcher", "n_samples", "draw")
        for (searcher, samples), by_draw in masks.groupby(level=[0, 1], observed=True):
            if pairs := [similarity(*pair) for pair in itertools.combinations(by_draw, 2)]:
                similarities.setdefault(searcher, {})[int(samples)] = pairs
        dense = cells.groupby(["n_samples", "draw"], observed=True)["dense_loss"].first()
        losses: dict[str, dict[int, list[float]]] = {}
        for search in cells.sort_values("n_samples").itertuples():
            for draw, loss in search.held_out_by_draw.items():
                if (search.n_samples, draw) in dense:  # else no search on that draw has finished
                    above = loss - dense[search.n_samples, draw]
                    losses.setdefault(search.searcher, {}).setdefault(int(search.n_samples), []).append(above)
        unit = cells["unit"].iloc[0]
        title = f"M = {remove}"
        if similarities:
            yield model, (title, "Jaccard of two draws' masks", similarities)
        if losses:
            yield model, (title, f"held-out loss over dense ({unit})", losses)


def _picture(palette: Palette, name: str, model: str, panels: list[_Curves]) -> Picture:
    figure, places = grid(len(panels), 3.0)
    for axes, (title, label, points) in zip(places, panels, strict=True):
        for searcher, by_samples in points.items():
            means = [fmean(values) for values in by_samples.values()]
            axes.plot(list(by_samples), means, ms=5, lw=1.6, **palette.line(searcher))
            for samples, values in by_samples.items():
                axes.plot([samples] * len(values), values, "_", color=palette.colours[searcher], ms=6, alpha=0.6)
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = sorted({samples for by_samples in points.values() for samples in by_samples})
        axes.set_xticks(ticks, [numbers.amount(tick) for tick in ticks])
        style.name_axes(axes, title, "samples (log scale)", label)
        style.finish(axes)
    style.legend(figure, palette.line_keys(searcher for *_, points in panels for searcher in points))
    caption = (
        "Calibrations that differ by their number of samples alone. Left: how alike the masks are that a searcher "
        "finds by two draws, 1 for the same. Right: the loss of its masks on the other draws, over the dense model's. "
        "Lines are means, dashes pairs of draws."
    )
    return Picture(name, f"{model}: how many samples a calibration needs", caption, figure)
