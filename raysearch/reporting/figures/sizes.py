"""How masks depend on the number of samples: how alike those of two draws are, and their losses on other samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.picture import Palette, Picture, grid, pictures
from raysearch.reporting.stats.agreement import masks_of, similarity
from raysearch.reporting.tables import numbers

#: A title, what is drawn, and a number for each pair of draws by searcher and samples: a panel.
_Curves = tuple[str, str, Mapping[str, Mapping[int, Sequence[float]]]]


def size_pictures(frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the curves over calibrations that differ by their number of samples alone."""
    return pictures("sizes", _panels(frame[frame["uses_objective"] & frame["comparable"]]), partial(_picture, palette))


def _panels(frame: pd.DataFrame) -> Iterator[tuple[str, _Curves]]:
    for (model, _, remove), cells in frame.groupby(["model", "source", "remove"], observed=True, sort=False):
        if cells["n_samples"].nunique() < 2:
            continue
        alike: dict[str, dict[int, list[float]]] = {}
        masks = masks_of(cells, "searcher", "n_samples", "draw")
        for (searcher, samples), drawn in masks.groupby(level=[0, 1], observed=True):
            if pairs := [similarity(*pair) for pair in itertools.combinations(drawn, 2)]:
                alike.setdefault(searcher, {})[int(samples)] = pairs
        dense = cells.groupby(["n_samples", "draw"], observed=True)["dense_loss"].first()
        losses: dict[str, dict[int, list[float]]] = {}
        for one in cells.sort_values("n_samples").itertuples():
            for draw, loss in one.held_out_by_draw.items():
                if (one.n_samples, draw) in dense:  # else no search on that draw has finished
                    above = loss - dense[one.n_samples, draw]
                    losses.setdefault(one.searcher, {}).setdefault(int(one.n_samples), []).append(above)
        unit = cells["unit"].iloc[0]
        for what, points in (("Jaccard of two draws' masks", alike), (f"held-out loss over dense ({unit})", losses)):
            if points:
                yield model, (f"M = {remove}", what, points)


def _picture(palette: Palette, name: str, model: str, panels: list[_Curves]) -> Picture:
    figure, places = grid(len(panels), 3.0)
    for axes, (title, what, points) in zip(places, panels, strict=True):
        for searcher, by_samples in points.items():
            means = [fmean(several) for several in by_samples.values()]
            axes.plot(list(by_samples), means, ms=5, lw=1.6, **palette.line(searcher))
            for samples, several in by_samples.items():
                axes.plot([samples] * len(several), several, "_", color=palette.colours[searcher], ms=6, alpha=0.6)
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = sorted({samples for by_samples in points.values() for samples in by_samples})
        axes.set_xticks(ticks, [numbers.amount(one) for one in ticks])
        style.name_axes(axes, title, "samples (log scale)", what)
        style.finish(axes)
    style.legend(figure, palette.line_keys(searcher for *_, points in panels for searcher in points))
    caption = (
        "Calibrations that differ by their number of samples alone. Left: how alike the masks are that a searcher "
        "finds by two draws, 1 for the same. Right: the loss of its masks on the other draws, over the dense model's. "
        "Lines are means, dashes pairs of draws."
    )
    return Picture(name, f"{model}: how many samples a calibration needs", caption, figure)
