"""The figure of the number of samples: how similar the masks of two draws are, and their losses on other samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid
from raysearch.figures.picture import Picture
from raysearch.text import numbers


@dataclass(frozen=True)
class SizePanel:
    """One number of pairs of draws, by the number of samples.

    Args:
        title: The title.
        label: The name of the number.
        values: The numbers by searcher and number of samples, one per pair of draws.
    """

    title: str
    label: str
    values: Mapping[str, Mapping[int, Sequence[float]]]


def size_picture(palette: Palette, name: str, model: str, panels: Sequence[SizePanel]) -> Picture:
    """Draw the means of numbers by the number of samples, a line per searcher, and a dash for each pair of draws.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    figure, all_axes = grid(len(panels), 3.0)
    for axes, panel in zip(all_axes, panels, strict=True):
        for searcher, by_samples in panel.values.items():
            means = [fmean(values) for values in by_samples.values()]
            axes.plot(list(by_samples), means, ms=5, lw=1.6, **palette.line(searcher))
            for samples, values in by_samples.items():
                axes.plot([samples] * len(values), values, "_", color=palette.colours[searcher], ms=6, alpha=0.6)
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = sorted({samples for by_samples in panel.values.values() for samples in by_samples})
        axes.set_xticks(ticks, [numbers.amount(tick) for tick in ticks])
        style.name_axes(axes, panel.title, "samples (log scale)", panel.label)
        style.finish(axes)
    style.legend(figure, palette.line_keys(searcher for panel in panels for searcher in panel.values))
    caption = (
        "The calibrations differ in their number of samples only. Left: the similarity of the masks that a searcher "
        "finds on two draws; it is 1 for equal masks. Right: the loss of its masks on the other draws, minus the "
        "dense model's loss. Lines are means, and each dash is a pair of draws."
    )
    return Picture(name, f"{model}: how many samples a calibration needs", caption, figure)
