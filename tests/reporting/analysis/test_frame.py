from __future__ import annotations

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.json import from_json
from raysearch.reporting.analysis.frame import averages, by_column, cells_frame
from raysearch.reporting.analysis.variance import largest_changes
from raysearch.reporting.tables.cost import cost_table
from raysearch.studies.study_record import CellRecord
from tests.reporting.cells import PERPLEXITY_METRIC, compared, grid, study


def test_average_needs_every_metric_and_joins_errors_in_quadrature():
    metrics = tuple(Metric(name, name, "accuracy", "%", True) for name in "xyz")
    whole = study(metrics=metrics)
    values = {"x": Estimate(60, 3), "y": Estimate(70, 4), "z": Estimate(80, 12)}
    assert by_column(values, whole)["accuracy_average"] == Estimate(70, 13 / 3)
    assert [*by_column({name: values[name] for name in "xy"}, whole)] == ["assessed.x", "assessed.y"]
    without = by_column({**values, "z": Estimate(80)}, whole)["accuracy_average"]
    assert without == Estimate(70, None)


def test_speeds_are_not_averaged():
    assert averages(study(metrics=(Metric("t", "t", "speed", "tokens/s", True),))) == []


def test_records_from_before_held_out_losses_were_kept_by_draw_are_read():
    labels = '"model": "m", "calibration": "c", "searcher": "a", "remove": 2, "seed": 0, "search_id": "s"'
    record = from_json(CellRecord, f'{{{labels}, "held_out": 3.5}}')
    assert (record.held_out, record.held_out_by_draw) == (3.5, {})


def test_metrics_of_another_unit_are_in_no_average():
    percent = tuple(Metric(name, name, "accuracy", "%", True) for name in "xy")
    other_metrics = Metric("mcc", "mcc", "accuracy", "mcc", True), Metric("brier", "brier", "accuracy", "brier", False)
    whole = study(metrics=(other_metrics[0], *percent, other_metrics[1]))
    (average,) = averages(whole)
    assert (len(average.metrics), average.unit, average.higher_is_better) == (2, "%", True)
    values = {"mcc": Estimate(0.3), "x": Estimate(60), "y": Estimate(70), "brier": Estimate(0.2)}
    assert by_column(values, whole)["accuracy_average"].value == 65
    (lone,) = averages(study(metrics=(other_metrics[1],)))
    assert (lone.title, lone.higher_is_better) == ("accuracy on brier", False)


def test_a_perplexity_has_one_mean_the_geometric_one_wherever_it_is_shown():
    """Arithmetic means would put b before a, and make the calibrations 4 times as far apart."""
    whole = grid({("c", "a"): [10.0, 1000.0], ("c", "b"): [200.0, 200.0], ("d", "a"): [10.0, 10.0]}, PERPLEXITY_METRIC)
    frame = cells_frame(whole)
    (quantity,) = averages(whole)
    comparison = compared(*(cell for cell in whole.cells if cell.calibration == "c"), by=PERPLEXITY_METRIC)
    assert [(rival.searcher, round(rival.mean)) for rival in comparison.rivals] == [("a", 100), ("b", 200)]
    table = cost_table(frame, quantity)
    assert table is not None
    assert [row[-1].text for row in table.rows] == ["100.00", "200.00", "10.00"]
    assert {(change.by, round(change.size)) for change in largest_changes(frame, quantity)} == {
        ("calibration", 10),
        ("searcher", 2),
    }
