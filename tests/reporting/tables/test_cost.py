"""The table of the losses of random searchers at the cost of other searchers."""

from __future__ import annotations

from raysearch.reporting.tables.cost import budget_table
from tests.reporting.cells import cell, outcome, study


def test_a_random_searcher_is_shown_as_it_stood_at_the_budget_of_each_other() -> None:
    courses = ([(2, 3.0), (9, 2.0), (30, 1.0)], [(1, 4.0), (10, 1.5)])
    table = budget_table(
        study(
            cell("greedy", outcome(1.8, evaluations=10)),
            cell("beam", outcome(1.2, evaluations=100)),
            cell("one-shot", outcome(5.0, evaluations=1)),
            *(
                cell("random", outcome(course[-1][1], evaluations=40, best_so_far=course), seed=seed, stochastic=True)
                for seed, course in enumerate(courses)
            ),
            cell("reverse", outcome(9.0, evaluations=0), uses_objective=False),
        )
    )
    assert table is not None
    assert [column.title for column in table.columns][-4:] == ["Searcher", "Masks", "Loss", "Random by then"]
    assert [[shown.text + shown.small for shown in row[-4:]] for row in table.rows] == [
        ["greedy", "10", "1.8000", "1.7500"],
        ["beam", "100", "1.2000", "1.2500ended after 40"],
        ["one-shot", "1", "5.0000", "–"],  # one of its draws had found nothing
    ]
    assert [[shown.best for shown in row[-2:]] for row in table.rows] == [[False, True], [True, False], [True, False]]


def test_a_study_without_a_random_searcher_has_no_such_table() -> None:
    assert budget_table(study(cell("greedy", outcome()), cell("beam", outcome()))) is None
    assert budget_table(study(cell("random", outcome(best_so_far=[(1, 1.0)]), stochastic=True))) is None
