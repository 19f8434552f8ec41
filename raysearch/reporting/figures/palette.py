"""The palette of a study's figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raysearch.core import style
from raysearch.study.result import StudyResult


@dataclass(frozen=True)
class Palette:
    """The colour, shape and line of each searcher and the filling of each calibration, in every figure.

    Args:
        colours: By searcher.
        shapes: By searcher, so that points differ without their colours too; no two of 240 have both in common.
        lines: By searcher, the same for lines.
        fillings: By calibration.
    """

    colours: Mapping[str, str]
    shapes: Mapping[str, str]
    lines: Mapping[str, Any]
    fillings: Mapping[str, Any]

    @classmethod
    def of(cls, results: StudyResult) -> Palette:
        """Take them in the study's order, so that they stay where a search is added at the end."""
        searchers = dict.fromkeys(cell.searcher for cell in results.cells)
        calibrations = dict.fromkeys(cell.calibration for cell in results.cells)
        return cls(
            colours=dict(zip(searchers, itertools.cycle(style.COLOURS), strict=False)),
            shapes=dict(zip(searchers, itertools.cycle(style.SHAPES), strict=False)),
            lines=dict(zip(searchers, itertools.cycle(style.LINES), strict=False)),
            fillings=dict(zip(calibrations, itertools.cycle(style.FILLINGS), strict=False)),
        )

    def point(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's points, as options of Matplotlib."""
        return {"color": self.colours[searcher], "marker": self.shapes[searcher]}

    def line(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's lines, with points on them."""
        return {**self.point(searcher), "ls": self.lines[searcher]}

    def point_keys(self, searchers: Iterable[str], calibrations: Sequence[str] = (), dense: bool = False) -> list[Any]:
        """Return the entries of a legend: searchers, fillings of calibrations if there are several, the dense model."""
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
