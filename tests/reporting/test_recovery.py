"""The parts of a report on recovered masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.figures.picture import svg
from raysearch.recovery.recovery_record import RecoveryRecord, ThreeNumbers, Training
from raysearch.reporting.pictures.courses import recovery_pictures
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.tables.recovery import recovery_tables
from raysearch.reporting.tables.table import as_csv
from raysearch.searching.events import LossPoint
from raysearch.studies.result import RecoveredMask, StudyResult
from tests.reporting.cells import cell, outcome, study

PROSE = Metric("prose", "Prose", "perplexity", "perplexity", False)
PIQA = Metric("piqa", "PIQA", "accuracy", "%", True)


def recovered(found_by: str, *layers: int, pruned: float, after: float) -> RecoveredMask:
    """Return a mask of a model with a dense perplexity of 10; its accuracy is lower if its perplexity is higher."""
    points = (LossPoint(1, 100, 3.0, None), LossPoint(1, 100, None, 2.5), LossPoint(2, 200, None, 2.25))
    mask = Mask.of(*layers)
    pruned_ratio = Estimate(pruned / 10, 0.01)
    dense, before, now = (Estimate(value, 0.5) for value in (10.0, pruned, after))
    numbers = [ThreeNumbers(PROSE, dense, before, now, pruned_ratio, Estimate(after / 10))]
    numbers.append(ThreeNumbers(PIQA, Estimate(70.0), Estimate(80 - pruned), Estimate(80 - after), None, None))
    record = RecoveryRecord(
        f"recover-{found_by}", "search", mask, "distilled", 20, {}, Training(points, 2, 2, 200, 64, 9.0, 4),
        {"training": 9.0, "data": 1.0}, tuple(numbers),
    )  # fmt: skip
    return RecoveredMask("m", [found_by], len(mask), record)


def results() -> StudyResult:
    """Return three masks whose order, but not the best, is changed by training, and the dense model."""
    every = [
        recovered("dense", pruned=10.0, after=9.5),
        recovered("greedy", 1, 2, pruned=12.0, after=11.0),
        recovered("random", 0, 4, pruned=3000.0, after=15.0),
        recovered("reverse", 6, 7, pruned=20.0, after=16.0),
    ]
    cells = [cell(mask.found_by[0], outcome()) for mask in every[1:]]
    return replace(study(*cells), recovered=every)


def test_three_models_stand_side_by_side_with_ranks_and_costs() -> None:
    numbers, ranks, costs = recovery_tables(results())
    assert len(numbers.rows) == 8
    greedy = [shown.text for shown in numbers.rows[2]]
    assert greedy == ["m", "greedy", "2", "distilled", "Prose (perplexity)", "10", "12", "11", "120.0 %", "110.0 %"]
    assert [shown.text for shown in numbers.rows[4]][-2:] == ["300 ×", "150.0 %"]
    assert [shown.text for shown in ranks.rows[0]] == ["m", "2", "distilled", "Prose", "3", "+0.50", "yes"]
    assert [shown.text for shown in costs.rows[0]][4:] == ["20", "2", "200", "64", "2.5000 → 2.2500", "9.0 s", "10 s"]
    assert "Dense: standard error" in as_csv(numbers)
    assert as_csv(ranks).splitlines()[1].startswith("m,2,distilled,Prose,3,0.5,")


def test_losses_are_drawn_by_tokens() -> None:
    (picture,) = recovery_pictures(results(), study_palette(results()))
    course = np.asarray(picture.figure.axes[0].get_lines()[1].get_xydata())
    assert course[0, 1] == 2.5
    assert course[-1].tolist() == [200, 2.25]
    assert "distilled" in svg(picture.figure, picture.name)


def test_labels_that_look_like_formulas_are_drawn() -> None:
    named = [replace(mask, found_by=["a$_$b"]) for mask in results().recovered]
    (picture,) = recovery_pictures(replace(results(), recovered=named), study_palette(results()))
    assert "a$_$b, M = 2" in svg(picture.figure, picture.name)


def test_a_study_without_recoveries_has_nothing_of_them() -> None:
    nothing = study(cell("greedy", outcome()))
    assert recovery_tables(nothing) == []
    assert recovery_pictures(nothing, study_palette(nothing)) == []


def test_what_describes_texts_has_no_best_mask_and_no_number_is_a_dash():
    length = Metric("length", "length", "degeneration", "tokens", higher_is_better=False)
    unknown = ThreeNumbers(length, Estimate(float("nan")), Estimate(2.0), Estimate(3.0), None, None)
    records = [(mask, replace(mask.record, numbers=(*mask.record.numbers, unknown))) for mask in results().recovered]
    whole = replace(results(), recovered=[replace(mask, record=record) for mask, record in records])
    tables = {table.name: as_csv(table) for table in recovery_tables(whole)}
    assert "length" in tables["recovery"]
    assert "nan" not in tables["recovery"]
    assert "length" not in tables["recovery_ranks"]
