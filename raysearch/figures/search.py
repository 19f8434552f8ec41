"""Figures of a search, drawn from its trials: what is removed, the progress of the loss, and the loss by size."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.measure import Measure
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import Trial, best_by_size, ranked
from raysearch.figures import style
from raysearch.text.numbers import count, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP = 5  #: how many of the best masks of a round the mask map shows
_MAX_LABELLED = 40  # with more rounds, their losses are not printed
_MAX_SIZES_NAMED = 8  # with more sizes, only some are in the legend
_Numbers = NDArray[np.float64]
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": style.SMALL, "labelcolor": style.INK}


@dataclass(frozen=True)
class Plots:
    """The figures of a search as Matplotlib axes: ``result.plot.path()``.

    Each method draws in the given figure or subfigure. If there is none, pyplot makes a new figure, which a notebook
    shows.

    Args:
        seen: All trials of the search.
        sites: The layers of the dense model.
        final_mask: The mask of the search.
        measure: The unit of the losses.
        space: What the masks remove.
    """

    all_trials: Sequence[Trial] = field(repr=False)
    sites: Sites
    final_mask: Mask
    measure: Measure
    space: Space = LAYERS

    def files(self) -> Iterator[tuple[str, Figure]]:
        """Yield the figures that are stored with a search, each with the name of its file.

        They are drawn without pyplot, so no global state changes, and any thread may draw.
        """
        from matplotlib.figure import Figure

        width = min(max(3.2 + 0.2 * len(self.sites), 8.0), 16.0)
        for name, draw, size in (
            ("mask_map.png", self.masks, (width, self._height_of_rounds + 2.0)),
            ("best_so_far.png", self.progress, (9.0, 5.0)),
            ("loss_by_size.png", self.path, (9.0, 5.0)),
        ):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            yield name, figure

    def path(self, figure: Figure | None = None) -> Axes:
        """Draw the loss of the best mask of each size, from the dense model to the final mask."""
        axes: Axes = (figure or _pyplot_figure(7.0, 4.0)).subplots()
        dense = [trial for trial in self.all_trials if trial.mask == Mask()]
        final = [trial for trial in self.all_trials if trial.mask == self.final_mask][:1]
        smaller = best_by_size(self.all_trials, self._target_size - 1, self.space)
        points = self._points([*dense, *smaller, *final])
        axes.plot(points.sizes, points.losses, color=style.ORANGE, marker="o", lw=2)
        self._finish_by_size(axes, f"Best loss by number of {self.space.plural} removed")
        return axes

    def masks(self, figure: Figure | None = None) -> tuple[Axes, Axes]:
        """Draw which layers the best masks of each round remove, a row for each round, and below them the final mask.

        Of each round, only its largest masks count. The layers of its best mask have the full colour. A paler cell is a
        layer that the best mask keeps and other masks of the `TOP` best remove; the more masks remove it, the darker.
        If masks have single halves, the upper half of a cell is the attention of the layer, and the lower half its MLP.
        """
        from matplotlib.patches import Patch

        rounds = self._best_by_round()
        scored = [trial for trial in self.all_trials if trial.loss is not None]
        final = next((trial for trial in scored if trial.mask == self.final_mask), None)
        figure = figure or _pyplot_figure(9.0, 4.5)
        above, foot = figure.subplots(2, 1, sharex=True, height_ratios=(self._height_of_rounds, 0.34))
        plural = self.space.plural
        total = self.space.total(self.sites)
        title = f"{plural[0].upper()}{plural[1:]} removed in each round: {self._target_size} of {total}"
        figure.suptitle(title, color=style.INK, weight="bold")
        _draw_rounds(above, rounds, self.sites, self.measure)
        _draw_final(foot, final, self.sites)
        keys: dict[Any, str] = {style.BLUE: "removed by the best mask of the round"}
        if any(len(top) > 1 for top in rounds.values()):
            keys[_tint(0.5)] = f"removed by others of its {TOP} best (darker: by more)"
        keys |= {style.ORANGE: "final mask", style.PALE: "kept"}
        handles = [Patch(color=colour, label=label) for colour, label in keys.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, **_LEGEND)
        return above, foot

    def progress(self, figure: Figure | None = None) -> Axes:
        """Draw the loss against the number of evaluations: a dot for each trial, and a line for the best of each size.

        The line of M is bold. Screened masks are rings, at their estimates. The scale fits the better masks; much worse
        masks are triangles at its upper edge.
        """
        figure = figure or _pyplot_figure(8.0, 4.0)
        axes: Axes = figure.subplots()
        points = self._points(self.all_trials)
        low, high = style.axis_limits(points.losses)
        self._draw_sizes(axes, points, high)
        if (dense := points.losses[points.sizes == 0]).size:
            axes.axhline(dense[0], color=style.INK, ls="--", lw=1.1, label=f"dense: {dense[0]:.3f}")
        _draw_screened(axes, self.all_trials, high)
        _draw_failed(axes, self.all_trials, low)
        axes.set_ylim(low, high)
        title = f"Best loss so far, removing {self._target_size} {self.space.plural}"
        self._finish(axes, title, "evaluations requested by the searcher")
        if n_above := int(((points.losses > high) & (points.sizes > 0)).sum()):
            label = f"{count(n_above, 'mask')} above the scale"
            axes.plot([], [], "^", color=style.GREY, ms=4, label=label)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right upper", **_LEGEND)
        return axes

    def _draw_sizes(self, axes: Axes, points: _Points, high: float) -> None:
        """Draw a dot for each mask, and a line for the best mask so far of each size.

        Args:
            axes: The panel.
            points: The trials with a loss.
            high: The end of the scale; masks above it are triangles at its edge.
        """
        from matplotlib import colormaps

        pruned_sizes = [int(size) for size in np.unique(points.sizes) if size]
        last = len(pruned_sizes) - 1
        for number, size in enumerate(pruned_sizes):
            is_target = size == self._target_size
            colour = style.ORANGE if is_target else colormaps[style.SIZES](0.15 + 0.8 * number / max(last, 1))
            has_size = points.sizes == size
            inside = has_size & (points.losses <= high)
            above = points.indices[has_size & (points.losses > high)]
            axes.scatter(points.indices[inside], points.losses[inside], s=13, color=colour, alpha=0.35, linewidths=0)
            edge = [high] * len(above)
            axes.scatter(above, edge, s=18, marker="^", color=colour, alpha=0.4, linewidths=0, clip_on=False)
            best = np.minimum.accumulate(points.losses[has_size])
            label = None
            if is_target or len(pruned_sizes) <= _MAX_SIZES_NAMED or number in (0, last):
                label = f"{size} removed: best {best[-1]:.3f}{' (target)' if is_target else ''}"
            width = 2.4 if is_target else 1.3
            axes.step(points.indices[has_size], best, where="post", color=colour, lw=width, label=label)

    def trials(self, figure: Figure | None = None) -> Axes:
        """Draw the loss of every scored mask by its size, and a line through the best of each size."""
        axes: Axes = (figure or _pyplot_figure(7.0, 4.0)).subplots()
        _, sizes, losses = self._points(self.all_trials)
        low, high = style.axis_limits(losses)
        inside = losses <= high
        is_target = sizes == self._target_size
        for points, colour in ((inside & ~is_target, style.BLUE), (inside & is_target, style.ORANGE)):
            axes.scatter(sizes[points], losses[points], s=18, color=colour, alpha=0.45, linewidths=0)
        best = {size: losses[sizes == size].min() for size in np.unique(sizes[inside]) if size}
        axes.plot([*best], [*best.values()], color=style.INK, lw=1.2, label="the best of each number")
        axes.set_ylim(low, high)
        self._finish_by_size(axes, f"All {len(losses)} masks that were scored")
        axes.legend(**_LEGEND)
        return axes

    @property
    def _height_of_rounds(self) -> float:
        return min(max(0.28 * len(self._best_by_round()), 1.2), 8.5)

    def _finish_by_size(self, axes: Axes, title: str) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        self._finish(axes, title, f"{self.space.plural} removed")

    def _finish(self, axes: Axes, title: str, x_label: str) -> None:
        measure = self.measure
        axes.set_title(style.plain(title), color=style.INK, weight="bold", loc="left")
        axes.set_xlabel(x_label, color=style.INK)
        axes.set_ylabel(style.plain(f"loss ({measure.unit})"), color=style.INK)
        style.finish(axes, "y")
        if measure.readout is not None:
            right = axes.secondary_yaxis("right")
            right.set_ylabel(style.plain(measure.readout), color=style.INK)
            right.yaxis.set_major_formatter(lambda loss, _: three_digits(measure.read(loss)))
            right.tick_params(colors=style.INK, length=3)
            right.spines[:].set_visible(False)

    @property
    def _target_size(self) -> int:
        """The size of the mask of the search."""
        return self.space.size_of(self.final_mask)

    def _points(self, trials: Iterable[Trial]) -> _Points:
        """Return the points of the trials that have a finite loss."""
        finite = [trial for trial in trials if trial.loss is not None and math.isfinite(trial.loss)]
        rows = [(trial.index, self.space.size_of(trial.mask), trial.loss) for trial in finite]
        return _Points(*np.array(rows, np.float64).reshape(-1, 3).T)

    def _best_by_round(self) -> dict[int, list[Trial]]:
        """Return the `TOP` best of the largest masks of each round, best first, without rounds in which all failed."""
        by_round = defaultdict[int, list[Trial]](list)
        for trial in ranked(self.all_trials):
            by_round[trial.round].append(trial)
        best = {}
        for number in sorted(by_round.keys() - {0}):  # round 0 is the dense model
            sizes = [self.space.size_of(trial.mask) for trial in by_round[number]]
            largest = [trial for trial, size in zip(by_round[number], sizes, strict=True) if size == max(sizes)]
            best[number] = largest[:TOP]
        return best


def _pyplot_figure(width: float, height: float) -> Figure:
    """Return a new figure of pyplot, which notebooks show at the end of a cell."""
    from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), layout="constrained")


def _draw_screened(axes: Axes, trials: Sequence[Trial], high: float) -> None:
    """Draw rings at the estimates of the screened masks that are not above the scale."""
    estimates = [(trial.index, trial.screened.loss) for trial in trials if trial.screened is not None]
    inside = [(index, estimate) for index, estimate in estimates if estimate <= high]
    if not inside:
        return
    indices, losses = zip(*inside, strict=True)
    label = f"screened ({len(estimates)}): an estimate"
    axes.scatter(indices, losses, s=13, facecolors="none", edgecolors=style.GREY, linewidths=0.6, label=label)


def _draw_failed(axes: Axes, trials: Sequence[Trial], low: float) -> None:
    """Draw crosses at the lower edge for the masks that failed."""
    failed = [trial.index for trial in trials if trial.loss is None and trial.screened is None]
    if failed:
        label = f"failed ({len(failed)})"
        axes.scatter(failed, [low] * len(failed), s=22, marker="x", color=style.RED, label=label, clip_on=False)


def _draw_rounds(axes: Axes, rounds: Mapping[int, Sequence[Trial]], sites: Sites, measure: Measure) -> None:
    is_labelled = len(rounds) <= _MAX_LABELLED
    cells: list[dict[Half, Any]] = []
    for row, top in enumerate(rounds.values()):
        removals = Counter(half for trial in top for half in trial.mask.all_halves)
        tints = {half: _tint(n_masks / len(top)) for half, n_masks in removals.items()}
        cells.append(tints | dict.fromkeys(top[0].mask.all_halves, style.BLUE))
        if is_labelled:
            axes.text(len(sites) - 0.2, row, f"{top[0].loss:.3f}", va="center", fontsize=style.SMALL, color=style.INK)
    _draw_cells(axes, cells or [{}], len(sites), ruled=is_labelled)
    if is_labelled:
        unit = measure.unit.replace(" per ", "\nper ")
        axes.text(len(sites) - 0.2, -0.62, f"best loss\n{unit}", va="bottom", fontsize=7, color=style.GREY)
    labelled_rows = _label_rows(len(cells) or 1, 20)
    numbers = list(rounds) or [0]
    axes.set_yticks(labelled_rows, [str(numbers[row]) for row in labelled_rows])
    axes.set_ylabel("round", color=style.INK)
    axes.tick_params(axis="x", labelbottom=False)


def _draw_final(axes: Axes, final: Trial | None, sites: Sites) -> None:
    removed = final.mask if final else Mask()
    _draw_cells(axes, [dict.fromkeys(removed.all_halves, style.ORANGE)], len(sites))
    place_of_part = {"attention": -0.25, "mlp": 0.25}  # in the row, whose height is 1
    places = [
        *((layer, 0.0) for layer in removed.layers),
        *((half.layer, place_of_part[half.part]) for half in removed.halves),
    ]
    for layer, place in places:
        size = 5 if place else 7
        axes.text(layer, place, str(layer), ha="center", va="center", fontsize=size, color=style.WHITE, weight="bold")
    if final is not None:
        font: dict[str, Any] = {"va": "center", "fontsize": style.SMALL, "color": style.ORANGE, "weight": "bold"}
        axes.text(len(sites) - 0.2, 0, f"{final.loss:.3f}", **font)
    axes.set_yticks([0], ["final" if final else "none yet"])
    axes.set_xticks(range(0, len(sites), _label_interval(len(sites))))
    halves = "; attention above, MLP below" if removed.halves else ""
    axes.set_xlabel(f"layer (0 = next to the embedding{halves})", color=style.INK)


def _label_interval(n_sites: int) -> int:
    """Return the interval between labelled sites."""
    if n_sites <= 32:
        return 1
    return 2 if n_sites <= 60 else 5


def _draw_cells(axes: Axes, rows: Sequence[Mapping[Half, Any]], n_layers: int, ruled: bool = True) -> None:
    """Draw rows of cells, one for each layer, with the colours of removed halves; `ruled` draws lines between rows."""
    from matplotlib.colors import to_rgb

    has_single_halves = any(
        row.get(Half(layer, "attention")) != row.get(Half(layer, "mlp")) for row in rows for layer in range(n_layers)
    )
    parts = PARTS if has_single_halves else PARTS[:1]
    colours = [
        [to_rgb(row.get(Half(layer, part), style.PALE)) for layer in range(n_layers)] for row in rows for part in parts
    ]
    extent = (-0.5, n_layers - 0.5, len(rows) - 0.5, -0.5)
    axes.imshow(colours, aspect="auto", interpolation="nearest", extent=extent)
    bottom = len(rows) if ruled else 0
    axes.vlines([layer - 0.5 for layer in range(1, n_layers)], -0.5, bottom - 0.5, color=style.WHITE, lw=0.8)
    axes.hlines([row - 0.5 for row in range(1, bottom)], -0.5, n_layers - 0.5, color=style.WHITE, lw=1.4)
    style.bare(axes, style.SMALL)


class _Points(NamedTuple):
    """The index, the size of the mask and the loss of trials, float64, [T] each."""

    indices: _Numbers
    sizes: _Numbers
    losses: _Numbers


def _tint(share: float) -> tuple[float, float, float]:
    """Return blue at up to 60 % of its strength, so that no tint looks like the full colour."""
    return style.blend(style.BLUE, 0.1 + 0.5 * share)


def _label_rows(n_rows: int, at_most: int) -> list[int]:
    """Return the rows to label: all if there are few, else one in 2, 5, 10, …."""
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    step = next((step for step in steps if n_rows / step <= at_most), n_rows)
    return [row for row in range(n_rows) if (row + 1) % step == 0 or row == 0]
