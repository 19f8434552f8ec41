"""Pictures of a search, drawn from its trials: which layers went, how the loss came down, what each layer more costs.

Matplotlib is imported when a figure is asked for, and used without pyplot, so nothing global is touched and any thread
may draw. Save a figure with ``figure.savefig(path)``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.reporting.figures.style import BLUE, GREY, INK, ORANGE, PALE, RED, finish
from raysearch.search.result import Trial, best_by_size, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP = 5
_MAX_LABELLED = 40
_MAX_SIZES_NAMED = 8


def mask_map(trials: Sequence[Trial], n_layers: int, n_remove: int, measure: Measure) -> Figure:
    """Which layers the best masks of each round removed, round below round, and the final mask at the foot.

    A round is read by its largest masks, since those are what it sets out to find. Its best mask is in full colour; a
    paler cell is a layer that the best one keeps and others of the `TOP` best remove, the darker the more of them.

    Args:
        trials: Every trial of the search.
        n_layers: N, the layers of the dense model.
        n_remove: M, the layers that the final mask removes.
        measure: What losses are counted in.
    """
    from matplotlib.figure import Figure

    rounds = _best_by_round(trials)
    final = _best(trial for trial in trials if len(trial.mask) == n_remove)
    width = min(max(3.2 + 0.2 * n_layers, 8.0), 16.0)
    height = min(max(0.28 * len(rounds), 1.2), 8.5)
    figure = Figure(figsize=(width, height + 2.0), layout="constrained")
    above, foot = figure.subplots(2, 1, sharex=True, height_ratios=(height, 0.34))
    figure.suptitle(f"Layers removed in each round: {n_remove} of {n_layers}", color=INK, weight="bold")
    _draw_rounds(above, rounds, n_layers, measure)
    _draw_final(foot, final, n_layers)
    _explain_cells(figure, shared=any(len(top) > 1 for top in rounds.values()))
    return figure


def _draw_rounds(axes: Axes, rounds: dict[int, list[Trial]], n_layers: int, measure: Measure) -> None:
    from matplotlib.colors import to_rgb

    cells = [[to_rgb(PALE)] * n_layers for _ in rounds] or [[to_rgb(PALE)] * n_layers]
    for colours, top in zip(cells, rounds.values(), strict=False):
        removals = Counter(layer for trial in top for layer in trial.mask)
        for layer, times in removals.items():
            colours[layer] = to_rgb(BLUE) if layer in top[0].mask else _tint(times / len(top))
    axes.imshow(cells, aspect="auto", interpolation="nearest", extent=(-0.5, n_layers - 0.5, len(cells) - 0.5, -0.5))
    axes.set_ylabel("round", color=INK)
    shown = _every(len(cells), 20)
    numbers = list(rounds) or [0]
    axes.set_yticks(shown, [str(numbers[row]) for row in shown])
    if len(cells) <= _MAX_LABELLED:
        _rule(axes, n_layers, len(cells))
        for row, top in enumerate(rounds.values()):
            axes.text(n_layers - 0.2, row, f"{top[0].loss:.3f}", va="center", fontsize=8, color=INK)
        unit = measure.unit.replace(" per ", "\nper ")
        axes.text(n_layers - 0.2, -0.62, f"best loss\n{unit}", va="bottom", fontsize=7, color=GREY)
    else:
        _rule(axes, n_layers, 0)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.tick_params(axis="x", labelbottom=False)
    axes.spines[:].set_visible(False)


def _draw_final(axes: Axes, final: Trial | None, n_layers: int) -> None:
    from matplotlib.colors import to_rgb

    removed = final.mask if final else Mask()
    axes.imshow(
        [[to_rgb(ORANGE if layer in removed else PALE) for layer in range(n_layers)]],
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, n_layers - 0.5, 0.5, -0.5),
    )
    _rule(axes, n_layers, 1)
    for layer in removed:
        axes.text(layer, 0, str(layer), ha="center", va="center", fontsize=7, color="white", weight="bold")
    if final is not None:
        axes.text(n_layers - 0.2, 0, f"{final.loss:.3f}", va="center", fontsize=8, color=ORANGE, weight="bold")
    axes.set_yticks([0], ["final" if final else "none yet"])
    axes.set_xticks(range(0, n_layers, 1 if n_layers <= 32 else 5 if n_layers > 60 else 2))
    axes.set_xlabel("layer (0 = next to the embedding)", color=INK)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)


def _explain_cells(figure: Figure, shared: bool) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=BLUE, label="removed by the best mask of the round")]
    if shared:
        handles.append(Patch(color=_tint(0.5), label=f"removed by others of its {TOP} best (darker: by more)"))
    handles += [Patch(color=ORANGE, label="final mask"), Patch(color=PALE, label="kept")]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)


def best_so_far(trials: Sequence[Trial], n_remove: int, measure: Measure) -> Figure:
    """How the loss came down with the evaluations: every trial a dot, the best so far of each mask size a line.

    The scale is chosen for the better masks; those that lose far more are drawn as triangles at its upper edge.

    Args:
        trials: Every trial of the search.
        n_remove: M, the layers that the final mask removes; its line is the bold one.
        measure: What losses are counted in.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    scored = [(t.index, t.loss, len(t.mask)) for t in trials if t.loss is not None and math.isfinite(t.loss)]
    masks = [point for point in scored if point[2] > 0]
    dense = next((loss for _, loss, size in scored if size == 0), None)
    sizes = sorted({size for *_, size in masks})
    palette = colormaps["viridis_r"]
    low, high = _scale([loss for _, loss, _ in masks], dense)
    for place, size in enumerate(sizes):
        target = size == n_remove
        colour = ORANGE if target else palette(0.15 + 0.8 * place / max(len(sizes) - 1, 1))
        points = [(index, loss) for index, loss, removed in masks if removed == size]
        inside = [(x, y) for x, y in points if y <= high]
        axes.scatter(*_columns(inside), s=13, color=colour, alpha=0.35, linewidths=0)
        outside = [x for x, y in points if y > high]
        axes.scatter(
            outside, [high] * len(outside), s=18, marker="^", color=colour, alpha=0.4, linewidths=0, clip_on=False
        )
        best = list(itertools.accumulate(points, lambda before, new: (new[0], min(before[1], new[1]))))
        named = target or len(sizes) <= _MAX_SIZES_NAMED or size in (sizes[0], sizes[-1])
        label = f"{size} removed: best {best[-1][1]:.3f}" + (" (target)" if target else "")
        axes.step(
            *_columns(best), where="post", color=colour, lw=2.4 if target else 1.3, label=label if named else None
        )
    if dense is not None:
        axes.axhline(dense, color=INK, ls="--", lw=1.1, label=f"dense: {dense:.3f}")
    failed = [t.index for t in trials if t.loss is None]
    if failed:
        axes.scatter(
            failed, [low] * len(failed), s=22, marker="x", color=RED, label=f"failed ({len(failed)})", clip_on=False
        )
    axes.set_ylim(low, high)
    _finish_axes(
        axes, measure, f"Best loss so far, removing {n_remove} layers", "evaluations asked for by the searcher"
    )
    if above := sum(loss > high for _, loss, _ in masks):
        note = f"▲ {above} masks above the scale" if above > 1 else "▲ 1 mask above the scale"
        axes.set_title(note, color=GREY, fontsize=8, loc="right")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK)
    return figure


def loss_by_size(trials: Sequence[Trial], n_remove: int, measure: Measure) -> Figure:
    """Draw the loss of the best mask of each number of layers, beginning with the dense model.

    Args:
        trials: Every trial of the search.
        n_remove: M, the largest number of layers to show.
        measure: What losses are counted in.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    dense = [trial for trial in trials if not trial.mask]
    scored = [(len(trial.mask), trial.loss) for trial in [*dense, *best_by_size(trials, n_remove)]]
    points = [(size, loss) for size, loss in scored if loss is not None and math.isfinite(loss)]
    axes.plot(*_columns(points), color=ORANGE, marker="o", lw=2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish_axes(axes, measure, "Best loss by number of layers removed", "layers removed")
    return figure


def _finish_axes(axes: Axes, measure: Measure, title: str, x_label: str) -> None:
    axes.set_title(title, color=INK, weight="bold", loc="left")
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(f"loss ({measure.unit})", color=INK)
    finish(axes, "y")
    if measure.readout is not None:
        right = axes.secondary_yaxis("right")
        right.set_ylabel(measure.readout, color=INK)
        right.yaxis.set_major_formatter(lambda loss, _: _rounded(measure.read(loss)))
        right.tick_params(colors=INK, length=3)
        right.spines[:].set_visible(False)


def _best(trials: Iterable[Trial]) -> Trial | None:
    return next(iter(ranked(trials)), None)


def _best_by_round(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """The `TOP` best of the largest masks of each round, best first; rounds where all failed are left out."""
    by_round: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.round > 0 and trial.loss is not None:
            by_round.setdefault(trial.round, []).append(trial)
    return {number: _top(by_round[number]) for number in sorted(by_round)}


def _top(trials: list[Trial]) -> list[Trial]:
    largest = max(len(trial.mask) for trial in trials)
    return ranked(trial for trial in trials if len(trial.mask) == largest)[:TOP]


def _tint(share: float) -> tuple[float, float, float]:
    """Blue at up to 60 % of its strength, so that no tint is taken for the full colour."""
    from matplotlib.colors import to_rgb

    strength = 0.1 + 0.5 * share
    red, green, blue = (
        strength * full + (1 - strength) * pale for full, pale in zip(to_rgb(BLUE), to_rgb(PALE), strict=True)
    )
    return red, green, blue


def _rule(axes: Axes, n_layers: int, n_rows: int) -> None:
    """White lines between the cells."""
    axes.vlines([layer - 0.5 for layer in range(1, n_layers)], -0.5, max(n_rows, 0) - 0.5, color="white", lw=0.8)
    axes.hlines([row - 0.5 for row in range(1, n_rows)], -0.5, n_layers - 0.5, color="white", lw=1.4)


def _every(count: int, at_most: int) -> list[int]:
    """Row numbers to label: all if they are few, else at a round interval."""
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    step = next((step for step in steps if count / step <= at_most), count)
    return [row for row in range(count) if step == 1 or (row + 1) % step == 0 or row == 0]


def _scale(losses: Sequence[float], dense: float | None) -> tuple[float, float]:
    """The range of losses to show: all the best, and as many of the others as do not flatten them."""
    known = sorted([*losses, *([] if dense is None else [dense])])
    if not known:
        return 0.0, 1.0
    middle, upper = known[len(known) // 2], known[-1 - len(known) // 20]
    high = min(upper, middle + 3 * (middle - known[0])) if middle > known[0] else upper
    pad = 0.04 * (high - known[0]) or 0.05
    return known[0] - pad, high + pad


def _rounded(number: float) -> str:
    """Three significant digits, ``24.5`` or ``22,000``."""
    number = round(number, 9) + 0.0  # neither -0 nor the dust of a subtraction
    return f"{float(f'{number:.3g}'):,.0f}" if 100 <= number < 1e7 else f"{number:.3g}"


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
