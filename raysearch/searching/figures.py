"""Pictures of a search, drawn from its trials: which layers went, how the loss fell, what each layer more costs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysearch.core import style
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.searching.trial import Trial, best_by_size, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP = 5
_MAX_LABELLED = 40
_MAX_SIZES_NAMED = 8
_Numbers = NDArray[np.float64]
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": style.SMALL, "labelcolor": style.INK}


@dataclass(frozen=True)
class Plots:
    """The figures of a search as Matplotlib axes: ``result.plot.path()``; `seen` are all of its trials.

    Each takes a figure or a subfigure to draw in; without one pyplot makes a new one, which a notebook shows.
    """

    seen: Sequence[Trial] = field(repr=False)
    n_layers: int
    found: Mask
    measure: Measure

    def files(self) -> Iterator[tuple[str, Figure]]:
        """Yield the figures that are kept with a search, each with its file's name.

        They are drawn without pyplot, so nothing global is touched and any thread may draw.
        """
        from matplotlib.figure import Figure

        width = min(max(3.2 + 0.2 * self.n_layers, 8.0), 16.0)
        for name, draw, size in (
            ("mask_map.png", self.masks, (width, self._height_of_rounds + 2.0)),
            ("best_so_far.png", self.progress, (9.0, 5.0)),
            ("loss_by_size.png", self.path, (9.0, 5.0)),
        ):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            yield name, figure

    def path(self, figure: Figure | None = None) -> Axes:
        """Draw the loss of the best mask of each number of layers, from the dense model to the mask that was found."""
        axes: Axes = (figure or _shown(7.0, 4.0)).subplots()
        dense, final = ([trial for trial in self.seen if trial.mask == mask] for mask in (Mask(), self.found))
        _, sizes, losses = _scored([*dense, *best_by_size(self.seen, len(self.found) - 1), *final[:1]])
        axes.plot(sizes, losses, color=style.ORANGE, marker="o", lw=2)
        self._finish_by_size(axes, "Best loss by number of layers removed")
        return axes

    def masks(self, figure: Figure | None = None) -> tuple[Axes, Axes]:
        """Draw which layers the best masks of each round removed, round below round, and the final mask at the foot.

        A round is read by its largest masks, which it sets out to find. Its best mask is in full colour; a paler cell
        is a layer that the best one keeps and others of the `TOP` best remove, the darker the more of them.
        """
        from matplotlib.patches import Patch

        rounds = _best_by_round(self.seen)
        final = next((trial for trial in self.seen if trial.mask == self.found and trial.loss is not None), None)
        figure = figure or _shown(9.0, 4.5)
        above, foot = figure.subplots(2, 1, sharex=True, height_ratios=(self._height_of_rounds, 0.34))
        title = f"Layers removed in each round: {len(self.found)} of {self.n_layers}"
        figure.suptitle(title, color=style.INK, weight="bold")
        _draw_rounds(above, rounds, self.n_layers, self.measure)
        _draw_final(foot, final, self.n_layers)
        keys: dict[Any, str] = {style.BLUE: "removed by the best mask of the round"}
        if any(len(top) > 1 for top in rounds.values()):
            keys[_tint(0.5)] = f"removed by others of its {TOP} best (darker: by more)"
        keys |= {style.ORANGE: "final mask", style.PALE: "kept"}
        handles = [Patch(color=colour, label=label) for colour, label in keys.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, **_LEGEND)
        return above, foot

    def progress(self, figure: Figure | None = None) -> Axes:
        """Draw how the loss came down with the evaluations: a dot a trial, the best so far of each mask size a line.

        The line of M is the bold one. Masks that were screened are rings, at their estimates. The scale is chosen for
        the better masks; those that lose far more are drawn as triangles at its upper edge.
        """
        from matplotlib import colormaps

        figure = figure or _shown(8.0, 4.0)
        axes: Axes = figure.subplots()
        places, sizes, losses = _scored(self.seen)
        low, high = style.within(losses)
        known = [int(size) for size in np.unique(sizes) if size]
        for number, size in enumerate(known):
            target, mine = size == len(self.found), sizes == size
            colour = style.ORANGE if target else colormaps[style.SIZES](0.15 + 0.8 * number / max(len(known) - 1, 1))
            inside, above = mine & (losses <= high), places[mine & (losses > high)]
            axes.scatter(places[inside], losses[inside], s=13, color=colour, alpha=0.35, linewidths=0)
            edge = [high] * len(above)
            axes.scatter(above, edge, s=18, marker="^", color=colour, alpha=0.4, linewidths=0, clip_on=False)
            best = np.minimum.accumulate(losses[mine])
            named = target or len(known) <= _MAX_SIZES_NAMED or number in (0, len(known) - 1)
            label = f"{size} removed: best {best[-1]:.3f}{' (target)' if target else ''}" if named else None
            axes.step(places[mine], best, where="post", color=colour, lw=2.4 if target else 1.3, label=label)
        if (dense := losses[sizes == 0]).size:
            axes.axhline(dense[0], color=style.INK, ls="--", lw=1.1, label=f"dense: {dense[0]:.3f}")
        failed = [trial.index for trial in self.seen if trial.loss is None and trial.screened is None]
        estimates = [(trial.index, trial.screened.loss) for trial in self.seen if trial.screened is not None]
        if shown := [point for point in estimates if point[1] <= high]:
            indices, guesses = zip(*shown, strict=True)
            label = f"screened ({len(estimates)}): an estimate"
            axes.scatter(indices, guesses, s=13, facecolors="none", edgecolors=style.GREY, linewidths=0.6, label=label)
        if failed:
            label = f"failed ({len(failed)})"
            axes.scatter(failed, [low] * len(failed), s=22, marker="x", color=style.RED, label=label, clip_on=False)
        axes.set_ylim(low, high)
        title = f"Best loss so far, removing {len(self.found)} layers"
        self._finish(axes, title, "evaluations asked for by the searcher")
        if n_above := int(((losses > high) & (sizes > 0)).sum()):
            label = f"{count(n_above, 'mask')} above the scale"
            axes.plot([], [], "^", color=style.GREY, ms=4, label=label)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right upper", **_LEGEND)
        return axes

    def trials(self, figure: Figure | None = None) -> Axes:
        """Draw every mask that was scored by its number of layers, and through the best of each a line."""
        axes: Axes = (figure or _shown(7.0, 4.0)).subplots()
        _, sizes, losses = _scored(self.seen)
        low, high = style.within(losses)
        inside = losses <= high
        for mine, colour in ((sizes != len(self.found), style.BLUE), (sizes == len(self.found), style.ORANGE)):
            axes.scatter(sizes[inside & mine], losses[inside & mine], s=18, color=colour, alpha=0.45, linewidths=0)
        best = {size: losses[sizes == size].min() for size in np.unique(sizes[inside]) if size}
        axes.plot([*best], [*best.values()], color=style.INK, lw=1.2, label="the best of each number")
        axes.set_ylim(low, high)
        self._finish_by_size(axes, f"All {len(losses)} masks that were scored")
        axes.legend(**_LEGEND)
        return axes

    @property
    def _height_of_rounds(self) -> float:
        return min(max(0.28 * len(_best_by_round(self.seen)), 1.2), 8.5)

    def _finish_by_size(self, axes: Axes, title: str) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        self._finish(axes, title, "layers removed")

    def _finish(self, axes: Axes, title: str, x_label: str) -> None:
        measure = self.measure
        axes.set_title(style.plain(title), color=style.INK, weight="bold", loc="left")
        axes.set_xlabel(x_label, color=style.INK)
        axes.set_ylabel(style.plain(f"loss ({measure.unit})"), color=style.INK)
        style.finish(axes, "y")
        if measure.readout is not None:
            right = axes.secondary_yaxis("right")
            right.set_ylabel(style.plain(measure.readout), color=style.INK)
            right.yaxis.set_major_formatter(lambda loss, _: _rounded(measure.read(loss)))
            right.tick_params(colors=style.INK, length=3)
            right.spines[:].set_visible(False)


def _shown(width: float, height: float) -> Figure:
    """Return a figure of pyplot's, which notebooks show at the end of a cell."""
    from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), layout="constrained")


def _draw_rounds(axes: Axes, rounds: Mapping[int, Sequence[Trial]], n_layers: int, measure: Measure) -> None:
    few = len(rounds) <= _MAX_LABELLED
    cells = []
    for row, top in enumerate(rounds.values()):
        removals = Counter(layer for trial in top for layer in trial.mask)
        tints = {layer: _tint(times / len(top)) for layer, times in removals.items()}
        cells.append(tints | dict.fromkeys(top[0].mask, style.BLUE))
        if few:
            axes.text(n_layers - 0.2, row, f"{top[0].loss:.3f}", va="center", fontsize=style.SMALL, color=style.INK)
    _draw_cells(axes, cells or [{}], n_layers, ruled=few)
    if few:
        unit = measure.unit.replace(" per ", "\nper ")
        axes.text(n_layers - 0.2, -0.62, f"best loss\n{unit}", va="bottom", fontsize=7, color=style.GREY)
    shown, numbers = _every(len(cells) or 1, 20), list(rounds) or [0]
    axes.set_yticks(shown, [str(numbers[row]) for row in shown])
    axes.set_ylabel("round", color=style.INK)
    axes.tick_params(axis="x", labelbottom=False)


def _draw_final(axes: Axes, final: Trial | None, n_layers: int) -> None:
    removed = final.mask if final else Mask()
    _draw_cells(axes, [dict.fromkeys(removed, style.ORANGE)], n_layers)
    for layer in removed:
        axes.text(layer, 0, str(layer), ha="center", va="center", fontsize=7, color=style.WHITE, weight="bold")
    if final is not None:
        look: dict[str, Any] = {"va": "center", "fontsize": style.SMALL, "color": style.ORANGE, "weight": "bold"}
        axes.text(n_layers - 0.2, 0, f"{final.loss:.3f}", **look)
    axes.set_yticks([0], ["final" if final else "none yet"])
    axes.set_xticks(range(0, n_layers, 1 if n_layers <= 32 else 5 if n_layers > 60 else 2))
    axes.set_xlabel("layer (0 = next to the embedding)", color=style.INK)


def _draw_cells(axes: Axes, rows: Sequence[Mapping[int, Any]], n_layers: int, ruled: bool = True) -> None:
    """Draw rows of cells, a cell a layer, by the colours of those that are not kept; `ruled` parts the rows too."""
    from matplotlib.colors import to_rgb

    colours = [[to_rgb(row.get(layer, style.PALE)) for layer in range(n_layers)] for row in rows]
    extent = (-0.5, n_layers - 0.5, len(rows) - 0.5, -0.5)
    axes.imshow(colours, aspect="auto", interpolation="nearest", extent=extent)
    bottom = len(rows) if ruled else 0
    axes.vlines([layer - 0.5 for layer in range(1, n_layers)], -0.5, bottom - 0.5, color=style.WHITE, lw=0.8)
    axes.hlines([row - 0.5 for row in range(1, bottom)], -0.5, n_layers - 0.5, color=style.WHITE, lw=1.4)
    style.bare(axes, style.SMALL)


def _scored(trials: Iterable[Trial]) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Return the place, the number of layers and the loss of each trial that has a finite loss."""
    finite = [trial for trial in trials if trial.loss is not None and math.isfinite(trial.loss)]
    scored = [(trial.index, len(trial.mask), trial.loss) for trial in finite]
    places, sizes, losses = np.array(scored, np.float64).reshape(-1, 3).T
    return places, sizes, losses


def _best_by_round(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """The `TOP` best of the largest masks of each round, best first; rounds where all failed are left out."""
    by_round = defaultdict[int, list[Trial]](list)
    for trial in ranked(trials):
        by_round[trial.round].append(trial)
    best = {}
    for number in sorted(by_round.keys() - {0}):  # that of the dense model
        largest = max(len(trial.mask) for trial in by_round[number])
        best[number] = [trial for trial in by_round[number] if len(trial.mask) == largest][:TOP]
    return best


def _tint(share: float) -> tuple[float, float, float]:
    """Blue at up to 60 % of its strength, so that no tint is taken for the full colour."""
    return style.blend(style.BLUE, 0.1 + 0.5 * share)


def _every(n_rows: int, at_most: int) -> list[int]:
    """Row numbers to label: all if they are few, else at a round interval."""
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    step = next((step for step in steps if n_rows / step <= at_most), n_rows)
    return [row for row in range(n_rows) if (row + 1) % step == 0 or row == 0]


def _rounded(number: float) -> str:
    """Three significant digits, ``24.5`` or ``22,000``."""
    number = round(number, 9) + 0.0  # neither -0 nor the dust of a subtraction
    return f"{float(f'{number:.3g}'):,.0f}" if 100 <= number < 1e7 else f"{number:.3g}"
