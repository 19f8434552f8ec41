"""A study's result as a table."""

from tests.reporting.synthetic import synthetic_study


def test_the_table_has_a_row_for_each_search():
    study = synthetic_study()
    frame = study.to_frame()
    assert frame["search_id"].tolist() == [cell.search_id for cell in study.cells]
    for cell, row in zip(study.cells, frame.to_dict("records"), strict=True):
        found = cell.outcome
        if found is None:
            assert row["loss"] != row["loss"]
        else:
            assert (row["loss"], row["measure.unit"]) == (found.loss, found.measure.unit)
            assert all(row[f"assessed.{name}.value"] == one.value for name, one in found.assessed.items())
