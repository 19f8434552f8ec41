from dataclasses import replace

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from raysearch.figures.picture import svg
from raysearch.figures.style import ORANGE
from raysearch.reporting.sweep import sweep_figure, write_sweep
from tests.searching.test_sweep import FIRST, FLAT, SECOND, sweep_of


def test_the_figure_has_a_panel_for_each_and_marks_the_first(tmp_path):
    figure = sweep_figure(sweep_of(FIRST, SECOND, FLAT), 2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{name} (dense 1.0000)" for name in ("one", "other", "flat")
    ]
    marked = [
        [
            round(patch.get_center()[0])
            for patch in axes.patches
            if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor(), keep_alpha=False) == ORANGE.lower()
        ]
        for axes in figure.axes
    ]
    assert marked == [[1, 3], [0, 1], []]  # where all are tied, none stands out
    odd = replace(FIRST, calibration="a$_$b")
    assert "a$_$b (dense 1.0000)" in svg(sweep_figure(sweep_of(odd, model="$x$ and $_$"), 2), "odd")
    picture, table = write_sweep(sweep_of(FIRST, SECOND), 2, tmp_path / "new" / "folder")
    assert picture.stat().st_size > 0
    assert table.read_text().splitlines()[1:5] == [
        "dense,1.0,,1.0,",
        "0,2.0,0.1,1.2,0.1",
        "1,1.5,0.1,1.1,0.1",
        "2,3.0,0.1,,",
    ]
