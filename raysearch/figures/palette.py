"""The looks of a study's searchers and calibrations, and their entries in legends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raysearch.figures import style


@dataclass(frozen=True)
class Palette:
    """The colour, shape and line of each searcher and the filling of each calibration, the same in every figure.

    Points and lines can be distinguished without their colours. No two of 240 searchers share both colour and shape.

    Args:
        colours: The colour of each searcher.
        shapes: The marker of each searcher's points.
        lines: The line style of each searcher.
        fillings: The fill style of the points of each calibration.
    """

    colours: Mapping[str, str]
    shapes: Mapping[str, str]
    lines: Mapping[str, Any]
    fillings: Mapping[str, Any]

    @classmethod
    def of(cls, searchers: Iterable[str], calibrations: Iterable[str]) -> Palette:
        """Return the palette of a study, in its order, so that a search added at the end changes no other look.

        Args:
            searchers: The searchers; the repetition of a name does not matter.
            calibrations: The calibrations, in the same way.

        Returns:
            The palette: a colour and a shape for each searcher, and a filling for each calibration.
        """
        distinct_searchers = dict.fromkeys(searchers)
        return cls(
            colours=dict(zip(distinct_searchers, itertools.cycle(style.COLOURS), strict=False)),
            shapes=dict(zip(distinct_searchers, itertools.cycle(style.SHAPES), strict=False)),
            lines=dict(zip(distinct_searchers, itertools.cycle(style.LINES), strict=False)),
            fillings=dict(zip(dict.fromkeys(calibrations), itertools.cycle(style.FILLINGS), strict=False)),
        )

    def point(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's points, as options of Matplotlib."""
        return {"color": self.colours[searcher], "marker": self.shapes[searcher]}

    def line(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's lines, with points on them."""
        return {**self.point(searcher), "ls": self.lines[searcher]}

    def point_keys(self, searchers: Iterable[str], calibrations: Sequence[str] = (), dense: bool = False) -> list[Any]:
        """Return the entries of a legend of points.

        Args:
            searchers: The searchers.
            calibrations: The calibrations, whose fillings are shown if there are several.
            dense: Whether the dense model has an entry.

        Returns:
            Matplotlib's artists, one for each entry.
        """
        from matplotlib.lines import Line2D

        entry = partial(Line2D, [], [], ls="", ms=7)
        keys = [entry(label=style.short(name, 40), **self.point(name)) for name in searchers]
        if len(calibrations) > 1:
            keys += [
                entry(marker="o", color=style.INK, fillstyle=self.fillings[name], label=style.short(name, 40))
                for name in calibrations
            ]
        return [*keys, entry(marker="*", color=style.INK, label="dense", ms=11)] if dense else keys

    def line_keys(self, searchers: Iterable[str]) -> list[Any]:
        """Return the entries of a legend of lines, each searcher once."""
        from matplotlib.lines import Line2D

        return [
            Line2D([], [], ms=5, lw=1.8, label=style.short(name, 40), **self.line(name))
            for name in dict.fromkeys(searchers)
        ]
