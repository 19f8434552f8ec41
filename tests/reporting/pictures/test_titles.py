"""Texts of figures stay inside them, for any names of models, calibrations and tasks."""

from __future__ import annotations

import itertools
from dataclasses import replace

from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from raysearch.core.estimate import Estimate
from raysearch.core.site import Sites
from raysearch.figures.picture import fix_layout
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.sections import sections
from raysearch.reporting.sweep import sweep_figure
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, outcome, study
from tests.searching.test_sweep import FIRST, sweep_of
from tests.tracking.simulated import greedy_search

PATH = "/home/somebody/projects/pruning/models/quantised/gemma-3-270m-it-q4_k_m-from-the-hub.gguf"
WORDS = "perplexity on the minutes of the meetings of our own committee, 16 windows of 512 tokens, seed 0"


def texts_of(figure: Figure) -> list[Text]:
    """Return the texts of a figure after its layout, without those of ticks, some of which are never drawn."""
    fix_layout(figure, figure.dpi)
    FigureCanvasAgg(figure).draw()
    ticks = [axis.get_ticklabels() for axis in figure.findobj(Axis) if isinstance(axis, Axis)]
    skipped = {*itertools.chain(*ticks)}
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text not in skipped]


def cut(figure: Figure) -> list[str]:
    """Return the texts that cross the edge of a figure."""
    (x0, y0), (x1, y1) = figure.bbox.get_points()
    offenders = []
    for text in texts_of(figure):
        extent = text.get_window_extent()
        if extent.x0 < x0 - 1 or extent.x1 > x1 + 1 or extent.y0 < y0 - 1 or extent.y1 > y1 + 1:
            offenders.append(text.get_text())
    return offenders


def long_study():
    metrics = replace(PERPLEXITY_METRIC, title=WORDS), replace(ACCURACY, title=WORDS)
    courses = {"path": {1: 0.6, 2: 1.0}, "best_so_far": ((1, 2.0), (10, 1.0))}
    cells = []
    for (place, searcher), calibration in itertools.product(enumerate((WORDS, "b", "c", "d")), (WORDS, f"{WORDS} x")):
        assessed = {"ppl": Estimate(10.0 + place, 0.1), "acc": Estimate(50.0 - place, 1.0)}
        result = outcome(1.0 + place, removed=(place, 9), assessed=assessed, delta_error=0.1, **courses)
        cells.append(replace(cell(searcher, result, calibration), model=PATH))
    dense = {PATH: {"ppl": Estimate(8.0), "acc": Estimate(60.0)}}
    return replace(study(*cells, metrics=metrics), sites={PATH: Sites.of_equal_layers(12)}, dense=dense)


def test_words_of_a_report_stay_inside_its_figures() -> None:
    drawn = [picture for section in sections(analyse(long_study())) for picture in section.pictures]
    assert {"headline", "masks", "tradeoff", "cost", "paths", "progress"} <= {
        picture.name.partition("_")[0] for picture in drawn
    }
    assert {picture.name: offenders for picture in drawn if (offenders := cut(picture.figure))} == {}


def test_a_sweep_of_a_model_that_is_named_by_a_path_has_its_whole_title() -> None:
    figure = sweep_figure(sweep_of(replace(FIRST, calibration=WORDS), model=PATH), 2)
    assert cut(figure) == []
    assert PATH in "".join(figure.get_suptitle().splitlines())


def test_words_of_the_progress_of_a_search_do_not_overlap() -> None:
    search = greedy_search(n_layers=30, n_remove=5)
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    search.plot.progress(figure)
    texts = texts_of(figure)
    (note,) = (text for text in texts if "above the scale" in text.get_text())
    (title,) = (text for text in texts if text.get_text().startswith("Best loss so far"))
    for text, label in itertools.product((note, title), texts):
        assert text is label or not text.get_window_extent().overlaps(label.get_window_extent()), label
    assert cut(figure) == []
