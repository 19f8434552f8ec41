"""The files of a report: complete, self-contained, safe, and the same every time."""

from __future__ import annotations

import csv
import itertools
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.figures.style import axis_limits
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.analysis.frame import cells_frame
from raysearch.reporting.findings import findings
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.tables.results import leaderboard_tables, result_tables
from raysearch.reporting.tables.verdict import contrast_table
from raysearch.reporting.write import write_report
from raysearch.studies.result import StudyResult
from raysearch.text import numbers
from raysearch.text.numbers import plus_minus
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, outcome, study
from tests.reporting.cells import cell as make_cell
from tests.reporting.published import published_study
from tests.reporting.synthetic import FAILURE, PPL, TASK, synthetic_study, waiting_study
from tests.sentences import Sentences

SECTIONS = {
    "findings", "verdicts", "results", "masks", "agreement", "tradeoff", "correlations", "variance", "costs",
    "progress", "searches", "unfinished", "facts", "method",
}  # fmt: skip


class Page(HTMLParser):
    """The elements of a page that a browser reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.labels: list[str | None] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        target = values.get("href") or values.get("xlink:href") or ""
        if tag == "a":
            self.links.append(target)
        else:
            self.loaded += [value for name in ("src", "srcset", "data", "poster") if (value := values.get(name))]
            self.loaded += [target] if target and not target.startswith("#") else []
        if tag == "svg":
            self.labels.append(values.get("aria-label"))
        if any(name.startswith("on") for name in values):
            self.loaded.append("a script")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def no_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not write PNG files, which take as long as the SVG figures of the page."""
    monkeypatch.setattr("raysearch.reporting.write.png", lambda figure: b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(synthetic_study(), out)
    return out


@pytest.fixture(scope="module")
def source(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_page_loads_nothing(page: Page, source: str) -> None:
    assert [what for what in page.loaded if not what.startswith("data:image/")] == []
    assert not {"link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert "@import" not in source
    assert re.findall(r"url\((?!#)", source) == []


def test_every_section_is_there_and_every_anchor_leads_somewhere(page: Page) -> None:
    assert set(page.ids) >= SECTIONS
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)), "also among the parts of figures"


def test_labels_and_failures_are_text(page: Page, source: str) -> None:
    assert TASK in page.text
    assert " ".join(FAILURE.split()) in page.text
    assert source.count("<script") == 1, "the page's own"
    assert "task margin <b>" not in source


def test_only_the_script_that_sorts_may_run(source: str) -> None:
    script = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    assert script == ["\n" + (files("raysearch.reporting") / "page.js").read_text(encoding="utf-8")]
    digest = b64encode(sha256(script[0].encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', source)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_words_of_figures_are_text(source: str) -> None:
    drawn = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]+)</text>", source)]
    assert "M = 7" in drawn
    assert any("average perplexity" in text for text in drawn)


@pytest.mark.usefixtures("no_png")
def test_the_page_of_168_searches_is_small(tmp_path: Path) -> None:
    results = synthetic_study(models=("one", "two"), seeds=8)
    assert len(results.cells) == 168
    write_report(results, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1.5e6


def test_no_two_searchers_look_alike() -> None:
    names = [f"searcher {number}" for number in range(60)]
    cells = [make_cell(name, None) for name in names]
    palette = study_palette(StudyResult("s", "s", cells, {"m": Sites.of_equal_layers(12)}, (), {}, {}))
    assert len({(palette.colours[name], palette.shapes[name]) for name in names}) == 60
    assert len({palette.shapes[name] for name in names[:15]}) == 15


def test_the_leaderboard_has_every_searcher_in_every_setting() -> None:
    results = replace(synthetic_study(flaws=False), searchers={"greedy": {"type": "beam", "width": 1}})
    (table,) = leaderboard_tables(cells_frame(results), results.searchers)
    assert len(table.columns) == 3 + 4
    assert len(table.rows) == 7
    ranks = [float(row[1].value or 0) for row in table.rows]
    assert ranks == sorted(ranks)
    assert sum(ranks) == pytest.approx(sum(range(1, 8)))
    (greedy,) = (row for row in table.rows if row[0].text == "greedy")
    assert greedy[0].small == "width=1"
    for place in range(2, 6):
        deltas = {float(row[place].value or 0): row[place].best for row in table.rows}
        assert [value for value, best in deltas.items() if best] == [min(deltas)]


def test_searchers_that_rounding_alone_parts_share_a_rank() -> None:
    losses = {"a": 7.629130628373889, "b": 7.629130628373887, "c": 8.0}
    results = study(*(make_cell(name, outcome(), held_out=loss) for name, loss in losses.items()))
    (table,) = leaderboard_tables(cells_frame(results), {})
    assert [(row[0].text, row[1].value, row[2].best) for row in table.rows] == [
        *(("a", 1.5, True), ("b", 1.5, True)),
        ("c", 3.0, False),
    ]


def test_errors_keep_their_zeros_and_zero_has_no_sign() -> None:
    assert [*map(plus_minus, (0.01002, 7.04, 39.2, 99.7, 7589.4))] == ["± 0.010", "± 7.0", "± 39", "± 100", "± 7,589"]
    assert (numbers.loss(-1e-9), numbers.change(-1e-9), numbers.change(0.5)) == ("0.0000", "+0.0000", "+0.5000")


def test_ruined_models_do_not_flatten_the_others() -> None:
    low, high = axis_limits([3.0, 3.1, 3.2, 3.4, 3.3, 40.0])
    assert low < 3.0
    assert 3.4 < high < 4
    assert axis_limits([1.0, 1.0]) == pytest.approx((0.9984, 1.0016))
    assert axis_limits([3.0, 3.1, 3.2, 3.9])[1] > 3.9
    assert axis_limits([0.189, 0.189, 0.213])[1] > 0.213, "12 % worse than two searchers with one mask is not ruined"


def test_losses_of_several_draws_stand_beside_the_mean_of_their_dense_losses() -> None:
    outcomes = [outcome(loss, dense_loss=dense) for loss, dense in ((4.0, 3.8), (3.5, 3.2))]
    results = study(*(make_cell("greedy", result, draw=str(draw)) for draw, result in enumerate(outcomes)))
    (losses,) = result_tables(analyse(results))
    dense, greedy = losses.rows
    shown = {column.title: place for place, column in enumerate(losses.columns)}
    assert dense[shown["Loss"]].value == pytest.approx(3.5)
    assert greedy[shown["Loss"]].value == pytest.approx(3.75)
    assert greedy[shown["Over dense"]].value == pytest.approx(0.25)


@pytest.mark.usefixtures("blank_report")
def test_a_study_assessed_by_texts_too_has_a_report(tmp_path: Path) -> None:
    kinds: tuple[Group, ...] = ("perplexity", "accuracy", "generation", "degeneration", "probe")
    metrics = tuple(Metric(kind, kind, kind, "%", True) for kind in kinds)
    cells = []
    for place, searcher in enumerate(("one_shot", "greedy")):
        assessed = {kind: Estimate(5.0 + place) for kind in kinds}
        result = outcome(3.0 + place, removed=(place, 2), assessed=assessed, items={"accuracy": [1 / 3, place]})
        cells.append(make_cell(searcher, result, held_out_by_draw={"1": 3.5} if place else {}))
    results = replace(study(*cells, metrics=metrics), dense={"m": {kind: Estimate(9.0) for kind in kinds}})
    names = {file.relative_to(tmp_path).as_posix() for file in write_report(results, tmp_path)}
    assert names >= {"figures/tradeoff_1.svg", "figures/probe_1.svg", "tables/texts_1.csv"}
    assert set(pd.read_csv(tmp_path / "dense.csv")["metric"]) == {*kinds}
    assert pd.read_csv(tmp_path / "items.csv").drop(columns="model").values.tolist() == [
        *(["[0, 2]", "accuracy", "[0.333333, 0.0]"], ["[1, 2]", "accuracy", "[0.333333, 1.0]"])
    ]
    written = pd.read_csv(tmp_path / "cells.csv")
    assert written["held_out_by_draw"].fillna("").tolist() == ["", '{"1": 3.5}']
    assert "held_out_error" not in written, "which is never known"


def test_every_figure_has_words(page: Page) -> None:
    assert page.labels
    assert not [label for label in page.labels if not label or len(label) <= 40], "captions say how to read a figure"


@pytest.mark.usefixtures("no_png")
def test_labels_that_look_like_formulas_or_references_are_drawn_as_they_are(tmp_path: Path) -> None:
    odd = ["a$_$b", 'href="#x" id="q"', "url(#x)", "plain"]
    metrics = replace(ACCURACY, title="a$_$c"), replace(PERPLEXITY_METRIC, title="$\\foo$")
    courses = {"path": {1: 0.6, 2: 1.0}, "best_so_far": ((1, 2.0), (10, 1.0))}
    cells = []
    for (place, searcher), (row, calibration) in itertools.product(enumerate(odd), enumerate(odd[:2])):
        assessed = {"acc": Estimate(50.0 - place, 1.0), "ppl": Estimate(10.0 + place, 0.1)}
        result = outcome(1.0 + place, removed=(place, 9 - row), assessed=assessed, **courses)
        cells.append(make_cell(searcher, result, calibration))
    write_report(study(*cells, metrics=metrics), tmp_path)
    drawn = Page((tmp_path / "figures" / "cost_1.svg").read_text(encoding="utf-8")).texts
    assert {*odd} <= {*drawn}


def test_runs_are_linked(page: Page) -> None:
    linked = {link for link in page.links if link.startswith("http")}
    recorded = {cell.link for cell in synthetic_study().cells if cell.link}
    assert recorded <= linked


def test_files(folder: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names >= {"report.html", "report.md", "cells.csv", "dense.csv"}
    assert names >= {"tables/verdicts_loss.csv", "tables/searches.csv"}
    figures = {name.rpartition(".")[0] for name in names if name.startswith("figures/")}
    assert {"figures/masks_1", "figures/tradeoff_1", "figures/correlations"} <= figures
    assert {"figures/variance", "figures/cost_1", "figures/paths_1", "figures/progress_1"} <= figures
    assert all(f"{figure}{end}" in names for figure in figures for end in (".svg", ".png"))


def test_cells_have_every_search_and_number(folder: Path) -> None:
    results = synthetic_study()
    table = pd.read_csv(folder / "cells.csv")
    assert len(table) == len(results.cells)
    for cell, row in zip(results.cells, table.to_dict("records"), strict=True):
        assert all(row[name] == getattr(cell, name) for name in ("searcher", "remove", "seed", "state"))
        if cell.outcome is not None:
            assert row["loss"] == cell.outcome.loss
            assert row["assessed.hellaswag"] == cell.outcome.assessed["hellaswag"].value
            assert row["assessed.hellaswag_error"] == cell.outcome.assessed["hellaswag"].error


def test_table_files_hold_full_precision(folder: Path) -> None:
    with (folder / "tables" / "results_1.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    first = next(cell for cell in synthetic_study().cells if cell.searcher == "one_shot")
    assert first.outcome is not None
    row = next(row for row in rows if row["Searcher"] == "one_shot" and row["M"] == "5")
    (column,) = (name for name in row if name.startswith("HellaSwag") and "error" not in name)
    assert float(row[column]) == first.outcome.assessed["hellaswag"].value
    assert float(row[f"{column}: standard error"]) == first.outcome.assessed["hellaswag"].error


def test_markdown_has_the_same_tables(folder: Path, page: Page) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    drawn = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    assert drawn.tags.count("table") == page.tags.count("table")
    assert {"script", "b"}.isdisjoint(drawn.tags)
    assert TASK in drawn.text
    images = re.findall(r"!\[[^\]]*\]\((figures/[^)]+)\)", text)
    assert images
    assert all((folder / image).is_file() for image in images)
    rows = text.split("**What the whole study ran**")[1].splitlines()[2:6]
    assert len({len(re.split(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_best_is_bold_and_dense_stands_on_top() -> None:
    results = synthetic_study(flaws=False)
    tables = {table.title: table for table in result_tables(analyse(results))}
    table = tables[f"smollm2-135m, calibrated by {PPL}: assessed checkpoints"]
    assert table.has_dense
    assert table.rows[0][1].text == "Dense"
    for place, column in enumerate(table.columns):
        if column.title[-1] in "↑↓":
            for remove in (5, 7):
                rows = [row for row in table.rows if row[0].value == remove]
                numbers = [float(str(cells[place].value)) for cells in rows]
                best = max(numbers) if column.title.endswith("↑") else min(numbers)
                alike = len(set(numbers)) == 1  # as speed is, which hangs on M alone
                assert [cells[place].best for cells in rows] == [number == best and not alike for number in numbers]
    losses = tables[f"smollm2-135m, calibrated by {PPL}: losses"]
    assert losses.rows[0][3].value == 2.1
    assert losses.rows[1][3].best


@pytest.mark.slow
def test_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    results = synthetic_study(searchers=("one_shot", "greedy"), sizes=(5,))
    for name in ("one", "two"):
        write_report(results, tmp_path / name)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) > 20
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def small(**changes: object) -> StudyResult:
    options = {"calibrations": (PPL,), "searchers": ("greedy",), "sizes": (7,), "flaws": False, "assessed": False}
    return synthetic_study(**(options | changes))  # type: ignore[arg-type]


def published_in_part() -> StudyResult:
    """Return the study of the model of Table 4; no mask, loss or error is known."""
    whole = published_study()
    model = "LLaMA3 8B"
    cells = [cell for cell in whole.cells if cell.model == model]
    return replace(whole, cells=cells, sites={model: Sites.of_equal_layers(32)}, dense={model: whole.dense[model]})


@pytest.mark.usefixtures("blank_report")
@pytest.mark.parametrize(
    ("results", "says"),
    [
        (waiting_study, "No search has found a mask yet."),
        (small, "Only one searcher has a mask"),
        (lambda: small(calibrations=(TASK,), searchers=("greedy", "cbo")), "One calibration was tried"),
        (lambda: small(calibrations=(PPL, TASK), searchers=("greedy", "cbo")), "no checkpoint was assessed"),
        (lambda: small(assessed=True, calibrations=(PPL, TASK)), "a test needs two searchers or more"),
        (published_in_part, "which are too few for a test"),
    ],
    ids=["waiting", "one search", "one calibration", "nothing assessed", "one searcher assessed", "published"],
)
def test_small_studies_say_what_they_are_too_small_for(
    results: Callable[[], StudyResult], says: str, tmp_path: Path
) -> None:
    write_report(results(), tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert says in page.text
    assert {"findings", "searches", "facts", "missing"} <= set(page.ids)
    assert "nan" not in page.text.lower().split()


def test_study_of_no_searches_is_a_page_too(tmp_path: Path) -> None:
    write_report(StudyResult("st", "Empty", [], {}, [], {}, {}), tmp_path)
    assert "No search has found a mask yet." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_findings_say_what_differs_and_how_sure() -> None:
    every_finding = findings(analyse(synthetic_study()))
    over = next(finding for finding in every_finding if finding.question == "Searchers over all settings")
    assert over.verdict.startswith("Beam width=5 has the best mean rank by calibration loss")
    assert over.sure == "measured"
    assert over.verdict.endswith("over 2 sets of samples, which are too few for a test.")
    titles = " ".join(finding.verdict for finding in every_finding)
    assert "By average perplexity, perplexity on C4 gives better checkpoints than" in titles
    assert "2 of 44 searches are not finished" in titles


def test_searchers_that_do_not_differ_significantly_are_said_not_to_and_how_fine_that_is() -> None:
    results = synthetic_study(calibrations=(PPL,), searchers=("greedy", "beam width=5"), flaws=False)
    finding = next(candidate for candidate in findings(analyse(results)) if candidate.question == "Which searcher?")
    assert finding.sure == "not significant"
    assert "best in both settings. No searcher is significantly worse than the best; a difference" in finding.verdict
    assert "nats per token would be missed more often than one time in five" in finding.verdict


def test_a_report_opens_with_the_calibration_the_searcher_and_the_command_of_a_checkpoint(page: Page) -> None:
    leading = [finding for finding in findings(analyse(synthetic_study())) if finding.leads]
    assert [finding.question.split()[1] for finding in leading][:2] == ["calibration?", "searcher?"]
    commands = [finding.command for finding in leading if finding.command]
    assert len(commands) == 2, "one for each M"
    assert page.ids.index("answers") < page.ids.index("leaderboard") < page.ids.index("findings")
    assert all(command in page.text for command in commands)
    frame = cells_frame(synthetic_study())
    best = frame.loc[frame.loc[frame["remove"] == 5, "perplexity_average"].idxmin()]
    assert commands[0] == f"raysearch export {best.search_id} --out pruned-model"
    elsewhere = findings(analyse(replace(synthetic_study(), option=" --store other")))
    assert all(finding.command.endswith(" --store other") for finding in elsewhere if finding.command)


def test_contrasts_are_answered_first() -> None:
    results = synthetic_study(calibrations=(PPL,), sizes=(7,), flaws=False)
    analysis = analyse(replace(results, contrasts=["greedy - one_shot"]))
    every_finding = findings(analysis)
    assert [finding.question for finding in every_finding[:2]] == ["greedy - one_shot"] * 2
    assert "With one draw, this holds for these masks, but perhaps not for other samples." in every_finding[0].verdict
    table = contrast_table(analysis.contrasts)
    assert table is not None
    assert {row[0].text for row in table.rows} == {"greedy - one_shot"}


def test_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path, sentences: Sentences) -> None:
    (tmp_path / "file").write_text("")
    with sentences.refused(UserError):
        write_report(waiting_study(), tmp_path / "file")
