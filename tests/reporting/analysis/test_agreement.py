from __future__ import annotations

import itertools

import pytest

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.space import SPACES
from raysearch.reporting.analysis.agreement import MaskAgreement, agreements, expected_jaccard, similarity
from raysearch.reporting.analysis.frame import cells_frame
from raysearch.reporting.tables.agreement import agreement_table
from raysearch.studies.result import CellResult
from tests.reporting.cells import cell, outcome, study


def agreed(*cells: CellResult) -> list[MaskAgreement]:
    return agreements(cells_frame(study(*cells)), {"m": Sites.of_equal_layers(12)})


def test_agreement_by_hand():
    masks = {"a": (0, 1), "b": (1, 2), "c": (1, 2)}
    (agreement,) = agreed(*(cell(name, outcome(removed=mask)) for name, mask in masks.items()))
    assert agreement.mean == pytest.approx((1 / 3 + 1 / 3 + 1) / 3)
    assert agreement.lowest == pytest.approx(1 / 3)
    assert agreement.highest == 1.0
    assert (agreement.removed_by_all, agreement.removed_by_any) == (1, 3)
    assert agreement.full_overlap == pytest.approx(1 / 3)
    assert agreement.between_seeds is None


def test_seeds_of_one_searcher_do_not_count_as_searchers():
    seeded = (cell("a", outcome(removed=mask), seed=seed) for seed, mask in enumerate([(0, 1), (2, 3)]))
    (agreement,) = agreed(*seeded, cell("b", outcome(removed=(0, 1))))
    assert agreement.between_seeds == 0.0
    assert agreement.mean == 0.5  # one seed of a is b's mask, the other shares nothing


@pytest.mark.parametrize(("n_layers", "n_remove"), [(6, 1), (6, 3), (8, 5), (5, 5)])
def test_chance_agreement_is_the_mean_over_all_pairs(n_layers: int, n_remove: int):
    masks = [Mask(layers) for layers in itertools.combinations(range(n_layers), n_remove)]
    assert expected_jaccard(n_layers, n_remove) == pytest.approx(similarity(masks, masks))


def test_chance_is_over_the_layers_that_may_go():
    (agreement,) = agreed(*(cell(name, outcome(removed=(3, 4)), n_free=6) for name in "ab"))
    assert agreement.chance == expected_jaccard(6, 2)


def test_masks_with_halves_share_halves():
    pairs, attention = SPACES["pairs"], SPACES["attention"]
    of_layers = cell("greedy, layers", outcome(removed=(1, 2)))
    of_pairs = cell("greedy, pairs", outcome(removed=(1, "2m", "3a"), space=pairs))
    (agreement,) = agreed(of_layers, of_pairs)
    assert agreement.mean == pytest.approx(3 / 5)
    assert (agreement.removed_by_all, agreement.removed_by_any) == (3, 5)
    assert agreement.chance is None, "random masks of which space?"
    table = agreement_table([agreement])
    assert table is not None
    assert "–" in [shown.text for shown in table.rows[0]]
    masks = [outcome(removed=mask, space=attention) for mask in (("1a", "2a"), ("1a", "3a"))]
    (agreement,) = agreed(cell("a", masks[0], n_free=12), cell("b", masks[1], n_free=12))
    assert agreement.mean == pytest.approx(1 / 3)
    assert agreement.chance == expected_jaccard(12, 2)


def test_masks_of_different_draws_alone_are_no_pair():
    assert agreed(*(cell(name, outcome(removed=(0, 1)), draw=draw) for name, draw in ("a0", "b1"))) == []


def test_one_searcher_is_compared_with_itself_alone():
    different = outcome(removed=(0, 2))
    for axis, second_cell in (("draw", cell("a", different, draw="1")), ("seed", cell("a", different, seed=1))):
        (agreement,) = agreed(cell("a", outcome(removed=(0, 1))), second_cell)
        assert agreement.mean is agreement.lowest is agreement.highest is None
        table = agreement_table([agreement])
        assert table is not None
        shown = {column.title: shown_cell.text for column, shown_cell in zip(table.columns, table.rows[0], strict=True)}
        assert (shown["Mean"], shown["Range"], shown[f"Between {axis}s"]) == ("–", "–", "0.33")


def test_draws_of_one_searcher_are_the_baseline_and_baselines_are_left_out():
    masks = {("a", "0"): (0, 1), ("a", "1"): (0, 2), ("b", "0"): (0, 1), ("b", "1"): (0, 2), ("reverse", "0"): (8, 9)}
    cells = [
        cell(name, outcome(removed=mask), draw=draw, uses_objective=name != "reverse")
        for (name, draw), mask in masks.items()
    ]
    (agreement,) = agreed(*cells)
    assert (agreement.n_searchers, agreement.mean) == (2, 1.0)
    assert agreement.between_draws == pytest.approx(1 / 3)
    assert agreement.between_seeds is None
