"""The closing tables and the lines under them, for simulated searches."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from raysearch.checkpoints.gguf_pruning import GGUFExport
from raysearch.cli.cells import loss_cells
from raysearch.cli.export_lines import gguf_lines
from raysearch.cli.recorded_tables import (
    assessed_numbers,
    gap_table,
    remark_table,
    search_record_tables,
    searches_table,
    trials_table,
)
from raysearch.cli.search_tables import budget_table, path_table, remark_notes, result_notes, result_table, score_table
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.trial import Trial
from raysearch.searching.gap import Gap
from raysearch.searching.recommendation import Budget, Recommendation, SizeFacts, Speed
from raysearch.searching.result import SearchResult
from raysearch.searching.score import Score
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.separation import Separation
from raysearch.searching.work import LayerForwards, LayerTokens
from raysearch.studies.study_record import CellRecord
from raysearch.text.numbers import rounded
from tests.models.conftest import write_llama
from tests.tracking.simulated import greedy_search
from tests.tracking.tracker_suite import ACCURACY, KL, MARGIN

WEIGHTED = Measure("weighted loss", "set")
EVERY_MEASURE = pytest.mark.parametrize(
    ("measure", "columns", "cells"),
    [
        (PERPLEXITY, ["loss (nats per token)", "perplexity"], ["0.5750", "1.78"]),
        (MARGIN, ["loss (nats per answer token)", "margin"], ["0.5750", "-0.5750"]),
        (ACCURACY, ["loss (errors per item)", "accuracy"], ["0.5750", "0.4250"]),
        (KL, ["loss (nats per token)"], ["0.5750"]),
    ],
    ids=["perplexity", "margin", "accuracy", "no readout"],
)


def headers(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]


def rows(table: Table) -> list[list[str]]:
    return [list(map(str, row)) for row in zip(*(column.cells for column in table.columns), strict=True)]


def recorded(result: SearchResult) -> SearchRecord:
    """Return the search as it is read from the ledger."""
    config = {"choices": {"data": "wikitext", "objective": "x"}, "model": {"name": "tiny", "path": "tiny"}}
    return SearchRecord(result.search_id, config, "finished", None, result, "2026-01-01 00:00")


@EVERY_MEASURE
def test_the_closing_table_names_the_unit_and_the_readout(
    measure: Measure, columns: list[str], cells: list[str]
) -> None:
    result = replace(greedy_search(measure=measure), dense_loss=0.0, loss=0.575)
    shown = rows(result_table(result))
    assert [row[0] for row in shown] == [*columns, "loss over dense", "layers", "parameters"]
    assert [row[2] for row in shown[:-2]] == [*cells, "+0.5750 ± 0.0125"]
    assert shown[0][1] == "0.0000"
    unsure = result_table(replace(result, delta_error=None))
    assert [row[0] for row in rows(unsure)] == [*columns, "layers", "parameters"]


@EVERY_MEASURE
def test_paths_and_trials_are_shown_in_the_same_way(measure: Measure, columns: list[str], cells: list[str]) -> None:
    path = path_table(measure, [Trial(0, 1, Mask.of(4), 0.575, 0.1, None, cached=False)])
    assert headers(path) == ["layers", "removed", *columns]
    assert rows(path) == [["1", "{4}", *cells]]
    trial = Trial(0, 1, Mask.of(4), 0.575, 0.1, None, cached=False)
    failed = replace(trial, loss=None, delta=None, failure="out of memory")
    table = trials_table(measure, [failed, trial, replace(trial, index=1, round=2)], 20)
    assert headers(table) == ["removed", *columns, "over dense", "round"]
    empty = [""] * len(columns)
    assert rows(table) == [["{4}", *cells, "+0.1000", "1"], ["{4}", "out of memory", *empty, "1"]]


@EVERY_MEASURE
def test_scores_have_the_decimals_of_all_else(measure: Measure, columns: list[str], cells: list[str]) -> None:
    table = score_table([Score(Mask.of(4), measure, 0.575, 1203, 64, cached=True)])
    assert headers(table) == ["removed", *columns, "evaluated on", "cached"]
    ((_, *shown, extent, cached),) = rows(table)
    assert shown == cells
    assert extent == ("64 items (1,203 scored tokens)" if measure.per == "sample" else "1,203 scored tokens")
    assert cached == "yes"


def test_large_perplexities_are_rounded() -> None:
    shown = {
        readout: loss_cells(PERPLEXITY, math.log(readout))[1] for readout in (41.128, 9999.4, 12345.6, 253480915.7)
    }
    assert [*shown.values()] == ["41.13", "9999.40", "12,346", "253,480,916"]
    assert loss_cells(PERPLEXITY, 700.0)[1] == "1.01e+304"
    assert loss_cells(PERPLEXITY, 800.0)[1] == "inf"
    assert rounded(253480915.73) == "253,480,916"
    assert rounded(1e300) == "1e+300"


@pytest.mark.parametrize("measure", [PERPLEXITY, ACCURACY], ids=["perplexity", "accuracy"])
def test_a_score_is_json_that_names_its_readout(measure: Measure) -> None:
    value = plain(Score(Mask.of(4), measure, 0.5, 1203, 64, cached=True))
    assert Measure(**value["measure"]) == measure
    assert value[str(measure.readout)] == measure.read(0.5)
    assert (value["n_tokens"], value["n_samples"]) == (1203, 64)
    assert plain(Score(Mask(), PERPLEXITY, 800.0, 1, 1, cached=True))["perplexity"] is None, "JSON has no infinity"


def test_gaps_are_in_the_unit_of_the_loss() -> None:
    table = gap_table(ACCURACY, Gap(Mask.of(4), 0.5, 6, 2, 100 * 5 / 6, Mask.of(3), 0.25))
    assert headers(table)[-1] == "gap (errors per item)"
    assert rows(table)[0][-1] == "0.2500"


def notes(result: SearchResult) -> list[str]:
    return result_notes(result, "", None)


@pytest.mark.parametrize(
    ("measure", "n_tokens", "extent"),
    [
        (PERPLEXITY, 8192, "8,192 scored tokens"),
        (ACCURACY, 1203, "64 items (1,203 scored tokens)"),
        (ACCURACY, 0, "64 items"),
        (WEIGHTED, 8192, "8,192 scored tokens"),
    ],
    ids=["tokens", "items", "generated", "weighted"],
)
def test_what_was_judged_on_is_counted_in_what_the_loss_is_taken_over(
    measure: Measure, n_tokens: int, extent: str
) -> None:
    search = greedy_search()
    result = replace(search, measure=measure, samples=replace(search.samples, n_tokens=n_tokens))
    assert any(line.endswith(f", each on {extent}") for line in notes(result))


def test_the_savings_of_packing_are_shown() -> None:
    def notes_on_tokens(packed: bool | None) -> list[str]:
        search = greedy_search()
        tokens = LayerTokens(1_203_440, 3_210_012, packed)
        return notes(replace(search, work=replace(search.work, layer_tokens=tokens)))

    assert not any("hoices" in line for line in notes_on_tokens(None))
    assert (
        "Choices share their prompt: 1,203,440 tokens through layers instead of 3,210,012 with a row for each choice "
        "(0.37x)"
    ) in notes_on_tokens(True)
    assert (
        "Choices in separate rows, as this model does not keep packed ones apart: 1,203,440 tokens through layers"
    ) in notes_on_tokens(False)


def test_a_recorded_search_is_shown_in_its_own_measure() -> None:
    result = replace(greedy_search(measure=ACCURACY), dtype="bfloat16")
    gap = Gap(result.mask, result.loss, 56, 1, 100.0, result.mask, result.loss)
    parts = search_record_tables(recorded(result), 2, gap)
    facts, closing, path, ablation, trials, ranked = (part for part in parts if isinstance(part, Table))
    assert dict(rows(facts))["objective"] == "x"
    assert dict(rows(facts))["evaluated on"].startswith("64 items")
    assert dict(rows(facts))["dtype"] == "bfloat16"
    assert rows(closing)[0][1:] == [f"{result.dense_loss:.4f}", f"{result.loss:.4f}"], "the dense loss, too"
    assert rows(path)[-1][-1] == f"{1 - result.loss:.4f}"
    assert headers(ablation)[0] == "layer"
    assert headers(trials)[1:3] == ["loss (errors per item)", "accuracy"]
    assert len(rows(trials)) == 2
    assert headers(ranked)[-1] == "gap (errors per item)"
    counted = len({trial.mask for trial in result.trials if trial.mask})
    assert str(trials.title).startswith(f"2 of {counted} masks"), "the dense model is none of them"


def test_the_list_shows_the_labels_of_a_study_s_searches() -> None:
    record = recorded(greedy_search())
    cell = CellRecord("tiny", "KL on chats", "greedy", 3, 0, record.search_id, draw="2")
    table = searches_table([record], {record.search_id: ("my-study-1", cell)})
    row = dict(zip(headers(table), *rows(table), strict=True))
    assert (row["study"], row["calibration"], row["draw"]) == ("my-study-1", "KL on chats", "2")
    facts = next(
        part for part in search_record_tables(record, 2, None, ("my-study-1", cell)) if isinstance(part, Table)
    )
    assert dict(rows(facts))["study"] == "my-study-1: greedy, KL on chats, draw 2, seed 0"


def test_a_search_shows_its_confidence_and_warns_of_a_mask_that_seems_better_than_dense() -> None:
    separation = Separation(Mask.of(1, 2, 3), False, 26, 11, 16, 1200, "within noise")
    result = replace(greedy_search(), separation=separation)
    note = (
        "Not significantly worse than this mask on these 16 samples (95% confidence): 11 of the 26 other masks of 3 "
        "layers; about 1,200 samples would separate the best from the next"
    )
    assert note in notes(result)
    assert not any("Warning" in note for note in notes(result))
    better = replace(result, loss=result.dense_loss - 0.5, choices={**result.choices, "objective": "task_margin"})
    (warning,) = better.warnings
    removed = ",".join(map(str, result.removed))
    assert warning in notes(better)
    assert warning.startswith(
        f"Warning: without {result.mask} the loss is lower than the dense model's, within noise; these samples do not "
    )
    assert warning.endswith(
        "take more samples (data.samples), and compare perplexities: raysearch score model=tiny "
        f"'masks=[[],[{removed}]]'"
    )
    assert note in str(better)
    assert warning in str(better)
    assert len(str(better)) < 800
    beyond = replace(better, separation=replace(separation, below_dense="beyond noise"))
    assert ", beyond noise; " in beyond.warnings[0]
    assert "more samples" not in beyond.warnings[0]
    assert "lower than the dense model's; these samples" in replace(better, separation=None).warnings[0]


@pytest.mark.parametrize(("path", "first"), [("/m/x.gguf", "--gguf pruned.gguf"), ("/m/x", "--out pruned-model")])
def test_the_next_commands_fit_the_model(path: str, first: str) -> None:
    result = greedy_search()
    result = replace(result, config={**result.config, "model": {"name": "x", "path": path}})
    commands = [note.removeprefix("Next:").strip() for note in notes(result) if "raysearch " in note]
    assert commands[0] == f"raysearch export {result.search_id} {first}"
    assert [command.split()[1] for command in commands[-3:]] == ["assess", "recover", "show"]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_narrow_terminal_cuts_no_mask_and_no_number(width: int) -> None:
    sizes = tuple(
        SizeFacts(size, Mask(tuple(range(size))), 4.5, 0.25, 0.1, 88.25, 0.192, 0.053, Speed(1.1, 0.02, -0.1, 8e8))
        for size in (1, 5, 8)
    )
    advice = Recommendation(
        "greedy-auto-5a3c9d11", "tiny", PERPLEXITY, Budget(loss=0.2), 4.3, 74.0, sizes, 5, sizes[1].mask, "5 can go"
    )
    path = path_table(PERPLEXITY, [Trial(0, 1, size.mask, 4.5, 0.25, None, cached=False) for size in sizes])
    for table in (budget_table(advice), path):
        console = Console(file=io.StringIO(), width=width)
        console.print(table.fitted(width), crop=False)
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        cells = {cell.strip() for line in lines for cell in line.split("│")}
        assert {str(size.mask) for size in sizes} < cells
        assert not any("…" in line for line in lines)
        assert {cell for cell in cells if cell.startswith("+0")} <= {"+0.2500 ± 0.1000", "+19.2% ± 5.3%"}
        assert width < 80 or max(map(len, lines)) <= width
    assert "+0.2500 ± 0.1000" in rows(budget_table(advice).fitted(80))[1]
    assert "left" not in str(path.fitted(80).caption)


def test_masks_that_export_refuses_as_gguf_have_a_mark(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "smollm3.gguf", 8, architecture="smollm3")
    result = greedy_search(n_layers=8, n_remove=2)
    for path, mark in ((str(file), True), ("tiny", False)):
        marked = replace(result, config={**result.config, "model": {"name": "tiny", "path": path}})
        parts = search_record_tables(recorded(marked), 2, None)
        tables = [part for part in parts if isinstance(part, Table)]
        (by_size,) = [table for table in tables if str(table.title).startswith("Best by number of layers")]
        assert any(row[1].endswith(" *") for row in rows(by_size)) is mark
        (trials,) = [table for table in tables if " masks, those of the most layers first" in str(table.title)]
        assert any(row[0].endswith(" *") for row in rows(trials)) is mark
        assert any(str(part).startswith("* export --gguf refuses {") for part in parts) is mark


def test_the_lines_of_a_gguf_file_name_the_build_that_reads_it() -> None:
    done = GGUFExport(Path("p.gguf"), Path("d.gguf"), 7, 8, 10, "gemma3", "greedy-m1-00000000")
    *_, llama, ollama = gguf_lines(done, Path("p.gguf"), public=False)
    assert llama == "llama.cpp: llama-cli -m p.gguf"
    assert ollama.startswith("Ollama: echo 'FROM ./p.gguf'")
    *_, llama, ollama = gguf_lines(replace(done, build=11040), Path("p.gguf"), public=False)
    assert llama == "llama.cpp (build b11040 or newer): llama-cli -m p.gguf"
    assert ollama.startswith("Older builds, and engines of Ollama, ")
    assert "Ollama: " not in ollama


def test_the_lines_of_a_gguf_file_without_some_attentions_name_its_architecture() -> None:
    done = GGUFExport(Path("p.gguf"), Path("d.gguf"), 7, 8, 10, "deci", "greedy-m1-00000000", changes=("A.", "B."))
    _, same, llama, ollama = gguf_lines(done, Path("p.gguf"), public=False)
    assert same == "Every remaining tensor has the same bytes as in d.gguf. A. B."
    assert llama == "llama.cpp (architecture deci, since December 2024): llama-cli -m p.gguf"
    assert ollama.startswith("Ollama runs it if ")


def test_the_lines_of_a_gguf_file_mention_the_parts_of_its_source() -> None:
    for source, text in (("d.gguf", "d.gguf"), ("d-00001-of-00003.gguf", "d-00001-of-00003.gguf and the other parts")):
        done = GGUFExport(Path("p.gguf"), Path(source), 7, 8, 10, "gemma3", "greedy-m1-00000000")
        _, line, *_ = gguf_lines(done, Path("p.gguf"), public=False)
        assert line == f"Every remaining tensor has the same bytes as in {text}."


def test_assessed_bytes_are_shown_as_a_size() -> None:
    numbers = {"pruned": 545_000_000.0, "dense": 640_000_000.0, "retention": 0.85}
    numbers = {f"assess/peak_memory_bytes/{side}": value for side, value in numbers.items()}
    speed = {"assess/decode_tokens_per_s/pruned": 51.25, "assess/decode_tokens_per_s/pruned_se": 0.5}
    assert rows(assessed_numbers({**numbers, **speed})) == [
        ["peak_memory_bytes", "640 MB", "545 MB", "0.85"],
        ["decode_tokens_per_s", "", "51.25 ± 0.50", ""],
    ]


def test_a_search_without_a_result_is_a_row() -> None:
    run = replace(recorded(greedy_search()), state="running", result=None)
    assert len(search_record_tables(run, 20, None)) == 1
    assert rows(searches_table([run]))[0][-3:] == ["", "", "2026-01-01 00:00"]


def test_the_losses_of_parts_are_columns_as_long_as_they_fit() -> None:
    def trial(*names: str) -> Trial:
        parts = {name: place + 0.5 for place, name in enumerate(names)}
        return Trial(0, 1, Mask.of(4), 1.5, 0.0, None, cached=False, parts=parts)

    failed = replace(trial(), loss=None, delta=None, failure="out of memory")
    table = trials_table(WEIGHTED, [trial("kl on c4", "perplexity on sotu"), failed], 20)
    parts = ["loss of kl on c4", "loss of perplexity on sotu"]
    assert headers(table) == ["removed", "loss (weighted loss)", "over dense", *parts, "round"]
    assert rows(table) == [
        ["{4}", "1.5000", "+0.0000", "0.5000", "1.5000", "1"],
        ["{4}", "out of memory", "", "", "", "1"],
    ]
    assert headers(trials_table(WEIGHTED, [trial(*"abcde")], 20)) == [
        "removed",
        "loss (weighted loss)",
        "over dense",
        "round",
    ]


def test_remarks_are_plain_words() -> None:
    remarks = {"gap": 0.031416, "masks": 142506.0, "solver_says": "proven\noptimal", "odd": None, "scores": [1.0, 2.0]}
    assert remark_notes(remarks) == ["gap: 0.03142", "masks: 142,506", "solver says: proven optimal", "odd: not finite"]


def test_lists_of_different_lengths_share_a_table() -> None:
    remarks = {"block_influence": [0.25, None], "gates": [504543.94, 2.0, 3.0], "gap": 1.0}
    table = remark_table(remarks, "layer", ["0", "1", "2"])
    assert [column.header for column in table.columns] == ["layer", "block influence", "gates"]
    assert [list(column.cells) for column in table.columns] == [
        ["0", "1", "2"],
        ["0.25", "not finite", ""],
        ["504,544", "2", "3"],
    ]


def test_the_cost_of_a_search_is_the_same_number_in_the_terminal_and_on_the_card() -> None:
    result = greedy_search()

    def note(computed: float, alone: float, naive_computed: float) -> tuple[str, float]:
        forwards = LayerForwards(computed, alone, 900, naive_computed)
        shown = notes(replace(result, work=replace(result.work, layer_forwards=forwards)))
        return next(line for line in shown if line.startswith("Layer-forwards: ")), forwards.whole

    fresh = "Layer-forwards: 583 computed, 900 by a full forward per mask (1.54x fewer)"
    assert note(583, 577, 900) == (fresh, 583), "replicas that share a round run some layers twice"
    assert note(27, 577, 27) == ("Layer-forwards: 27 computed, 577 with what was cached", 577)
    assert note(0, 577, 0) == ("Layer-forwards: 0 computed, 577 with what was cached", 577)
