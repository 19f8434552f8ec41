import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY
from raysearch.core.site import Sites
from raysearch.core.space import SPACES
from raysearch.core.trial import Trial, ranked
from raysearch.figures.search import Plots
from tests.tracking.simulated import greedy_search, simulate_losses
from tests.tracking.tracker_suite import ACCURACY, KL, MARGIN, search_of

scaled = pytest.mark.parametrize("name", ["best_so_far.png", "loss_by_size.png"])


def picture(name: str, plots: Plots) -> Figure:
    return next(figure for file, figure in plots.files() if file == name)


def draw(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png)
    return png.getvalue()


def texts_of(figure: Figure) -> set[str]:
    figure.draw_without_rendering()  # this sets the texts of ticks
    return {text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)}


def test_mask_map_shows_rounds_and_the_final_mask():
    search = greedy_search(n_layers=30, n_remove=5)
    figure = picture("mask_map.png", search.plot)
    assert draw(figure).startswith(b"\x89PNG")
    above, foot = figure.axes
    assert np.asarray(above.images[0].get_array()).shape[:2] == (5, 30)
    final = np.asarray(foot.images[0].get_array())[0]
    removed = [layer for layer in range(30) if tuple(final[layer]) != tuple(final[0])]
    assert tuple(removed) == search.removed
    assert {"final", "round", "best loss\nnats\nper token", f"{search.loss:.3f}"} <= texts_of(figure)


def test_halves_are_the_halves_of_cells():
    space = SPACES["pairs"]
    dense = Trial(0, 0, Mask(), 3.0, 0.0, None, cached=False)
    best = Trial(1, 1, Mask.of("1m", "2a"), 3.1, 0.1, None, cached=False)
    other = Trial(2, 1, Mask.of(3), 3.2, 0.2, None, cached=False)
    plots = Plots([dense, best, other], Sites.of_equal_layers(6), best.mask, PERPLEXITY, space)
    figure = picture("mask_map.png", plots)
    above, foot = (np.asarray(axes.images[0].get_array()) for axes in figure.axes)
    assert above.shape[:2] == foot.shape[:2] == (2, 6), "a row is the attentions, then the MLPs"
    removed = np.argwhere((foot != foot[0, 0]).any(axis=-1)).tolist()
    assert removed == [[0, 2], [1, 1]]
    assert (above[:, 3] == above[0, 3]).all(), "a whole layer has one colour"
    texts = texts_of(figure)
    assert {
        "Pairs removed in each round: 1 of 6",
        "layer (0 = next to the embedding; attention above, MLP below)",
    } <= texts
    sizes = texts_of(picture("loss_by_size.png", plots))
    assert {"Best loss by number of pairs removed", "pairs removed"} <= sizes


def test_mask_map_takes_long_searches_of_deep_models():
    rounds = [[Mask.of(n % 80, (n + 7) % 80)] for n in range(300)]
    figure = picture("mask_map.png", search_of(rounds, simulate_losses(80), 80, 2, "long").plot)
    width, height = figure.get_size_inches()
    assert width <= 16
    assert height <= 11
    draw(figure)


def test_best_so_far_names_sizes_dense_and_failures():
    search = greedy_search(n_layers=12, n_remove=3)
    failed = Trial(len(search.trials), 3, Mask.of(0, 1, 2), None, None, "out of memory", cached=False)
    shown = texts_of(picture("best_so_far.png", replace(search.plot, all_trials=[*search.trials, failed])))
    assert f"3 removed: best {search.loss:.3f} (target)" in shown
    assert {"dense: 2.800", "failed (1)", "loss (nats per token)", "perplexity"} <= shown


def test_loss_by_size_is_a_line_from_the_dense_model_to_m():
    search = greedy_search(n_layers=12, n_remove=3)
    figure = picture("loss_by_size.png", search.plot)
    assert {"Best loss by number of layers removed", "layers removed", "perplexity"} <= texts_of(figure)
    (line,) = figure.axes[0].get_lines()
    points = np.asarray(line.get_xydata()).tolist()
    assert points == [[0, 2.8], *([len(trial.mask), trial.loss] for trial in search.path)]


def test_loss_by_size_ends_with_the_final_mask_even_if_another_has_a_lower_loss():
    search = greedy_search(n_layers=12, n_remove=3)
    final = max((trial for trial in search.trials if len(trial.mask) == 3), key=lambda trial: trial.loss or 0)
    (line,) = picture("loss_by_size.png", replace(search.plot, final_mask=final.mask)).axes[0].get_lines()
    assert np.asarray(line.get_xydata())[-1].tolist() == [3, final.loss]


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [Trial(0, 0, Mask(), 2.8, 0.0, None, False)],
        *([Trial(1, 1, Mask.of(0), loss, loss, None, False)] for loss in (None, float("inf"), 3.0)),
    ],
    ids=["none", "dense", "failed", "infinite", "one"],
)
def test_figures_of_few_trials_can_be_drawn(trials):
    for _, figure in Plots(trials, Sites.of_equal_layers(4), Mask.of(0), PERPLEXITY).files():
        draw(figure)


@pytest.mark.parametrize("measure", [MARGIN, ACCURACY], ids=lambda measure: measure.readout)
@scaled
def test_the_right_hand_scale_is_the_readout(name, measure):
    figure = picture(name, greedy_search(12, 3, measure=measure).plot)
    assert {f"loss ({measure.unit})", measure.readout} <= texts_of(figure)
    (axes,) = figure.axes
    (right,) = axes.child_axes
    ticks = [(tick.get_loc(), float(tick.label2.get_text())) for tick in right.yaxis.get_major_ticks()]
    assert len(ticks) > 2
    assert [read for _, read in ticks] == pytest.approx([measure.read(loss) for loss, _ in ticks], abs=1e-3)


@scaled
def test_a_loss_without_a_readout_has_no_right_hand_scale(name):
    (axes,) = picture(name, greedy_search(12, 3, measure=KL).plot).axes
    assert axes.get_ylabel() == "loss (nats per token)"
    assert not axes.child_axes
    assert not axes.spines["right"].get_visible()


def test_equal_losses_are_in_mask_order():
    first, second = (Trial(index, 1, Mask.of(2 - index), 3.0, 0.2, None, False) for index in range(2))
    assert ranked([first, second]) == [second, first]


def test_a_result_draws_figures_that_notebooks_show():
    from matplotlib import pyplot

    search = greedy_search(n_layers=12, n_remove=3)
    before = pyplot.get_backend()
    pyplot.switch_backend("agg")
    try:
        axes = search.plot.path()
        assert axes.figure is pyplot.gcf(), "a notebook shows the figures of pyplot"
        assert axes.get_xlabel() == "layers removed"
        rounds, final = search.plot.masks()
        assert rounds.get_ylabel() == "round"
        assert final.get_xlabel().startswith("layer")
        assert search.plot.progress().get_title(loc="left") == "Best loss so far, removing 3 layers"
        assert len(pyplot.get_fignums()) == 3
        parts: Any = Figure(layout="constrained").subfigures(1, 2)
        left_part, right_part = parts
        assert search.plot.trials(left_part).get_title(loc="left") == f"All {len(search.trials)} masks that were scored"
        assert search.plot.path(right_part).figure is right_part
        assert len(pyplot.get_fignums()) == 3
        draw(left_part.figure)
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)
